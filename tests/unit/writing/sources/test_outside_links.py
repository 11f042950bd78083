"""`convert` follows no link and no cell out of the folder, unless `allow_outside=True` says so."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from torchdata_ais.cli import app
from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.testing import write_shard
from torchdata_ais.writing import Conversion, convert

PICTURE = b"\xff\xd8picture"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("TOPSECRET")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/o.jpg").write_bytes(PICTURE)
    place = tmp_path / "in"
    (place / "cat").mkdir(parents=True)
    (place / "cat/a.jpg").write_bytes(PICTURE)
    return place


def members(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            for member in archive:
                data = archive.extractfile(member)
                found[member.name] = b"" if data is None else data.read()
    return found


def linked(folder: Path) -> None:
    (folder / "cat/a.txt").symlink_to(folder.parent / "secret.txt")
    (folder / "dog").symlink_to(folder.parent / "outside")
    (folder / "cat/z.jpg").symlink_to("/dev/zero")
    (folder / "cat/b.jpg").symlink_to(folder / "cat/a.jpg")
    os.mkfifo(folder / "cat/f.jpg")


def converted(source: Path, **options: bool) -> Conversion:
    return convert(source, f"{source.parent}/out/s-%d.tar", **options)


def test_promise_8_links_out_of_the_folder_are_left_out_and_named(folder: Path) -> None:
    linked(folder)
    done = converted(folder)
    assert sorted(members(folder.parent / "out")) == ["cat/a.cls", "cat/a.jpg", "cat/b.cls", "cat/b.jpg"]
    left = {one.reason: (one.number, one.first) for one in done.left_out}
    assert left["a link out of the folder"] == (3, "cat/a.txt")
    assert done.notes["classes"] == ["cat"]


def test_allow_outside_follows_links(folder: Path) -> None:
    linked(folder)
    (folder / "cat/z.jpg").unlink()
    done = converted(folder, allow_outside=True)
    found = members(folder.parent / "out")
    assert found["cat/a.txt"] == b"TOPSECRET"
    assert found["dog/o.jpg"] == PICTURE
    assert "a link out of the folder" not in {one.reason for one in done.left_out}


def hostile_cells(folder: Path) -> list[str]:
    (folder / "cat/l.txt").symlink_to(folder.parent / "secret.txt")
    os.mkfifo(folder / "cat/f.jpg")
    secret = f"{folder.parent}/secret.txt"
    return [
        secret, f"file://{secret}", "../secret.txt", "cat/../../secret.txt", "cat/l.txt", "cat/f.jpg", "/dev/zero",
        "http://127.0.0.1:9/a.jpg", "https://127.0.0.1:9/a.jpg", "ais://b/a.jpg", "http://h/v1/objects/b/a.jpg",
        f"FILE://{secret}", "/proc/self/environ", "s3://b/x", f"{folder}/../secret.txt",
    ]  # fmt: skip


def test_promise_8_cells_that_lead_out_of_the_folder_are_left_out_and_named(folder: Path) -> None:
    cells = hostile_cells(folder)
    for cell in cells:
        (folder / "t.csv").write_text(f"file_name,text\n{cell},hello\n")
        with pytest.raises(UsageError, match="allow_outside=True"):
            converted(folder / "t.csv")
    rows = "".join(f"{cell},hello\n" for cell in ["cat/a.jpg", *cells, f"{folder}/cat/a.jpg"])
    (folder / "t.csv").write_text(f"file_name,text\n{rows}")
    done = convert(folder / "t.csv", f"{folder}/out/s-%d.tar")
    (left,) = done.left_out
    assert (left.number, left.first) == (len(cells), f"row 2, {cells[0]}")
    assert [data for name, data in members(folder / "out").items() if name.endswith(".jpg")] == [PICTURE] * 2


def test_allow_outside_follows_cells(folder: Path) -> None:
    (folder / "t.csv").write_text(f"file_name,text\n{folder.parent}/outside/o.jpg,hello\n")
    done = converted(folder / "t.csv", allow_outside=True)
    assert done.samples == 1


def test_the_command_says_what_it_left_out(folder: Path) -> None:
    linked(folder)
    run = CliRunner().invoke(app, ["convert", str(folder), f"{folder.parent}/out/s-%d.tar"])
    assert run.exit_code == 0, run.output
    assert "note: 3 left out (a link out of the folder): cat/a.txt" in run.output
    assert "--allow-outside follows" in run.output
    (folder / "cat/z.jpg").unlink()
    command = ["convert", "--allow-outside", "--overwrite", str(folder), f"{folder.parent}/out/s-%d.tar"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert members(folder.parent / "out")["cat/a.txt"] == b"TOPSECRET"


def test_promise_8_shards_that_are_links_out_of_the_folder_are_left_out_and_named(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out-there"
    (inside / "deep").mkdir(parents=True)
    outside.mkdir()
    write_shard(inside / "shard-000.tar", [("a.txt", b"x")])
    write_shard(inside / "deep/b.tar", [("b.txt", b"x")])
    (inside / "shard-001.tar").symlink_to(write_shard(outside / "c.tar", [("c.txt", b"secret")]))
    (inside / "shard-002.tar").symlink_to(inside / "deep/b.tar")
    os.mkfifo(inside / "shard-003.tar")
    done = convert(inside, f"{tmp_path}/a/s-%d.tar")
    left = {one.reason: (one.number, one.first) for one in done.left_out}
    assert left == {
        "a link out of the folder": (1, "shard-001.tar"),
        "no file (a pipe, a device)": (1, "shard-003.tar"),
    }
    assert done.samples == 2
    assert convert(inside, f"{tmp_path}/b/s-%d.tar", allow_outside=True).samples == 3
    (inside / "shard-000.tar").unlink()
    (inside / "shard-002.tar").unlink()
    with pytest.raises(NotFoundError, match="allow_outside=True"):
        convert(inside, f"{tmp_path}/c/s-%d.tar")


@pytest.mark.parametrize("name", ["metadata.jsonl", "part.parquet"])
def test_promise_8_a_table_that_is_a_link_out_of_the_folder_is_refused(folder: Path, name: str) -> None:
    (folder / name).symlink_to(folder.parent / "secret.txt")
    with pytest.raises(UsageError, match=f"{name} is a link out of the folder"):
        converted(folder)
