"""Requests of samples that are adjacent in a shard."""

from __future__ import annotations

import io
import tarfile
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import SampleIndex
from torchdata_ais.errors import SampleError, SampleIndexError
from torchdata_ais.reading import requests
from torchdata_ais.reading.by_index import IndexedReader, run_in
from torchdata_ais.reading.requests import Wanted, chunks_in, parts_of, requests_for
from torchdata_ais.reading.runs import Run, whole_runs
from torchdata_ais.store import StoreOptions
from torchdata_ais.tar import TarReader
from torchdata_ais.testing import example_shards


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SampleIndex:
    return SampleIndex.build(example_shards(tmp_path_factory.mktemp("shards"), (6,)))


def ranges(*places: tuple[int, int], index: SampleIndex) -> list[tuple[int, int, list[int]]]:
    """Return start, length and samples of the requests for ranges of the first shard."""
    reference: Any = index.take([0])[0]
    wanted = [Wanted(reference._replace(start=start, size=size)) for start, size in places]
    return [(one.start, one.length, one.wanted) for one in requests_for(wanted)]


def test_a_gap_is_read_if_it_is_no_larger_than_what_is_wanted(index: SampleIndex) -> None:
    assert ranges((0, 1000), (2000, 500), index=index) == [(0, 2500, [0, 1])]
    assert ranges((0, 1000), (2001, 500), index=index) == [(0, 1000, [0]), (2001, 500, [1])]


def test_a_range_within_another_leaves_it_whole(index: SampleIndex) -> None:
    assert ranges((0, 4000), (500, 100), index=index) == [(0, 4000, [0, 1])]
    assert ranges((0, 4000), (500, 100), (3900, 600), index=index) == [(0, 4500, [0, 1, 2])]


def test_what_is_wanted_first_is_requested_first(index: SampleIndex) -> None:
    assert [one[2] for one in ranges((900_000, 10), (0, 10), (450_000, 10), index=index)] == [[0], [1], [2]]


def chunks(*places: tuple[int, int], index: SampleIndex) -> list[int]:
    """Return how many samples the chunks have, of ranges of the first shard, for chunks of 8,000 bytes."""
    reference: Any = index.take([0])[0]
    wanted = [Wanted(reference._replace(start=start, size=size)) for start, size in places]
    found = [len(chunk) for chunk in chunks_in([wanted], 4 * 8000)]
    assert sum(found) == len(places)
    return found


def adjacent(start: int, count: int) -> list[tuple[int, int]]:
    return [(start + 1000 * number, 1000) for number in range(count)]


BEFORE = [(10_000_000 + 2000 * number, 1000) for number in range(1 + 2 + 4)]  # after these, chunks are large


@pytest.mark.parametrize(("count", "cut"), [(3, [8]), (4, [4, 5]), (8, [8, 1]), (10, [10, 1]), (11, [10, 2])])
def test_a_long_run_of_adjacent_samples_ends_its_chunk(
    index: SampleIndex, count: int, cut: list[int]
) -> None:
    after = [(90_000 + 2000 * number, 1000) for number in range(sum(cut) - count)]
    assert chunks(*BEFORE, *adjacent(0, count), *after, index=index) == [1, 2, 4, *cut]


def test_a_run_that_does_not_fit_begins_the_next_chunk(index: SampleIndex) -> None:
    """The end of a shard must not cut all runs after it in two requests."""
    assert chunks(*BEFORE, (90_000, 1000), *adjacent(0, 7), index=index) == [1, 2, 4, 8]
    assert chunks(*BEFORE, (90_000, 1000), *adjacent(0, 8), index=index) == [1, 2, 4, 1, 8]
    assert chunks(*BEFORE, (90_000, 1000), *adjacent(0, 12), index=index) == [1, 2, 4, 1, 10, 2]
    for size, cut in ((5000, [1, 6]), (5001, [6, 1]), (30_000, [6, 1])):  # it makes no chunk too large
        assert chunks(*BEFORE, (90_000, 1000), *adjacent(0, 5), (5000, size), index=index) == [1, 2, 4, *cut]
    runs = [adjacent(100_000 * number, count) for number, count in enumerate([3, 8, 8, 8])]
    assert chunks(*BEFORE, *chain(*runs), index=index) == [1, 2, 4, 3, 8, 8, 8]
    short = [*adjacent(0, 3), *adjacent(50_000, 5), *adjacent(90_000, 2)]
    assert chunks(*BEFORE, *short, index=index) == [1, 2, 4, 8, 2]


