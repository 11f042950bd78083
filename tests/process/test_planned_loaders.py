"""By index: one order under every loader and start method; ranks that were given different things all end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from forked_ranks import free_port, run_forked
from torch.utils.data import DataLoader

from torchdata_ais import SampleIndex, ais_loader
from torchdata_ais.dataloader2 import DataLoader2
from torchdata_ais.index import Mixture
from torchdata_ais.loaders import MultiProcessingReadingService, as_dataset
from torchdata_ais.pipes import AISSampleReader
from torchdata_ais.pipes.planned.batches import plan_of
from torchdata_ais.testing import example_shards

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

COUNTS = (9, 0, 20, 1, 13)
TOTAL = sum(COUNTS)
BATCH = 4
SEED = 21


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return example_shards(tmp_path_factory.mktemp("planned_loaders"), COUNTS)


def with_draw(sample: Any, rng: Any) -> Any:
    return {**sample, "draw": rng.getrandbits(60)}


def pipe_of(shards: Any, batch: int = BATCH, **how: Any) -> Any:
    index = SampleIndex.build(shards) if isinstance(shards, list) else shards
    reader = AISSampleReader(index, **{"shuffle": "samples", "seed": SEED, **how}).decode()
    return reader.map_sample(with_draw, rng=True).to_tuple("cls", "draw").batched(batch)


def rows(items: Any) -> list[list[tuple[int, int]]]:
    return [list(zip(one.tolist(), other.tolist(), strict=True)) for one, other in items]


def under(loader: str, pipe: Any, epochs: int, workers: int, context: Any, **ranks: Any) -> list[Any]:
    """Return the epochs as a loader gives them, in the order of the reader's own seed."""
    if loader == "ais_loader":
        with ais_loader(
            pipe, seed=SEED, num_workers=workers, multiprocessing_context=context, **ranks
        ) as running:
            return [rows(running) for _ in range(epochs)]
    found = []
    reader: Any = plan_of(pipe)
    for epoch in range(epochs):
        reader.set_epoch(epoch)
        if loader == "service":
            service = MultiProcessingReadingService(workers, context, **ranks)
            with DataLoader2(pipe, reading_service=service) as running:
                if "rank" in ranks:
                    running.seed(3)
                found.append(rows(running))
        else:
            data = as_dataset(pipe, seed=epoch + 5, **ranks) if loader == "as_dataset" else pipe
            running = DataLoader(
                data,
                batch_size=None,
                num_workers=workers,
                multiprocessing_context=context if workers else None,
            )
            length = len(running)
            found.append(rows(running))
            assert len(found[-1]) == length
    return found


LOADERS = ["ais_loader", "service", "as_dataset", "torch"]


@pytest.mark.quick(4)
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("context", "workers"),
    [
        ("fork", 0),
        ("fork", 2),
        pytest.param("fork", 3, marks=pytest.mark.ci),
        pytest.param("spawn", 1, marks=pytest.mark.ci),
        pytest.param("forkserver", 2, marks=pytest.mark.slow),
    ],
)
def test_promise_4_one_order_under_every_loader_and_start_method(
    shards: list[str], loader: str, context: str, workers: int
) -> None:
    plain = pipe_of(shards)
    expected = [rows(plain), rows(plain)]
    assert expected[0] != expected[1]
    assert sorted(number for batch in expected[0] for number, _ in batch) == list(range(TOTAL))
    assert under(loader, pipe_of(shards), 2, workers, context) == expected


@pytest.mark.quick(1)
@pytest.mark.parametrize("loader", ["service", "as_dataset", "torch"])
def test_promise_3_the_seed_of_a_loader_orders_all_workers_alike(shards: list[str], loader: str) -> None:
    """Nobody has said set_epoch: each epoch has an order of its own, and every sample once."""
    pipe = pipe_of(shards)
    if loader == "service":
        with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as running:
            epochs = [rows(running) for _ in range(2)]
    else:
        data = as_dataset(pipe) if loader == "as_dataset" else pipe
        epochs = [rows(DataLoader(data, batch_size=None, num_workers=2)) for _ in range(2)]
    for epoch in epochs:
        assert sorted(number for batch in epoch for number, _ in batch) == list(range(TOTAL))
    assert epochs[0] != epochs[1]


def as_rank(rank: int, job: dict[str, Any]) -> Any:
    return under(job["loader"], pipe_of(job["shards"]), 1, job["workers"], "fork")


@pytest.mark.quick(2)
@pytest.mark.parametrize("loader", LOADERS)
def test_promise_3_ranks_under_every_loader_share_the_same_global_batches(
    shards: list[str], loader: str, tmp_path: Path
) -> None:
    plain = pipe_of(shards, 2 * BATCH)
    (expected,) = [rows(plain)]
    workers = 1 if loader == "torch" else 2
    answers = run_forked(as_rank, 2, tmp_path, loader=loader, workers=workers, shards=shards)
    assert all("value" in answer for answer in answers), answers
    first, second = (answer["value"][0] for answer in answers)
    assert len(first) == len(second) == len(expected)
    for one, other, whole in zip(first, second, expected, strict=True):
        assert one + other == whole


# Ranks that disagree


