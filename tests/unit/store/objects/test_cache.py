"""Files kept on this node: `index_dir` and `cache_dir` follow no link, wait for no pipe, and are closed to others."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.disk_calls import disk_calls

from torchdata_ais import SampleIndex
from torchdata_ais.errors import UsageError
from torchdata_ais.store import ObjectCache, StoreOptions
from torchdata_ais.store.objects.cache import delete_oldest, open_part, private_folder
from torchdata_ais.testing import example_shards


@pytest.fixture
def index(tmp_path: Path) -> SampleIndex:
    (tmp_path / "data").mkdir()
    return SampleIndex.build(example_shards(tmp_path / "data", counts=(3, 2))).save(tmp_path / "data")


def _placed(path: Path, victim: Path, kind: str) -> None:
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        (path / "in it").mkdir(parents=True)
    elif kind == "hard link":
        path.hardlink_to(victim)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "hard link"])
@pytest.mark.parametrize("ending", ["", ".part"])
def test_promise_8_what_stands_in_the_place_of_a_copy_is_removed(
    index: SampleIndex, tmp_path: Path, kind: str, ending: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    wanted = [reference.key for reference in index]
    kept = index.kept_in(tmp_path / "node")
    assert [reference.key for reference in kept] == wanted
    (folder,) = (tmp_path / "node").iterdir()
    for copy in [path for path in folder.iterdir() if path.suffix == ".arrow"]:
        copy.unlink()
        _placed(copy.with_name(copy.name + ending), victim, kind)
    again = SampleIndex.open(tmp_path / "data", index_dir=tmp_path / "node")
    assert [reference.key for reference in again] == wanted
    assert victim.read_text() == "precious"
    assert all(stat.S_ISREG(path.lstat().st_mode) for path in folder.iterdir())


def test_copies_are_closed_to_others(index: SampleIndex, tmp_path: Path) -> None:
    list(index.kept_in(tmp_path / "node"))
    (folder,) = (tmp_path / "node").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    folder.chmod(0o777)
    list(index.kept_in(tmp_path / "node"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_copy_is_on_the_disk_before_it_has_its_name(
    index: SampleIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = disk_calls(monkeypatch)
    list(index.kept_in(tmp_path / "node"))
    copies = (tmp_path / "node").glob("*/*.arrow")
    expected = {path.name: f"{path.stat().st_size} bytes" for path in copies}
    assert len(expected) == 2
    names = [call.removeprefix("replace ") for call in done[1::3]]
    assert dict(zip(names, done[::3], strict=True)) == expected
    assert done[2::3] == ["folder", "folder"]


def test_a_link_in_the_place_of_the_folder_is_an_error(index: SampleIndex, tmp_path: Path) -> None:
    list(index.kept_in(tmp_path / "node"))
    (folder,) = (tmp_path / "node").iterdir()
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="it is a link, not a folder"):
        index.kept_in(tmp_path / "node")


def test_a_folder_of_another_user_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private_folder(tmp_path / "a")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OSError, match="another user"):
        private_folder(tmp_path / "a")


@pytest.mark.parametrize("place", [lambda path: path.write_bytes(b"12"), lambda path: None])
def test_an_unfinished_file_is_continued(tmp_path: Path, place: Callable[[Path], object]) -> None:
    place(tmp_path / "a.part")
    with open_part(tmp_path / "a.part") as file:
        file.write(b"3")
        file.seek(0)
        assert file.readall() in (b"123", b"3")


def test_the_files_used_longest_ago_are_deleted(tmp_path: Path) -> None:
    def files(*names: str) -> list[tuple[int, int, Path]]:
        found = []
        for used, name in enumerate(names):
            (tmp_path / name).write_bytes(bytes(10 * (len(names) - used)))  # the oldest is the largest
            found.append((used, 10 * (len(names) - used), tmp_path / name))
        return found[::-1]

    delete_oldest(files("a", "b", "c"), 30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"], (
        "20 + 10 bytes are exactly the bound"
    )
    delete_oldest(files("a", "b", "c"), 29, keep=tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


def test_output_of_a_transform_is_not_cached(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    options = StoreOptions(endpoint="http://127.0.0.1:1")
    assert cache.open("http://127.0.0.1:1/v1/objects/b/s.tar?etl_name=x", options) is None
    assert cache.open(str(tmp_path / "s.tar"), options) is None
