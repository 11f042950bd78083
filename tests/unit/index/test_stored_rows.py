"""Rows of samples of an index in a bucket: few requests, few bytes, whatever becomes of the copies."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from torchdata_ais import AISSampleReader, SampleDataset, SampleIndex, ais_loader
from torchdata_ais.errors import ConnectError, SampleIndexError
from torchdata_ais.index import field_sizes, stored
from torchdata_ais.index.location import RemoteFolder
from torchdata_ais.index.stored import CopiedFolder, StoredIndex
from torchdata_ais.reading import planned
from torchdata_ais.reading.planned import PlannedData
from torchdata_ais.testing import shard_bytes

T = TypeVar("T")

SHARDS, EACH = 60, 20


class Served:
    """An index in a bucket, and the same in memory."""

    def __init__(self, cluster: Any, bucket: Any) -> None:
        for shard in range(SHARDS):
            members = {f"{shard:02}-{n:02}.txt": b"x" * (n + 1) for n in range(EACH)}
            bucket.object(f"s-{shard:02}.tar").get_writer().put_content(shard_bytes(members))
        self.cluster = cluster
        self.uri = f"ais://{bucket.name}/s-"
        self.known = SampleIndex.build(self.uri, cluster=cluster.endpoint)
        self.known.save(f"ais://{bucket.name}/.index/s-", cluster=cluster.endpoint)

    def open(self) -> SampleIndex:
        index = SampleIndex.open(self.uri, cluster=self.cluster.endpoint)
        assert part_of(index).fields == [("txt",)]  # which takes a range
        return index

    def ranges(self, run: Callable[..., T], *arguments: Any) -> tuple[T, int]:
        """Return what `run` returns, and how many answers of targets it took."""
        self.cluster.reset_stats()
        found = run(*arguments)
        return found, self.cluster.stats().count("GET", role="target")


@pytest.fixture(scope="module")
def served(ais_cluster: Any) -> Iterator[Served]:
    bucket = ais_cluster.client().bucket(f"stored-rows-{os.getpid()}").create()
    yield Served(ais_cluster, bucket)
    bucket.delete(missing_ok=True)


@pytest.fixture
def small_cache(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep no more than a block, so that all are read again and again, and copied after 1.2 times the file."""
    part = part_of(served.open())
    size = sum(part.shard(number).length for number in range(SHARDS))
    monkeypatch.setattr(stored, "_KEPT_BYTES", 1)
    monkeypatch.setattr(stored, "_COPIED_AFTER", size * 12 // 10)


def at_random(count: int) -> list[int]:
    return np.random.default_rng(count).permutation(SHARDS * EACH)[:count].tolist()


def part_of(index: SampleIndex) -> StoredIndex:
    return index.parts.stored[0]


def copy_of(index: SampleIndex) -> int | None:
    """Return the descriptor of the temporary copy of the rows, if there is one."""
    copies = part_of(index)._copies
    name = part_of(index).head.parts[0]
    file = copies._files.get(name)
    assert (name in copies) == (file is not None)
    return None if file is None else file._file.fileno()


def unnamed_files() -> int:
    """Return how many temporary files without a name this process has open."""
    gc.collect()
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            place = str(link.readlink())
            found += place.startswith(tempfile.gettempdir()) and place.endswith("(deleted)")
    return found


def test_samples_of_all_shards_are_found_by_one_range(served: Served) -> None:
    index = served.open()
    numbers = at_random(300)
    found, ranges = served.ranges(index.take, numbers)
    assert found == served.known.take(numbers)
    assert ranges == 1
    assert served.ranges(index.take, at_random(500))[1] == 0, "all are kept"


def test_ranges_are_bounded_in_size_and_leave_out_what_is_far_between(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = part_of(served.open()).shard(0).length
    everything = list(range(0, SHARDS * EACH, EACH))
    for most, gap, numbers, expected in (
        (10 * length, 0, everything, 6),
        (10 * length - 1, 0, everything, 7),
        (1 << 20, length, everything[::2], 1),
        (1 << 20, length - 1, everything[::2], 30),
        (1 << 20, 0, everything[::-1], 1),
    ):
        monkeypatch.setattr(stored, "_MOST_NEAR", most)
        monkeypatch.setattr(stored, "_GAP", gap)
        index = served.open()
        found, ranges = served.ranges(index.take, numbers)
        assert found == served.known.take(numbers)
        assert ranges == expected


@pytest.mark.usefixtures("small_cache")
def test_rows_read_again_and_again_come_from_a_copy(served: Served) -> None:
    index = served.open()
    rounds = []
    for count in range(200, 260):
        found, ranges = served.ranges(index.take, at_random(count))
        assert found == served.known.take(at_random(count))
        rounds.append(ranges)
    assert rounds[0] == 1
    assert sum(rounds[:4]) <= 5, "one of them for the copy, and one for its end"
    assert rounds[4:] == [0] * 56


@pytest.mark.usefixtures("small_cache")
def test_rows_read_once_or_in_order_are_not_copied(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_MOST_NEAR", 1)
    index = served.open()
    for _ in range(2):
        assert copy_of(index) is None
        for number in range(SHARDS):
            assert index[number * EACH].number == number
    assert copy_of(index) is not None


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize("damage", ["changed", "cut", "unreadable"])
def test_a_damaged_copy_is_not_believed(served: Served, damage: str) -> None:
    """Nor what was read of it before the first wrong block was met."""
    before, index = unnamed_files(), served.open()
    for count in range(200, 206):
        index.take(at_random(count))
    copy = copy_of(index)
    assert copy is not None
    assert unnamed_files() == before + 1
    if damage == "changed":
        for shard in (3, 4, 30):
            os.pwrite(copy, b"\xff" * 100, part_of(index).shard(shard).start + 50)
    elif damage == "cut":
        os.ftruncate(copy, part_of(index).shard(3).start + 50)
    else:
        folder = os.open(tempfile.gettempdir(), os.O_RDONLY)
        os.dup2(folder, copy)
        os.close(folder)
    for count in range(300, 310):
        assert index.take(at_random(count)) == served.known.take(at_random(count))
    assert copy_of(index) is None
    assert unnamed_files() == before


def test_a_copy_in_a_folder_with_several_wrong_blocks_is_made_once_more(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[str] = []
    copy = CopiedFolder._copy

    def noting(self: CopiedFolder, name: str, kept: str) -> None:
        copied.append(name)
        copy(self, name, kept)

    monkeypatch.setattr(CopiedFolder, "_copy", noting)
    index = SampleIndex.open(served.uri, cluster=served.cluster.endpoint, index_dir=tmp_path)
    assert index.take(at_random(300)) == served.known.take(at_random(300))
    part = part_of(index)
    (path,) = tmp_path.rglob(part.head.parts[0])
    with path.open("r+b") as file:
        for shard in (3, 4, 30):
            file.seek(part.shard(shard).start + 50)
            file.write(b"\xff" * 100)
    copied.clear()
    again = SampleIndex.open(served.uri, cluster=served.cluster.endpoint, index_dir=tmp_path)
    assert again.take(at_random(400)) == served.known.take(at_random(400))
    assert copied == [part.head.parts[0]]


@pytest.mark.usefixtures("small_cache")
def test_an_error_of_the_cluster_while_rows_are_copied_is_that_error(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before, index = unnamed_files(), served.open()
    read = RemoteFolder.read

    def broken(self: RemoteFolder, name: str, start: int = 0, length: int | None = None) -> bytes:
        if length == stored._PIECE and start:
            raise ConnectError("no answer")
        return read(self, name, start, min(length or 1000, 1000) if length == stored._PIECE else length)

    monkeypatch.setattr(RemoteFolder, "read", broken)
    errors = 0
    for count in range(200, 220):
        try:
            assert index.take(at_random(count)) == served.known.take(at_random(count))
        except ConnectError:
            errors += 1
    assert errors > 5
    assert unnamed_files() == before
    monkeypatch.setattr(RemoteFolder, "read", read)
    assert index.take(at_random(300)) == served.known.take(at_random(300))
    assert copy_of(index) is not None
    assert not caplog.records


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize(
    ("lack", "says"), [("disk", "No space left"), ("size", "more than 0 MiB")], ids=["full disk", "too large"]
)
def test_without_a_copy_rows_come_from_the_bucket_and_a_warning_says_so(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lack: str, says: str
) -> None:
    def full(file: Any, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    before = unnamed_files()
    if lack == "disk":
        monkeypatch.setattr(stored, "write_all", full)
    else:
        monkeypatch.setattr(stored, "_MOST_COPIED", 1)
    index = served.open()
    with caplog.at_level(logging.WARNING, "torchdata_ais"):
        for count in range(200, 220):
            assert index.take(at_random(count)) == served.known.take(at_random(count))
        copies, source = part_of(index)._copies, part_of(index).folder
        for _ in range(2):  # another file of that index
            copies.read(source, part_of(index).head.counts.file, 0, stored._COPIED_AFTER)
    assert unnamed_files() == before
    (text,) = (record.getMessage() for record in caplog.records)
    assert says in text
    assert "index_dir=" in text


@pytest.mark.usefixtures("small_cache")
def test_a_block_that_was_valid_once_is_compared_again(
    ais_cluster: Any, ais_bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksum, though not what it says."""
    monkeypatch.setattr(stored, "_MOST_COPIED", 1)
    index = Served(ais_cluster, ais_bucket).open()
    index.take(at_random(300))
    name = part_of(index).head.parts[0]
    folder: Any = part_of(index).folder
    data = bytearray(folder.read(name))
    data[part_of(index).shard(7).start + 60] ^= 1
    folder.write(name, bytes(data))
    with pytest.raises(SampleIndexError, match=r"bytes .* changed"):
        index.take(at_random(300))
    folder.write(name, bytes(data[: part_of(index).shard(50).start]))
    with pytest.raises(SampleIndexError, match=r"samples-.* has \d+ of \d+ bytes"):
        index.take(list(range(45 * EACH, 55 * EACH)))


def test_blocks_that_leave_the_cache_meanwhile_are_read_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the ten requested ones the last was there, and is the first that the others displace."""
    index = served.open()
    length = part_of(index).shard(0).length
    monkeypatch.setattr(stored, "_KEPT_BYTES", 3 * length)
    index.take([9 * EACH])
    numbers = list(range(0, 10 * EACH, EACH))
    assert index.take(numbers) == served.known.take(numbers)


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize("workers", [0, 2])
def test_random_batches_of_many_shards_take_few_requests(served: Served, workers: int) -> None:
    pipe = AISSampleReader(served.uri, shuffle="samples", cluster=served.cluster.endpoint)
    with ais_loader(pipe.to_tuple("__key__").batched(30), num_workers=workers) as loader:
        for _ in range(3):
            (keys, ranges) = served.ranges(lambda: [key for (batch,) in loader for key in batch])
            assert sorted(keys) == sorted(served.known.keys)
            assert ranges <= 40 * max(1, workers), "a batch has samples of 24 shards"


def test_more_samples_are_looked_up_at_once_where_shards_are_many(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few at first, for an early first batch; then up to eight for each of the 60 shards."""
    looked_up: list[int] = []
    look_up = PlannedData.look_up

    def noting(self: PlannedData, run: Any, positions: Any, *more: Any) -> Any:
        looked_up.append(len(positions))
        return look_up(self, run, positions, *more)

    monkeypatch.setattr(PlannedData, "look_up", noting)
    for least, most, expected in (
        (32, 1 << 14, [30, 120, 480, 480, 90]),
        (32, 100, [30, *[120] * 9, 90]),
        (600, 1 << 14, [30, 120, 480, 570]),
    ):
        monkeypatch.setattr(planned, "_LEAST_AT_ONCE", least)
        monkeypatch.setattr(planned, "_MOST_AT_ONCE", most)
        looked_up.clear()
        pipe = AISSampleReader(served.known, shuffle="samples", cluster=served.cluster.endpoint)
        with ais_loader(pipe.to_tuple("__key__").batched(30)) as loader:
            assert sum(len(batch) for (batch,) in loader) == SHARDS * EACH
        assert looked_up == expected
    monkeypatch.setattr(planned, "_LEAST_AT_ONCE", 32)
    looked_up.clear()
    packs = AISSampleReader(served.known, shuffle="samples", cluster=served.cluster.endpoint)
    with ais_loader(packs.pack(length=[1] * SHARDS * EACH, budget=2)) as loader:
        assert sum(1 for _ in loader) == SHARDS * EACH / 2
    assert sum(looked_up) == SHARDS * EACH / 2
    assert max(looked_up) == 32, "packs, whose samples are looked up alone"


@pytest.mark.usefixtures("small_cache")
def test_samples_by_number_and_copies_of_the_index_work_with_copied_rows(served: Served) -> None:
    samples = SampleDataset(served.uri, cluster=served.cluster.endpoint)
    for count in range(60, 80):
        numbers = at_random(count)
        found = [sample["__key__"] for sample in samples.__getitems__(numbers)]
        assert found == [one.key for one in served.known.take(numbers)]
    assert copy_of(samples.index) is not None
    again = pickle.loads(pickle.dumps(samples))
    assert again[17]["__key__"] == samples[17]["__key__"] == "00-17"


def test_an_index_out_of_memory_that_is_read_only_works(served: Served) -> None:
    """As Ray hands over all large arrays of an object."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(served.open(), protocol=5, buffer_callback=buffers.append)
    assert buffers
    index = pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])
    assert index.take(at_random(300)) == served.known.take(at_random(300))


def all_columns(index: SampleIndex) -> list[Any]:
    sizes = field_sizes(index, "txt").tolist()
    batches = [batch.to_pylist() for batch in index.batches()]
    return [list(index.keys), sizes, batches, list(index.parts.entries())]


def test_going_through_all_rows_takes_few_requests(served: Served) -> None:
    for chosen in (None, [5, 6, 700, 1199]):
        index = served.open() if chosen is None else served.open().select(chosen)
        known = served.known if chosen is None else served.known.select(chosen)
        found, ranges = served.ranges(all_columns, index)
        assert found == all_columns(known)
        assert ranges <= 2
