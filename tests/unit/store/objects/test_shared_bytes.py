"""Memory of another process, taken in place of one's own: only if it is there and holds the same."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import random
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from torchdata_ais.store import PackedURLs
from torchdata_ais.store.objects.packed_urls import Row, SharedBytes


def rows(first: str = "s") -> list[Row]:
    draw = random.Random(3)
    return [(f"{first}-{n:07d}.tar", n, "1", f"{draw.getrandbits(64):016x}") for n in range(40_000)]


def inodes() -> list[str]:
    """Return which files without a name hold packed URLs that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split()[4] for line in lines if "torchdata_ais.urls" in line]


def descriptors() -> int:
    gc.collect()  # descriptors of earlier tests
    return len(list(Path("/proc/self/fd").iterdir()))


def pack_and_wait(given: list[Row], ours: Connection) -> None:
    urls = PackedURLs(given)
    ours.send((urls.place, inodes()))
    ours.recv()


class Neighbour:
    """Another process that has packed URLs."""

    def __init__(self, given: list[Row]) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=pack_and_wait, args=(given, theirs))
        self._process.start()
        theirs.close()
        self.place, self.inodes = self._pipe.recv()

    def end(self) -> None:
        if not self._pipe.closed:
            self._pipe.send(None)
            self._process.join(60)
            self._pipe.close()


Start = Callable[[list[Row]], Neighbour]


@pytest.fixture
def neighbour() -> Iterator[Start]:
    started: list[Neighbour] = []

    def start(given: list[Row]) -> Neighbour:
        started.append(Neighbour(given))
        return started[-1]

    yield start
    for one in started:
        one.end()


def test_the_memory_of_a_neighbour_is_read_and_outlives_it(neighbour: Start) -> None:
    there = neighbour(rows())
    urls = PackedURLs(rows())
    before = descriptors()
    assert inodes() != there.inodes
    urls.take_memory(there.place)
    assert inodes() == there.inodes  # and nothing of its own is left
    assert descriptors() == before
    there.end()
    assert [(str(url), url.size, url.version, url.checksum) for url in urls] == rows()


def test_urls_keep_the_endpoint_of_their_process(neighbour: Start) -> None:
    there = neighbour(rows("\0/v1/objects/b/s"))
    urls = PackedURLs(rows("\0/v1/objects/b/s"), "http://ours:51080/")
    urls.take_memory(there.place)
    assert inodes() == there.inodes
    assert urls[7] == "http://ours:51080/v1/objects/b/s-0000007.tar"


@pytest.mark.parametrize("where", ["other names", "gone", "pipe", "folder", "short", "nothing"])
def test_what_is_not_the_same_is_not_taken(neighbour: Start, tmp_path: Path, where: str) -> None:
    urls = PackedURLs(rows())
    own = inodes()
    place = str(tmp_path / "there")
    if where == "other names":
        place = neighbour(rows("t")).place
    elif where == "gone":
        there = neighbour(rows())
        place = there.place
        there.end()
    elif where == "pipe":
        os.mkfifo(place)
    elif where == "folder":
        place = str(tmp_path)
    elif where == "short":
        (tmp_path / "there").write_bytes(b"1")
    before = descriptors()
    urls.take_memory(place)
    assert inodes() == own
    assert descriptors() == before
    assert urls[39_999] == "s-0039999.tar"


def test_the_same_number_of_other_bytes_is_not_taken() -> None:
    one, other, same = (SharedBytes.of(letter * (1 << 20)) for letter in (b"a", b"b", b"a"))
    assert one.place is not None
    assert other.same_at(one.place) is None
    assert same.same_at(one.place) is not None


def test_few_urls_are_nowhere_to_be_found() -> None:
    assert PackedURLs(rows()[:10]).place is None


def test_a_copy_by_pickle_has_the_same_memory_while_it_lives() -> None:
    # A loader clones its reading service so, before workers that are spawned are sent the clone.
    urls = PackedURLs(rows())
    pickled = pickle.dumps(urls)
    before = inodes()
    copied = pickle.loads(pickled)
    assert set(inodes()) == set(before)
    assert list(copied.part(0, 3)) == list(urls.part(0, 3))
    del urls, copied
    assert inodes() == []
    late = pickle.loads(pickled)  # in another process, or later: memory of its own, which it may share again
    assert len(late) == 40_000
    assert len(inodes()) == 1
    assert late.place is not None
