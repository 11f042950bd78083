"""How much work a sample costs, counted and not timed: a change that makes reading slower shows here on any machine.

Counted are the functions written in Python that are entered or gone on with, in the thread that reads: what C does in
a call differs between versions of Python, this does not. Each case runs with two sizes, and the difference counts, so
that what happens once a run or once a shard does not matter, and work that grows with what was read before shows.

The limits are promises with head room, half as much again as was needed when they were made. What waits for another
thread or looks at a clock calls more functions on a busy machine, so the least of a few tries counts.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_ais import AISFileLoader, SampleDataset, SampleDecoder, SampleIndex, ais_loader, as_dataset
from torchdata_ais.loaders import engine
from torchdata_ais.local import LocalCluster
from torchdata_ais.store import StoreOptions, open_blocks, read_batch
from torchdata_ais.tar import TarReader
from torchdata_ais.testing import shard_bytes, write_shard
from torchdata_ais.workers import memory
from torchdata_ais.workers.pickling import pack, unpack

FIELDS = ("jpg", "cls", "json")
FEW, MANY = 1000, 3000


def members(samples: int) -> dict[str, bytes]:
    return {f"{number:06d}.{field}": b"7" * 400 for number in range(samples) for field in FIELDS}


def calls(run: Callable[[], Any]) -> int:
    """Return how many functions of Python are entered while `run` runs, in this thread."""
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def check_least(name: str, count: Callable[[], float]) -> None:
    """Assert that one of a few tries needs no more calls than the limit of that name."""
    found = []
    for _ in range(5):
        found.append(count())
        if found[-1] <= LIMITS[name]:
            return
    assert min(found) <= LIMITS[name], found


def per_sample(make: Callable[[int], Iterable[Any]]) -> float:
    def drain(samples: int) -> Callable[[], None]:
        items = make(samples)

        def run() -> None:
            for _ in items:
                pass

        return run

    drain(FEW)()  # what is filled or imported at first use
    return (calls(drain(MANY)) - calls(drain(FEW))) / (MANY - FEW)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    folder = tmp_path_factory.mktemp("shards")
    return {samples: str(write_shard(folder / f"{samples}.tar", members(samples))) for samples in (FEW, MANY)}


def test_calls_per_member_of_the_tar_reader() -> None:
    archives = {samples: shard_bytes(members(samples)) for samples in (FEW, MANY)}

    def reader(samples: int) -> Iterable[Any]:
        data = archives[samples]
        return TarReader([data[at : at + (1 << 20)] for at in range(0, len(data), 1 << 20)])

    check_least("tar reader, a member", lambda: per_sample(reader) / len(FIELDS))


CHAINS: dict[str, Callable[[Any], Any]] = {
    "load_tar and group_samples": lambda pipe: pipe.group_samples(),
    "and to_tuple": lambda pipe: pipe.group_samples().to_tuple("jpg", "cls"),
    "and batched": lambda pipe: pipe.group_samples().to_tuple("jpg", "cls").batched(50),
    "and shuffled": lambda pipe: pipe.group_samples().shuffled(100).to_tuple("jpg", "cls").batched(50),
}

LIMITS = {
    "tar reader, a member": 8,
    "load_tar and group_samples": 45,
    "and to_tuple": 52,
    "and batched": 54,
    "and shuffled": 63,
    "decode of two fields": 53,
    "a block": 21,
    "a range of a batch": 66,
    "a batch of a loader": 26,
    "a batch of a loader with a trace": 130,
    "a state of a worker's step": 68,
    "a state of a dataset": 78,
    "a sample by its number": 600,
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", CHAINS)
def test_calls_per_sample_of_a_chain(name: str, shards: dict[int, str]) -> None:
    check_least(name, lambda: per_sample(lambda samples: CHAINS[name](AISFileLoader([shards[samples]]))))


def test_calls_per_sample_of_decode(shards: dict[int, str]) -> None:
    samples = list(
        AISFileLoader([shards[MANY]], select_files=lambda name: not name.endswith("jpg")).group_samples()
    )
    check_least("decode of two fields", lambda: per_sample(lambda number: SampleDecoder(samples[:number])))


@pytest.mark.parametrize(
    "trace", [False, True], ids=["a batch of a loader", "a batch of a loader with a trace"]
)
def test_calls_per_batch_of_a_loader(trace: bool, request: pytest.FixtureRequest) -> None:
    """Without a trace not a single call more; the batches are made before, so that only the loader's calls count."""
    few, many = list(range(FEW)), list(range(MANY))

    def run(items: list[int]) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nothing splits these items
            loader = ais_loader(IterableWrapper(items), trace=trace)

        def drain() -> None:
            for _ in loader:
                pass

        with loader:
            drain()
            return calls(drain)

    check_least(request.node.callspec.id, lambda: (run(many) - run(few)) / (MANY - FEW))


