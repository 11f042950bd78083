"""Rows of samples of an index in a bucket: few requests, few bytes, whatever becomes of the copies."""

from __future__ import annotations

import logging
import os
import pickle
import tempfile
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest

from torchdata_ais import AISSampleReader, SampleDataset, SampleIndex, ais_loader
from torchdata_ais.errors import SampleIndexError
from torchdata_ais.index import field_sizes, stored
from torchdata_ais.index.stored import StoredIndex
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


@pytest.fixture
def served(ais_cluster: Any, ais_bucket: Any) -> Served:
    return Served(ais_cluster, ais_bucket)


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep no more than a block, so that all are read again and again."""
    monkeypatch.setattr(stored, "_KEPT_BYTES", 1)


def at_random(count: int) -> list[int]:
    return np.random.default_rng(count).permutation(SHARDS * EACH)[:count].tolist()


def part_of(index: SampleIndex) -> StoredIndex:
    return index.parts.stored[0]


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
    for number in range(SHARDS):
        assert index[number * EACH].number == number
    assert not part_of(index)._copies
    for number in range(SHARDS // 8 + 2):
        assert index[number * EACH].number == number
    assert part_of(index)._copies


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize("damage", ["changed", "cut", "unreadable"])
def test_a_damaged_copy_is_not_believed(served: Served, damage: str) -> None:
    index = served.open()
    for count in range(200, 206):
        index.take(at_random(count))
    ((name, copy),) = part_of(index)._copies.items()
    assert copy is not None
    if damage == "changed":
        os.pwrite(copy.fileno(), b"\xff" * 100, part_of(index).shard(3).start + 50)
    elif damage == "cut":
        os.ftruncate(copy.fileno(), part_of(index).shard(3).start + 50)
    else:
        folder = os.open(tempfile.gettempdir(), os.O_RDONLY)
        os.dup2(folder, copy.fileno())
        os.close(folder)
    for count in range(300, 310):
        assert index.take(at_random(count)) == served.known.take(at_random(count))
    assert part_of(index)._copies == {name: None}


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize(
    ("lack", "says"), [("disk", "No space left"), ("size", "more than 0 MiB")], ids=["full disk", "too large"]
)
def test_without_a_copy_rows_come_from_the_bucket_and_a_warning_says_so(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lack: str, says: str
) -> None:
    def full(file: Any, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    if lack == "disk":
        monkeypatch.setattr(stored, "write_all", full)
    else:
        monkeypatch.setattr(stored, "_MOST_COPIED", 1)
    index = served.open()
    with caplog.at_level(logging.WARNING, "torchdata_ais"):
        for count in range(200, 220):
            assert index.take(at_random(count)) == served.known.take(at_random(count))
    (text,) = (record.getMessage() for record in caplog.records)
    assert says in text
    assert "index_dir=" in text


@pytest.mark.usefixtures("small_cache")
def test_a_block_that_was_valid_once_is_compared_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksum, though not what it says."""
    monkeypatch.setattr(stored, "_MOST_COPIED", 1)
    index = served.open()
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


@pytest.mark.usefixtures("small_cache")
def test_samples_by_number_and_copies_of_the_index_work_with_copied_rows(served: Served) -> None:
    samples = SampleDataset(served.uri, cluster=served.cluster.endpoint)
    for count in range(60, 80):
        numbers = at_random(count)
        found = [sample["__key__"] for sample in samples.__getitems__(numbers)]
        assert found == [one.key for one in served.known.take(numbers)]
    again = pickle.loads(pickle.dumps(samples))
    assert again[17]["__key__"] == samples[17]["__key__"] == "00-17"


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
