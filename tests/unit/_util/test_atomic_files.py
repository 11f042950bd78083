"""A file that is whole or not there, whatever happens while it is written."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.disk_calls import disk_calls

from torchdata_ais._util.files import sync_folder, whole_file


def test_the_file_of_before_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    with whole_file(path, on_disk=True) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = disk_calls(monkeypatch)
    for on_disk in (True, False):
        with whole_file(tmp_path / "a.json", on_disk=on_disk) as file:
            file.write(b"new")
    assert done == ["3 bytes", "replace a.json", "folder", "replace a.json"]


def test_a_folder_that_cannot_be_synced_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Network file systems refuse it; a full or broken disk is an error."""

    def fails(number: int) -> Callable[[int], None]:
        def fsync(_fd: int) -> None:
            raise OSError(number, os.strerror(number))

        return fsync

    for number in (errno.EINVAL, errno.ENOTSUP):
        monkeypatch.setattr(os, "fsync", fails(number))
        sync_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", fails(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        sync_folder(tmp_path)


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    def broken_off() -> None:
        with whole_file(tmp_path / "a.json") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert not list(tmp_path.iterdir())


def test_who_may_read_it_is_decided_by_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with whole_file(tmp_path / "a"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