def disagree(rank: int, job: dict[str, Any]) -> Any:
    pipe = job["make"](job["shards"], rank)
    given: dict[str, Any] = {}
    if job["over"] == "tcp":
        store = dist.TCPStore(
            "127.0.0.1", job["port"], job["ranks"], rank == 0, timeout=timedelta(seconds=60)
        )
        given = {"rank": rank, "world_size": job["ranks"], "store": store}
    try:
        if job["loader"] == "as_dataset":
            return rows(as_dataset(pipe, seed=0, **given))
        with ais_loader(pipe, rank_timeout_s=60, **given, **job["how"](rank)) as loader:
            return rows(loader)
    finally:
        if given:  # the process in which the store lives ends last
            store.set(f"done/{rank}", "1")
            if rank == 0:
                store.wait([f"done/{other}" for other in range(job["ranks"])])


def nothing(rank: int) -> dict[str, Any]:
    return {}


def same_pipe(shards: list[str], rank: int) -> Any:
    return pipe_of(shards)


def other_index(shards: list[str], rank: int) -> Any:
    return pipe_of(shards[: len(shards) - rank])


def other_batch(shards: list[str], rank: int) -> Any:
    return pipe_of(shards, BATCH + rank)


def other_order(shards: list[str], rank: int) -> Any:
    return pipe_of(shards, shuffle="runs" if rank else "samples")


def other_seed(shards: list[str], rank: int) -> Any:
    return pipe_of(shards, seed=rank)


def other_weights(shards: list[str], rank: int) -> Any:
    one, two = SampleIndex.build(shards[:1]), SampleIndex.build(shards[2:])
    return pipe_of(Mixture({one: 1, two: 1 + 2 * rank}))


DIFFERENCES: list[Any] = [
    (same_pipe, lambda rank: {"seed": rank}, ["seed=0", "seed=1"], "ais_loader"),
    (
        same_pipe,
        lambda rank: {"global_batch": 8 + 2 * rank},
        ["global_batch=8", "global_batch=10"],
        "ais_loader",
    ),
    (
        same_pipe,
        lambda rank: {"tail": "pad" if rank else "drop"},
        ["tail='drop'", "tail='pad'"],
        "ais_loader",
    ),
    (other_index, nothing, ["43 samples", "30 samples"], "ais_loader"),
    (other_index, nothing, ["43 samples", "30 samples"], "as_dataset"),
    (other_batch, nothing, ["global_batch=8", "global_batch=10"], "ais_loader"),
    (other_batch, nothing, ["batches of 4", "batches of 5"], "as_dataset"),
    (other_order, nothing, ["shuffle='samples'", "shuffle='runs'"], "ais_loader"),
    (other_seed, nothing, ["seed=0", "seed=1"], "as_dataset"),
    (other_weights, nothing, ["weights"], "ais_loader"),
]


@pytest.mark.quick(3)
@pytest.mark.parametrize("store", ["tcp", pytest.param("group", marks=pytest.mark.ci)])
@pytest.mark.parametrize(("make", "how", "says", "loader"), DIFFERENCES)
def test_ranks_that_disagree_all_end_with_the_difference(
    shards: list[str], tmp_path: Path, store: str, make: Any, how: Any, says: list[str], loader: str
) -> None:
    job = {"make": make, "how": how, "loader": loader, "over": store, "port": free_port(), "shards": shards}
    answers = run_forked(disagree, 2, tmp_path, group=store == "group", **job)
    for answer in answers:
        assert answer.get("kind") == "UsageError", answer
        assert "rank 1 differs from rank 0" in answer["error"]
        for text in says:
            assert text in answer["error"]


def said_by_two_ranks(
    shards: list[str], seed: Callable[[int], int], states: Sequence[dict[str, Any]] = ()
) -> dict[int, str]:
    """Return what each of two threads as ranks is told when they read a whole epoch with these seeds and states."""
    store = dist.HashStore()
    said: dict[int, str] = {}

    def be_rank(rank: int) -> None:
        try:
            with ais_loader(
                pipe_of(shards), seed=seed(rank), rank=rank, world_size=2, store=store, rank_timeout_s=60
            ) as loader:
                if states:
                    loader.load_state_dict(states[rank])
                list(loader)
        except ValueError as error:
            said[rank] = str(error)

    threads = [threading.Thread(target=be_rank, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(said) == [0, 1]
    return said


def test_threads_as_ranks_over_a_hash_store_are_told_of_another_seed(shards: list[str]) -> None:
    said = said_by_two_ranks(shards, lambda rank: rank)
    assert all("seed=0" in text and "seed=1" in text for text in said.values()), said


def test_ranks_that_load_states_of_other_steps_are_told_the_steps(shards: list[str]) -> None:
    """One that had loaded an older checkpoint would take more steps than the others, and they would wait for it."""
    states = []
    with ais_loader(pipe_of(shards, 2 * BATCH), seed=3) as loader:
        for _ in zip(range(2), loader):  # noqa: B905 - two of the batches
            states.append(loader.state_dict())

    said = said_by_two_ranks(shards, lambda _: 3, states)
    assert all("step=1" in text and "step=2" in text for text in said.values()), said