def test_parts_of_a_range_are_whole_samples(index: SampleIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_PART", 1000)

    def parts(*places: tuple[int, int]) -> list[tuple[int, int, list[int]]]:
        reference: Any = index.take([0])[0]
        chunk = [Wanted(reference._replace(start=start, size=size)) for start, size in places]
        (request,) = requests_for(chunk)
        return [(one.start, one.length, one.wanted) for one in parts_of(request, chunk)]

    assert parts((7, 400), (407, 600), (1007, 1), (1008, 2000), (3008, 5)) == [
        (7, 1000, [0, 1]), (1007, 1, [2]), (1008, 2000, [3]), (3008, 5, [4]),
    ]  # fmt: skip
    assert parts((900, 500), (0, 600)) == [(0, 900, [1]), (900, 500, [0])], "with the gap after it"
    assert parts((0, 600), (0, 600), (600, 300)) == [(0, 900, [0, 1, 2])], "one is wanted twice"
    assert parts((0, 900), (800, 900), (1700, 9)) == [(0, 1700, [0, 1]), (1700, 9, [2])], "they overlap"


def test_samples_of_other_shards_or_sources_are_not_adjacent(index: SampleIndex) -> None:
    reference: Any = index.take([0])[0]
    for change, source in (({"number": 7}, 0), ({}, 1)):
        wanted = [Wanted(reference._replace(start=start, size=size)) for start, size in adjacent(0, 5)]
        wanted += [
            Wanted(reference._replace(start=start, size=size, **change), source)
            for start, size in adjacent(5000, 5)
        ]
        first = [Wanted(reference._replace(start=start, size=size)) for start, size in BEFORE]
        assert [len(chunk) for chunk in chunks_in([first, wanted], 4 * 8000)] == [1, 2, 4, 5, 5]


def test_bytes_of_another_sample_are_refused_without_a_hash(index: SampleIndex) -> None:
    first, second = index.take([0, 1])
    data = Path(first.shard.name).read_bytes()[first.start : first.start + first.size]
    unproven = first._replace(xxh64=None)
    assert run_in(data, unproven).key == first.key
    with pytest.raises(SampleIndexError, match="bytes are there of"):
        run_in(data[:-512], unproven)
    with pytest.raises(SampleIndexError):
        run_in(data, second._replace(xxh64=None, start=0, size=len(data), before=None))
    with pytest.raises(SampleIndexError, match="has the fields"):
        run_in(data, unproven._replace(sizes=tuple(size + 1 for size in first.sizes)))
    with pytest.raises(SampleIndexError, match="not those that were indexed"):
        run_in(data, first._replace(xxh64=1))


def test_proven_bytes_give_the_run_of_the_stream(tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    with tarfile.open(shard, "w") as tar:
        names = "a.JPG a.seg.PNG ._a.jpg b.jpg b.txt d.x/ü.jpg loose d.x/ü.cls e.jpg f.jpg f.cls z.jpg z.jpg"
        for name in names.split():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(name), 1.5
            tar.addfile(member, io.BytesIO(name.encode()[: len(name)]))
            if name == "b.txt":
                link = tarfile.TarInfo("b.png")
                link.type, link.linkname = tarfile.LNKTYPE, "b.jpg"
                tar.addfile(link)
    data = shard.read_bytes()
    runs = [run for run in whole_runs(TarReader([data]), url="") if run.key is not None]
    index = SampleIndex.build([str(shard)])
    for kind in (bytes, memoryview):
        for run, reference in zip(runs, index, strict=True):
            here = kind(data)[reference.start : reference.start + reference.size]
            for most in (None, 10_000, 1 << 20):
                found = run_in(here, reference, max_bytes=most)
                assert (found.key, found.members, found.offset) == (run.key, run.members, run.offset)
            with pytest.raises(SampleError, match="more than max_sample_bytes=1"):
                run_in(here, reference, max_bytes=1)


def test_an_index_that_names_other_fields_is_no_proof(index: SampleIndex) -> None:
    (first,) = index.take([0])
    data = Path(first.shard.name).read_bytes()[first.start : first.start + first.size]
    fields = [member.field for member in run_in(data, first).members]
    for wrong in (("wrong",) * len(fields), first.fields[:1], first.fields[::-1]):
        run = run_in(data, first._replace(fields=wrong))
        assert [member.field for member in run.members] == fields
    with pytest.raises(SampleIndexError, match="it is not there"):
        run_in(data, first._replace(key="other"))


def test_more_threads_fetch_while_the_consumer_waits_for_a_slow_link() -> None:
    fetching = IndexedReader([StoreOptions()], 1 << 20)._fetching
    counts = []
    for late, took_s in [(True, 0.1)] * 7 + [(True, 0.001)] + [(False, 0.1)] * 31:
        fetching._late = late
        fetching._weigh(1 << 20, took_s)
        counts.append(fetching._most)
    assert counts[:8] == [3, 4, 6, 9, 13, 16, 16, 16]
    assert counts[8:] == [16] * 15 + [8] * 8 + [4] * 4 + [2] * 4
    fetching._late = True
    fetching._weigh(1 << 20, (1 << 20) / 300e6)
    assert fetching._most == 2, "exactly as fast as a fast link"


def test_wrong_bytes_from_a_network_are_requested_once_more(
    index: SampleIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    (reference,) = index.take([1])
    data = Path(reference.shard.name).read_bytes()[reference.start : reference.start + reference.size]
    reader = IndexedReader([StoreOptions()], 1 << 20)
    remote = Wanted(reference._replace(shard=reference.shard._replace(name="ais://b/s.tar")))
    monkeypatch.setattr(reader._fetching, "alone", lambda wanted: data)
    found = reader._looked_at(remote, bytes(len(data)))
    assert isinstance(found, Run)
    assert (found.key, reader.refetched) == (reference.key, 1)
    monkeypatch.setattr(reader._fetching, "alone", lambda wanted: bytes(len(data)))
    assert isinstance(reader._looked_at(remote, bytes(len(data))), SampleIndexError)
    assert reader.refetched == 2
    assert isinstance(reader._looked_at(Wanted(reference), bytes(len(data))), SampleIndexError)
    assert reader.refetched == 2, "a file has no other bytes"
