"""Random reads of files: each file is opened once, few are open at the same time, and none stays open."""

from __future__ import annotations

import errno
import gc
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import AISSampleReader, SampleIndex
from torchdata_ais._util.files import open_regular
from torchdata_ais.errors import ObjectChangedError, ReadError
from torchdata_ais.samples import unpack_place
from torchdata_ais.store import OpenFiles, StoreOptions, read_range
from torchdata_ais.store.objects import files as module
from torchdata_ais.testing import write_shard

OPTIONS = StoreOptions()
MOST = 128


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the shards that were opened, in order."""
    names: list[str] = []

    def noted(path: Any) -> Any:
        names.append(Path(path).name)
        return open_regular(path)

    monkeypatch.setattr(module, "open_regular", noted)
    return names


def open_shards(folder: Path) -> list[str]:
    """Return the names of the shards of a folder that are open in this process."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # of the folder itself
            target = link.readlink()
            if target.parent == folder:
                found.append(target.name)
    return found


def write(folder: Path, shards: int, samples: int) -> list[str]:
    return [
        str(
            write_shard(
                folder / f"{shard:03d}.tar",
                {f"{shard}-{n}.txt": b"%d-%d" % (shard, n) for n in range(samples)},
            )
        )
        for shard in range(shards)
    ]


def texts(pipe: Any) -> list[bytes]:
    return [sample["txt"] for sample in pipe]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="lists open files by /proc")
def test_an_epoch_of_random_reads_opens_each_file_once(tmp_path: Path, opened: list[str]) -> None:
    index = SampleIndex.build(write(tmp_path, shards=5, samples=40), method="read")
    pipe = AISSampleReader(index, shuffle="samples", seed=3)
    for _ in range(2):
        opened.clear()
        assert sorted(texts(pipe)) == sorted(b"%d-%d" % (shard, n) for shard in range(5) for n in range(40))
        assert sorted(opened) == [f"{shard:03d}.tar" for shard in range(5)]
        assert open_shards(tmp_path) == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="lists open files by /proc")
def test_a_reader_that_is_left_closes_its_files(tmp_path: Path) -> None:
    index = SampleIndex.build(write(tmp_path, shards=3, samples=40), method="read")
    samples = iter(AISSampleReader(index, shuffle="samples", seed=1))
    next(samples)
    assert open_shards(tmp_path) != []
    samples.close()  # type: ignore[attr-defined]
    assert open_shards(tmp_path) == []


def test_samples_have_the_place_of_their_first_header(tmp_path: Path) -> None:
    index = SampleIndex.build(write(tmp_path, shards=3, samples=4), method="read")
    places = [unpack_place(sample.place) for sample in AISSampleReader(index)]
    assert places == [(one.number, one.start) for one in index]
    assert places[0] == (0, 0) != places[-1]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="lists open files by /proc")
def test_the_collection_of_an_abandoned_iterator_closes_its_files(tmp_path: Path) -> None:
    """Without a warning of open files, which may come before the iterator is ended."""
    index = SampleIndex.build(write(tmp_path, shards=20, samples=2), method="read")
    files = OpenFiles()
    samples = iter(AISSampleReader(index, shuffle="samples", seed=1))
    next(samples)
    read_range(index[0].shard.name, 0, 512, OPTIONS, files=files)
    assert open_shards(tmp_path) != []
    cycle: list[Any] = [samples, files]
    cycle.append(cycle)
    del samples, files, cycle
    gc.collect()
    assert open_shards(tmp_path) == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="lists open files by /proc")
def test_the_last_128_files_stay_open(tmp_path: Path, opened: list[str]) -> None:
    names = write(tmp_path, shards=MOST + 2, samples=1)
    files = OpenFiles()
    try:
        for name in names:
            read_range(name, 0, 512, OPTIONS, files=files)
        assert len(open_shards(tmp_path)) == MOST
        read_range(names[2], 0, 512, OPTIONS, files=files)  # the longest unused one: now it is the last used
        assert opened == [Path(name).name for name in names]
        read_range(names[0], 0, 512, OPTIONS, files=files)
        read_range(names[2], 0, 512, OPTIONS, files=files)
        assert opened[MOST + 2 :] == ["000.tar"]
        assert len(open_shards(tmp_path)) == MOST
    finally:
        files.close()
    assert open_shards(tmp_path) == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="lists open files by /proc")
def test_a_range_alone_leaves_no_file_open(tmp_path: Path) -> None:
    (name,) = write(tmp_path, shards=1, samples=1)
    assert len(read_range(name, 0, 512, OPTIONS)) == 512
    assert open_shards(tmp_path) == []


def test_files_are_closed_where_the_process_may_open_no_more(tmp_path: Path) -> None:
    names = write(tmp_path, shards=30, samples=1)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
    files = OpenFiles()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, limits[1]))
        for fd in taken[4:]:
            os.close(fd)
        del taken[4:]
        for name in names:
            assert len(read_range(name, 0, 512, OPTIONS, files=files)) == 512
        files.close()
        taken += [os.open("/dev/null", os.O_RDONLY) for _ in range(4)]
        with pytest.raises(ReadError, match="Too many open files"):
            read_range(names[0], 0, 512, OPTIONS, files=files)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        files.close()
        for fd in taken:
            os.close(fd)


def test_a_file_that_cannot_be_read_is_opened_again(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system replaces a file: its handle is stale, its name is not."""
    (name,) = write(tmp_path, shards=1, samples=1)
    read: Callable[..., bytes] = os.pread

    def stale(*arguments: Any) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    files = OpenFiles()
    try:
        read_range(name, 0, 512, OPTIONS, files=files)
        monkeypatch.setattr(os, "pread", stale)
        with pytest.raises(ReadError, match="byte 512"):
            read_range(name, 512, 512, OPTIONS, files=files)
        monkeypatch.setattr(os, "pread", read)
        assert len(read_range(name, 512, 512, OPTIONS, files=files)) == 512
    finally:
        files.close()
    assert opened == ["000.tar", "000.tar"]


def test_a_file_that_changes_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    index = SampleIndex.build(write(tmp_path, shards=1, samples=40), method="read")
    samples = iter(AISSampleReader(index, shuffle="samples", seed=1, prefetch_bytes=4096))
    next(samples)
    with (tmp_path / "000.tar").open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 512)
    with pytest.raises(ObjectChangedError):
        list(samples)
