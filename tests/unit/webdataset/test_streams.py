"""Shards that a program has opened itself: read from the stream, with the checks of shards that are read by URL."""

from __future__ import annotations

import bz2
import gzip
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import torchdata_ais.webdataset as wds
from torchdata_ais.errors import ReadError, ShardError, TruncatedShardError, UsageError
from torchdata_ais.testing import example_shards

expand = wds.tariterators.tar_file_expander
group = wds.tariterators.group_by_keys


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    return example_shards(tmp_path, [2, 3])


class Dripping(io.RawIOBase):
    """A stream that gives a few bytes at a time, as sockets do, and breaks where it is told to."""

    def __init__(self, data: bytes, until: int | None = None) -> None:
        self._data = io.BytesIO(data)
        self._until = until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._until is not None and self._data.tell() >= self._until:
            raise ConnectionResetError("the other side has gone")
        return self._data.readinto(memoryview(buffer)[:700])


@pytest.mark.parametrize("change", [bytes, gzip.compress, bz2.compress], ids=["plain", "gz", "bz2"])
@pytest.mark.parametrize("opened", [io.BytesIO, Dripping])
def test_a_stream_is_read_instead_of_its_url(
    shards: list[str], change: Callable[[bytes], bytes], opened: Callable[[bytes], Any]
) -> None:
    """The URL is only a name, as in AIStore's own examples."""
    streams = [opened(change(Path(shard).read_bytes())) for shard in shards]
    samples = list(group(expand({"url": "input_data", "stream": stream} for stream in streams)))
    stored = list(wds.WebDataset(shards))
    fields = [{**sample, "__url__": "input_data"} for sample in stored]
    for sample in fields:
        del sample["__local_path__"]
    assert samples == fields
    assert not any(stream.closed for stream in streams)  # who opens closes


def test_streams_and_urls_may_alternate(shards: list[str]) -> None:
    with Path(shards[0]).open("rb") as first, Path(shards[0]).open("rb") as last:
        items = [{"url": "a", "stream": first}, {"url": shards[1]}, shards[1], {"url": "b", "stream": last}]
        members = list(expand(items))
    assert members.count({}) == 4
    assert [item["__url__"] for item in members if item][::2] == ["a"] * 2 + [shards[1]] * 6 + ["b"] * 2


def test_two_streams_of_one_name_with_one_key_are_two_samples() -> None:
    stream = io.BytesIO()
    with wds.TarWriter(stream) as writer:
        writer.write({"__key__": "a", "txt": "x"})
    items = [{"url": "same", "stream": io.BytesIO(stream.getvalue())} for _ in range(2)]
    assert [sample["txt"] for sample in group(expand(items))] == [b"x", b"x"]


def test_what_is_wrong_with_a_stream_goes_to_the_handler(shards: list[str]) -> None:
    data = Path(shards[1]).read_bytes()

    def items(stream: Any) -> list[dict[str, Any]]:
        return [{"url": "cut", "stream": stream}, {"url": shards[0]}]

    for broken, kind in ((io.BytesIO(data[:3200]), tarfile.ReadError), (Dripping(data, 3200), ReadError)):
        with pytest.raises(kind) as caught:
            list(expand(items(broken)))
        assert '"url": "cut"' in str(caught.value)
    assert issubclass(kind, OSError) or isinstance(caught.value.__cause__, ConnectionResetError)
    for broken in (io.BytesIO(data[:3200]), Dripping(data, 3200)):
        keys = [sample["__key__"] for sample in group(expand(items(broken), handler=wds.ignore_and_continue))]
        assert keys == ["00002", "00000", "00001"]  # what is whole, and nothing half
    stopped = list(group(expand(items(io.BytesIO(data[:3200])), handler=wds.ignore_and_stop)))
    assert [sample["__key__"] for sample in stopped] == ["00002"]
    with pytest.raises(TruncatedShardError):
        list(expand(items(io.BytesIO(b""))))


def test_a_stream_that_swells_is_no_exception() -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        info = tarfile.TarInfo("a.bin")
        info.size = 32 << 20
        tar.addfile(info, io.BytesIO(bytes(info.size)))
    small = io.BytesIO(gzip.compress(stream.getvalue()))
    with pytest.raises(ShardError, match="above max_ratio=1000") as caught:
        list(expand([{"url": "bomb", "stream": small}]))
    assert caught.value.url == "bomb"


@pytest.mark.parametrize("wrong", [io.StringIO("text"), 7, "text"])
def test_no_stream_of_bytes_is_never_skipped(wrong: Any) -> None:
    with pytest.raises(UsageError, match='opened with "rb"'):
        list(expand([{"url": "a", "stream": wrong}], handler=wds.ignore_and_continue))


def test_what_a_cache_has_opened_is_read_from_there(tmp_path: Path, shards: list[str]) -> None:
    """The expander went by the URL, and past the cache."""
    opened = wds.cache.StreamingOpen()(shards)
    samples = list(group(expand(opened)))
    assert [sample["__local_path__"] for sample in samples] == [shards[0]] * 2 + [shards[1]] * 3
    assert list(samples[0]) == ["__key__", "__url__", "cls", "txt", "__local_path__"]


def test_url_opener_gives_streams_that_a_program_can_read_itself(shards: list[str]) -> None:
    names = []
    for item in wds.tariterators.url_opener([{"url": shard, "n": 1} for shard in shards]):
        assert item["n"] == 1
        with item["stream"] as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            names.append(len(tar.getnames()))
    assert names == [4, 6]
    begun = next(wds.tariterators.url_opener(shards))
    assert begun["stream"].read(512)[:5] == b"00000"
    assert len(list(group(expand(wds.tariterators.url_opener(shards))))) == 5


def test_the_members_of_an_open_archive(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w") as tar:
        for name in ("__index__", "__meta__/a.json", "README", "a.txt", "b.txt"):
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))
    members = wds.tariterators.tar_file_iterator

    def names(**options: Any) -> list[str]:
        with path.open("rb") as file:
            return [item["fname"] for item in members(file, **options)]

    assert names() == ["README", "a.txt", "b.txt"]
    assert names(skip_meta=None) == ["__index__", "__meta__/a.json", "README", "a.txt", "b.txt"]
    assert names(rename_files=str.upper, select_files=lambda name: name == "B.TXT") == ["B.TXT"]
    cut = io.BytesIO(path.read_bytes()[:2600])
    with pytest.raises(tarfile.ReadError, match="ends at byte 2600"):
        list(members(cut))
    assert list(members(io.BytesIO(path.read_bytes()[:700]), handler=wds.ignore_and_continue)) == []


class LocalTarDataset(wds.DataPipeline, wds.compat.FluidInterface):
    """As AIStore's example of a transform writes it: the bytes of one shard as a data set."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = data

    def __iter__(self) -> Iterator[Any]:
        return group(expand([{"url": "input_data", "stream": io.BytesIO(self._data)}]))


def test_a_data_set_of_one_shard_in_memory(shards: list[str]) -> None:
    dataset = LocalTarDataset(Path(shards[1]).read_bytes())
    samples = wds.WebLoader(dataset, batch_size=None).decode().to_tuple("cls", "txt")
    assert [cls for cls, _ in samples] == [2, 3, 4]
