"""URLs of a listing, packed: the same as they were listed, in memory that no process has of its own."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import random
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.graph import traverse_dps

from torchdata_ais import AISSourceLister, ais_loader
from torchdata_ais.pipes.checkpoint.shard_order import EpochURLs, listed_order
from torchdata_ais.ranks.listing import list_pipe
from torchdata_ais.store import PackedURLs
from torchdata_ais.store.objects.packed_urls import OURS, Row
from torchdata_ais.testing import write_shard
from torchdata_ais.urls import ObjectURL

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=OURS))
ROWS = st.lists(
    st.tuples(
        TEXTS, st.none() | st.integers(0, 1 << 50), st.none() | TEXTS, st.none() | st.just("0123456789abcdef")
    ),
    max_size=400,
)


def facts(url: ObjectURL) -> Row:
    return str(url), url.size, url.version, url.checksum


def many(count: int = 60_000) -> PackedURLs:
    """Return so many that they are worth a mapping."""
    draw = random.Random(3)
    rows = [
        (f"{OURS}/v1/objects/b/{n:07d}.tar", n, "1", f"{draw.getrandbits(64):016x}") for n in range(count)
    ]
    return PackedURLs(rows, "http://h:51080/")


@settings(max_examples=examples(50), deadline=None)
@given(ROWS, st.data())
def test_what_was_packed_comes_out(rows: list[Row], data: st.DataObject) -> None:
    urls = PackedURLs(rows)
    assert len(urls) == len(rows)
    assert [facts(url) for url in urls] == rows
    assert [facts(urls[number]) for number in range(len(rows))] == rows
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    assert [facts(url) for url in urls.part(start, stop)] == rows[start:stop]
    assert [facts(url) for url in pickle.loads(pickle.dumps(urls))] == rows


def test_the_endpoint_of_the_process_stands_in_front() -> None:
    urls = PackedURLs(
        [(f"{OURS}/v1/objects/b/s.tar", 1, None, None), ("file.tar", None, None, None)], "http://h/"
    )
    assert list(urls) == ["http://h/v1/objects/b/s.tar", "file.tar"]


@pytest.mark.parametrize("number", [-1, 60_000, 1 << 40])
def test_numbers_beyond_the_end_are_no_urls(number: int) -> None:
    with pytest.raises(IndexError):
        many()[number]


def private_kb(pid: str = "self") -> list[int]:
    """Return, of each mapping of packed URLs in this process, how much of it is its own."""
    found: list[int] = []
    inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            inside = "torchdata_ais.urls" in line
            if inside:
                found.append(0)
        elif inside and line.startswith(("Private_Clean", "Private_Dirty")):
            found[-1] += int(line.split()[1])
    return found


def look(urls: PackedURLs, answer: Connection) -> None:
    answer.send((sum(url.size or 0 for url in urls), private_kb()))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.ci)])
def test_other_processes_read_the_same_memory(method: str) -> None:
    urls = many()
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=look, args=(urls, theirs))
    process.start()
    try:
        assert ours.poll(60)
        assert ours.recv() == (sum(range(60_000)), [0])
    finally:
        process.join(60)
        assert process.exitcode == 0
        ours.close()
        theirs.close()


def test_the_memory_ends_with_its_last_user() -> None:
    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("torchdata_ais.urls")

    urls = many()
    copied = copy.deepcopy(urls)
    assert copied is urls
    assert mappings() == 1
    del urls, copied
    assert mappings() == 0


def test_torch_does_not_pickle_them_at_each_look_at_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = IterableWrapper([f"{n}.tar" for n in range(20_000)]).shuffle().load_tar()
    with list_pipe(pipe).on(pipe):
        monkeypatch.setattr(PackedURLs, "__reduce__", None)
        traverse_dps(pipe)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.integers(1, 300),
    st.lists(st.tuples(st.integers(1, 320), st.booleans()), max_size=2),
    st.integers(0, 1 << 63),
)
def test_promise_4_the_order_by_numbers_is_that_of_torchs_shuffle(
    count: int, shuffles: list[tuple[int, bool]], seed: int
) -> None:
    names = [f"{number}.tar" for number in range(count)]

    def chain(items: object) -> tuple[object, list[object]]:
        pipe = IterableWrapper(items, deepcopy=False)
        mixing = []
        for size, enabled in shuffles:
            pipe = pipe.shuffle(buffer_size=size).set_shuffle(enabled)
            mixing.append(pipe.set_seed(seed))
        return pipe, mixing

    expected, _ = chain(names)
    given_packed, _ = chain(PackedURLs((name, None, None, None) for name in names))
    order = listed_order(given_packed)
    assert order is not None
    epoch = EpochURLs(order)
    assert [str(epoch[position]) for position in range(len(epoch))] == list(expected)


def test_a_long_list_of_urls_is_read_as_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = [str(write_shard(tmp_path / f"{n}.tar", {f"{n}.cls": b"1"})) for n in range(5)]

    def epochs() -> list[list[str]]:
        wrapper = IterableWrapper(shards)
        pipe = wrapper.shuffle().load_tar().group_samples().extract_keys("__key__").batched(1)
        with ais_loader(pipe, seed=5) as loader:
            found = [[key for (keys,) in loader for key in keys] for _ in range(3)]
        assert wrapper.iterable is shards
        return found

    short = epochs()
    packed = []
    take = PackedURLs.__init__
    monkeypatch.setattr(
        PackedURLs, "__init__", lambda self, *given: (packed.append(self), take(self, *given))[1]
    )
    monkeypatch.setattr("torchdata_ais.ranks.listing._LONG", 5)
    assert epochs() == short
    assert packed


def test_nothing_listed_is_still_an_error(tmp_path: Path) -> None:
    pipe = AISSourceLister(str(tmp_path), allow_empty=True).load_tar()
    with list_pipe(pipe).on(pipe):
        assert list(pipe) == []
