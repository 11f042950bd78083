"""``torchdata-ais info``: what a data set holds, the same from its index and from its shards."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from helpers.command import run
from PIL import Image

from torchdata_ais.index.build import SampleIndex
from torchdata_ais.index.build.ais_format import samples_in
from torchdata_ais.local import LocalCluster
from torchdata_ais.testing import shard_bytes


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


class Seen(HTMLParser):
    """The tags and the text of a page; what is not closed is a failure."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_has_plots_and_runs_nothing(folder: Path) -> None:
    evil = "<script>alert(1)</script>"
    (folder / "classes.json").write_text(json.dumps([evil, "b&c", "dog\x1b[2J"]))
    page = folder / "page.html"
    result = run("info", "--html", page, f"{folder}/s-*.tar")
    assert result.exit_code == 0, result.output
    seen = Seen(page.read_text())
    assert "script" not in seen.tags
    assert seen.tags.count("svg") == 3
    assert seen.tags.count("rect") == 4 + 3, "bytes of four fields, three classes"
    assert seen.tags.count("circle") == 2
    assert evil in seen.text
    assert "b&c" not in seen.text, "no sample is of that class"
    assert "\x1b" not in page.read_text()
    assert not [value for name, value in seen.attributes if name in ("src", "href", "onload")]
    assert {value for name, value in seen.attributes if name == "style"} == {
        "text-align:left;overflow-wrap:anywhere", "text-align:right;white-space:nowrap"
    }  # fmt: skip
    assert "http" not in page.read_text()
    assert run("info", "--html", folder / "none" / "x.html", f"{folder}/s-*.tar").exit_code == 2


def test_classes_are_called_by_the_names_that_lie_beside_the_shards(folder: Path) -> None:
    (folder / "classes.json").write_text('["cat", "dog", "owl"]')
    result = run("info", f"{folder}/s-*.tar")
    assert "classes: 3: cat 2, owl 2, 10 1" in result.stdout
    assert json.loads(run("info", "--json", f"{folder}/s-*.tar").stdout)["class_names"] == [
        "cat",
        "dog",
        "owl",
    ]
    (folder / "classes.json").write_text('{"no": "list"}')
    assert "classes: 3: 0 2, 2 2, 10 1" in run("info", f"{folder}/s-*.tar").stdout
    (folder / "classes.json").write_text('["cat", "dog", "owl"]')
    sheet = run("inspect", "--sheet", folder / "named.png", "-n", 2, folder / "s-0.tar")
    assert sheet.exit_code == 0, sheet.output
    (folder / "classes.json").unlink()
    run("inspect", "--sheet", folder / "plain.png", "-n", 2, folder / "s-0.tar")
    assert (folder / "named.png").read_bytes() != (folder / "plain.png").read_bytes()


def test_an_index_shows_itself_in_a_notebook(tmp_path: Path) -> None:
    shard = tmp_path / "<b>s.tar"
    shard.write_bytes(shard_bytes({"<i>k.txt": b"1", "l.txt": b"22"}))
    index = SampleIndex.build([str(shard)])
    seen = Seen(index._repr_html_())
    assert "SampleIndex: 2 samples of 1 shard" in seen.text
    assert "<i>k" in seen.text
    assert "<b>s.tar" in seen.text
    assert "i" not in seen.tags
    assert "0 samples" in Seen(index.select([])._repr_html_()).text


@pytest.mark.parametrize("wide", [False, True], ids=["exact", "reaching into the next sample"])
def test_names_outside_ascii_are_no_damage(
    ais_local_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, wide: bool
) -> None:
    from torchdata_ais.index.build import by_cluster

    if wide:  # as indexes of other tools, which name no extension headers
        monkeypatch.setattr(by_cluster, "samples_in", lambda found, url, _: samples_in(found, url))
    monkeypatch.setenv("AIS_ENDPOINT", ais_local_cluster.endpoint)
    members = {
        f"k\u00e4tzchen-{n}.{ext}": data
        for n in range(3)
        for ext, data in (("jpg", jpeg(8, 8)), ("cls", b"1"))
    }
    with temporary_bucket(ais_local_cluster) as bucket:
        bucket.object("s-0.tar").get_writer().put_content(shard_bytes(members))
        url = f"ais://{bucket.name}/s-"
        made = SampleIndex.build(url, method="cluster").save()
        assert made.proof == "headers"
        result = run("info", "--json", url)
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["looked"], told["classes"]) == (3, {"1": 3})
    assert told["pictures"] == [{"width": 8, "height": 8, "count": 3}]


@contextmanager
def temporary_bucket(cluster: LocalCluster) -> Iterator[Any]:
    bucket = cluster.client().bucket("info-names").create()
    yield bucket
    bucket.delete()
