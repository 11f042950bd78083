"""``torchdata-ais info``: what a data set holds, the same from its index and from its shards."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from torchdata_ais.cli import app
from torchdata_ais.indexing import SampleIndex
from torchdata_ais.testing import shard_bytes


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def jpeg(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height)).save(out, "jpeg")
    return out.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards of three and two samples; one has a caption, one a picture that is none."""
    first = {
        "a.jpg": jpeg(64, 48),
        "a.cls": b"0",
        "b.jpg": jpeg(64, 48),
        "b.cls": b"10",
        "c.jpg": b"no",
        "c.cls": b"2",
    }
    (tmp_path / "s-0.tar").write_bytes(shard_bytes(first))
    second = {"d.jpg": jpeg(32, 100), "d.cls": b"0", "d.txt": b"a dog", "e.seg.png": b"", "e.cls": b"2"}
    (tmp_path / "s-1.tar").write_bytes(shard_bytes(second))
    return tmp_path


@pytest.fixture(params=["files", "cluster"])
def url(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "files":
        yield f"{folder}/s-*.tar"
        return
    cluster, bucket = request.getfixturevalue("ais_cluster"), request.getfixturevalue("ais_bucket")
    monkeypatch.setenv("AIS_ENDPOINT", cluster.endpoint)
    for path in folder.iterdir():
        bucket.object(path.name).get_writer().put_content(path.read_bytes())
    yield f"ais://{bucket.name}/s-"


def test_it_tells_the_same_from_an_index_and_from_the_shards(url: str) -> None:
    read = json.loads(run("info", "--json", url).stdout)
    assert (read["samples"], read["shards"], read["looked"], read["source"]) == (5, 2, 5, "read")
    assert read["fields"]["cls"] == {"samples": 5, "bytes": 6, "least": 1, "most": 2}
    assert read["fields"]["txt"] == {"samples": 1, "bytes": 5, "least": 5, "most": 5}
    assert read["bytes"] == sum(one["bytes"] for one in read["fields"].values())
    assert read["classes"] == {"0": 2, "2": 2, "10": 1}
    assert list(read["classes"]) == ["0", "2", "10"]
    assert read["pictures"] == [
        {"width": 32, "height": 100, "count": 1}, {"width": 64, "height": 48, "count": 2}
    ]  # fmt: skip
    assert read["broken"] == 2
    index = SampleIndex.build(url)
    index.save()
    found = json.loads(run("info", "--json", url).stdout)
    assert found["source"].startswith("index, proof ")
    assert {**found, "source": "read", "stale": False} == read
    some = run("info", "--look", 2, url).stdout
    assert "of 2 samples" in some
    assert json.loads(run("info", "--json", "--read", url).stdout) == read


def test_lines_for_people(folder: Path) -> None:
    result = run("info", f"{folder}/s-*.tar")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{folder}/s-*.tar: 5 samples in 2 shards, ")
    assert lines[1].split()[:5] == ["cls", "5", "samples", "6", "B"]
    assert lines[5] == "pictures: 32 to 64 wide, 48 to 100 high, most often 64 x 48 (2 of 3)"
    assert lines[6] == "error: 2 of them cannot be opened: torchdata-ais lint names them"
    assert lines[7] == "classes: 3: 0 2, 2 2, 10 1"


def test_an_index_of_other_shards_is_told(folder: Path) -> None:
    pattern = f"{folder}/s-*.tar"
    SampleIndex.build(pattern).save()
    assert "note:" not in run("info", pattern).stderr
    (folder / "s-2.tar").write_bytes(shard_bytes({"f.cls": b"1"}))
    assert "torchdata-ais index brings it up to date" in run("info", pattern).stderr


def test_shards_that_cannot_be_read_lead_to_lint(folder: Path) -> None:
    path = folder / "s-1.tar"
    path.write_bytes(path.read_bytes()[:3000])
    result = run("info", f"{folder}/s-*.tar")
    assert result.exit_code == 1
    assert "torchdata-ais lint finds all that is bad" in result.stderr
    assert run("info", f"{folder}/none-*.tar").exit_code == 1