def test_calls_per_state_of_a_workers_step(shards: dict[int, str]) -> None:
    chain = AISFileLoader([shards[FEW]]).group_samples().shuffled(100).to_tuple("jpg", "cls").batched(50)
    tail = engine._Tail(chain, stateful=True)
    items = iter(tail)
    next(items)
    assert tail._ais_envelope() is not None
    check_least("a state of a worker's step", lambda: calls(tail._ais_envelope))


def test_calls_per_state_of_a_dataset(shards: dict[int, str]) -> None:
    dataset = as_dataset(AISFileLoader([shards[FEW]]).group_samples().shuffled(100).batched(50))
    items = iter(dataset)
    next(items)
    dataset.state_dict()
    check_least("a state of a dataset", lambda: calls(dataset.state_dict))


def test_calls_per_sample_by_its_number(shards: dict[int, str]) -> None:
    dataset = SampleDataset(SampleIndex.build(shards[FEW], method="read"))
    assert dataset[1]["__key__"] == "000001"
    check_least("a sample by its number", lambda: calls(lambda: dataset[5]))


def test_calls_per_block_of_a_body(shards: dict[int, str]) -> None:
    """Between the socket and the reader of a shard, whichever of the two threads reads."""
    size = 4096

    def blocks(number: int) -> Iterable[bytes]:
        options = StoreOptions(endpoint=cluster.endpoint, block_bytes=size, verify=True)
        return open_blocks(f"ais://b/{number}.bin", options)

    with LocalCluster() as cluster:
        bucket = cluster.client().bucket("b").create()
        for number in (FEW, MANY):
            bucket.object(f"{number}.bin").get_writer().put_content(b"7" * (number * size))
        check_least("a block", lambda: per_sample(blocks))


def test_calls_per_range_of_a_batch() -> None:
    """From the request to the bytes of each range."""
    few, many = 50, 200

    def run(ranges: int) -> int:
        wanted = [(f"ais://b/{number % 4}.bin", number, 4096) for number in range(ranges)]
        return calls(lambda: read_batch(wanted, StoreOptions(endpoint=cluster.endpoint), lambda *_: None))

    with LocalCluster() as cluster:
        bucket = cluster.client().bucket("b").create()
        for number in range(4):
            bucket.object(f"{number}.bin").get_writer().put_content(b"7" * 8192)
        run(few)
        check_least("a range of a batch", lambda: (run(many) - run(few)) / (many - few))


def test_blocks_are_read_whole(shards: dict[int, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A system call for a block, not one for a header or a member."""
    sizes: list[int] = []
    read = os.read

    def noted(fd: int, size: int) -> bytes:
        data = read(fd, size)
        if len(data) > 512:
            sizes.append(len(data))
        return data

    monkeypatch.setattr(os, "read", noted)
    samples = sum(1 for _ in AISFileLoader([shards[MANY]]).group_samples())
    size = Path(shards[MANY]).stat().st_size
    assert samples == MANY
    assert sum(sizes) == size
    assert len(sizes) == -(-size // (1 << 20))


def test_a_thread_takes_several_samples_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[int] = []
    submit = ThreadPoolExecutor.submit

    def noted(pool: ThreadPoolExecutor, *arguments: Any) -> Any:
        submitted.append(1)
        return submit(pool, *arguments)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", noted)
    assert len(list(SampleDecoder([{"__key__": str(n), "cls": b"1"} for n in range(400)], threads=2))) == 400
    assert len(submitted) == 50


def test_one_file_of_memory_serves_an_epoch_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = memory._anonymous_file
    monkeypatch.setattr(memory, "_anonymous_file", lambda: made.append(1) or make())  # type: ignore[func-returns-value]
    lender = memory.Lender()
    for number in range(100):
        assert unpack(pack(torch.full((100_000,), number), lender))[-1] == number
        memory.give_back_done()
    lender.close()
    assert len(made) == 1
