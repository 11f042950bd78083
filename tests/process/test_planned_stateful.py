"""By index under torch's own loaders: `StatefulDataLoader` goes on in mid-epoch to the letter, on the same topology."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import run_forked
from torch.utils.data import DataLoader

from torchdata_ais import AISSampleReader, AISSourceLister, Mixture, SampleIndex, ais_loader
from torchdata_ais.errors import StateError
from torchdata_ais.loaders import as_dataset, load_state_dict, state_dict
from torchdata_ais.pipes.planned.batches import plan_of
from torchdata_ais.testing import example_shards

StatefulDataLoader = pytest.importorskip(
    "torchdata.stateful_dataloader", reason="torchdata has it from 0.8 on"
).StatefulDataLoader

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # of torchdata's own
]

COUNTS = (9, 0, 20, 1, 13)
TOTAL = sum(COUNTS)
STEPS = 11


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> list[SampleIndex]:
    shards = example_shards(tmp_path_factory.mktemp("stateful"), COUNTS)
    return [SampleIndex.build(shards[:3]), SampleIndex.build(shards[3:])]


def with_draw(sample: Any, rng: Any) -> Any:
    return {**sample, "draw": rng.getrandbits(60)}


def reader_of(source: Any, **how: Any) -> Any:
    reader = AISSampleReader(source, **{"shuffle": "samples", "seed": 4, **how}).decode()
    return reader.map_sample(with_draw, rng=True).to_tuple("cls", "draw")


def pipe_of(indexes: list[SampleIndex], batch: int = 4, **how: Any) -> Any:
    source = SampleIndex.concat(indexes) if "weights" not in how else mixed(indexes, how.pop("weights"))
    return reader_of(source, **how).batched(batch)


def mixed(indexes: list[SampleIndex], weights: tuple[int, int]) -> Mixture:
    return Mixture(dict(zip(indexes, weights, strict=True)), stop="all")


def rows(items: Any) -> list[list[tuple[int, int]]]:
    return [list(zip(one.tolist(), other.tolist(), strict=True)) for one, other in items]


def stateful(data: Any, workers: int, context: Any, **how: Any) -> Any:
    return StatefulDataLoader(
        data,
        num_workers=workers,
        multiprocessing_context=context if workers else None,
        **{"batch_size": None, **how},
    )


WORKERS = [
    ("fork", 0),
    ("fork", 2),
    pytest.param("fork", 1, marks=pytest.mark.ci),
    pytest.param("fork", 3, marks=pytest.mark.ci),
    pytest.param("spawn", 1, marks=pytest.mark.slow),
    pytest.param("spawn", 2, marks=pytest.mark.ci),
]


@pytest.mark.quick(2)
@pytest.mark.parametrize(("context", "workers"), WORKERS)
@pytest.mark.parametrize("set_epoch", [True, False])
def test_promise_5_a_stateful_loader_goes_on_in_mid_epoch_to_the_letter(
    indexes: list[SampleIndex], context: str, workers: int, set_epoch: bool
) -> None:
    def loader() -> Any:
        data = as_dataset(pipe_of(indexes), seed=3)
        if set_epoch:
            data.set_epoch(5)
        return stateful(data, workers, context)

    running = loader()
    items = iter(running)
    whole, states = [], []
    for item in items:
        whole += rows([item])
        states.append(json.loads(json.dumps(running.state_dict())))
    assert len(running) == len(whole) == STEPS
    assert sorted(number for batch in whole for number, _ in batch) == list(range(TOTAL))
    for step in (1, 2, 5, STEPS - 2, STEPS - 1) if workers == 0 else (3, STEPS - 1):
        resumed = loader()
        resumed.load_state_dict(states[step - 1])
        assert rows(resumed) == whole[step:], f"step {step}"


@pytest.mark.parametrize(("context", "workers"), [("fork", 0), pytest.param("fork", 2, marks=pytest.mark.ci)])
def test_promise_5_the_epochs_after_a_resume_are_those_after_the_epoch(
    indexes: list[SampleIndex], context: str, workers: int
) -> None:
    """The reader's own epochs: the order does not depend on the loader."""

    def loader(epoch: int) -> Any:
        pipe = pipe_of(indexes)
        reader: Any = plan_of(pipe)
        reader.set_epoch(epoch)
        return stateful(as_dataset(pipe), workers, context), reader

    whole = [rows(loader(epoch)[0]) for epoch in (2, 3)]
    running, _ = loader(2)
    assert rows(islice(running, 4)) == whole[0][:4]
    state = running.state_dict()
    resumed, reader = loader(0)
    resumed.load_state_dict(state)
    assert rows(resumed) == whole[0][4:]
    if workers:  # their readers are copies of this one
        reader.set_epoch(3)
    assert rows(resumed) == whole[1]


@pytest.mark.parametrize(
    ("workers", "keep"), [(0, False), (2, False), pytest.param(2, True, marks=pytest.mark.ci)]
)
def test_promise_5_a_state_taken_at_the_end_of_an_epoch_begins_the_next(
    indexes: list[SampleIndex], workers: int, keep: bool
) -> None:
    def loader() -> Any:
        data = as_dataset(pipe_of(indexes), seed=3)
        return stateful(data, workers, "fork", persistent_workers=keep), data

    running, data = loader()
    data.set_epoch(0)
    rows(running)
    state = running.state_dict()
    data.set_epoch(1)
    following = rows(running)
    resumed, data = loader()
    data.set_epoch(1)
    resumed.load_state_dict(state)
    assert rows(resumed) == following
    assert len(following) == STEPS


@pytest.mark.parametrize("counts", [(9, 3), pytest.param((1, 1, 20), marks=pytest.mark.ci)])
def test_promise_5_of_streams_a_worker_that_has_no_more_gives_nothing_anew(
    counts: tuple[int, ...], tmp_path: Path
) -> None:
    shards = example_shards(tmp_path, counts)

    def loader() -> Any:
        pipe = AISSourceLister(shards).load_tar().group_samples().decode().to_tuple("cls").batched(2)
        return stateful(as_dataset(pipe), 2, "fork")

    running = loader()
    whole, states = [], []
    for (batch,) in running:
        whole.append(batch.tolist())
        states.append(running.state_dict())
    for step in (2, len(whole) - 2, len(whole) - 1):
        resumed = loader()
        resumed.load_state_dict(states[step - 1])
        assert [batch.tolist() for (batch,) in resumed] == whole[step:], f"step {step}"


def test_promise_5_a_state_of_a_dataset_at_any_item_without_a_loader(indexes: list[SampleIndex]) -> None:
    def data() -> Any:
        return as_dataset(pipe_of(indexes, weights=(3, 1), tail="pad"), seed=1)

    plain = data()
    whole = [rows(plain) for _ in range(3)]
    running = data()
    rows(running)
    before = running.state_dict()
    for step in range(len(whole[1]) + 1):
        resumed = data()
        resumed.load_state_dict(before)
        assert resumed.state_dict() == before
        items = iter(resumed)
        head = rows(islice(items, step))
        state = resumed.state_dict()
        again = data()
        again.load_state_dict(state)
        assert again.state_dict() == state
        assert head + rows(again) == whole[1], f"step {step}"
        assert rows(again) == whole[2], f"the epoch after step {step}"
        assert len(json.dumps(state)) < 1000


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.ci)])
def test_promise_5_where_the_loader_makes_the_batches(indexes: list[SampleIndex], workers: int) -> None:
    def loader(size: int) -> Any:
        data = as_dataset(reader_of(SampleIndex.concat(indexes), batch_size=4), seed=2)
        data.set_epoch(1)
        return stateful(data, workers, "fork", batch_size=size)

    for size in (4, 3):  # of 3 samples: in the middle of what the plan laid down
        running = loader(size)
        whole, states = [], []
        for item in running:
            whole += rows([item])
            states.append(running.state_dict())
        assert sorted(number for batch in whole for number, _ in batch) == list(range(TOTAL))
        for step in (1, 6, len(whole) - 1):
            resumed = loader(size)
            resumed.load_state_dict(states[step - 1])
            assert rows(resumed) == whole[step:], f"{size} samples, step {step}"


def as_rank(rank: int, job: dict[str, Any]) -> Any:
    def loader() -> Any:
        data = as_dataset(pipe_of(job["indexes"]), seed=3)
        data.set_epoch(2)
        return stateful(data, job["workers"], "fork")

    whole = rows(loader())
    running = loader()
    head = rows(islice(running, 3))
    state = running.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    assert head + rows(resumed) == whole
    return whole, as_state(state, job["workers"])


def as_state(state: Any, workers: int) -> Any:
    """Return our part of a loader's state."""
    found: list[Any] = []

    def look(one: Any) -> None:
        if isinstance(one, dict):
            if one.get("format") == "torchdata_ais.loader":
                found.append(one)
            for value in one.values():
                look(value)

    look(state)
    assert len(found) == max(1, workers)
    return found[0]


@pytest.mark.ci
def test_promise_5_ranks_go_on_and_a_state_of_another_place_is_refused_by_name(
    indexes: list[SampleIndex], tmp_path: Path
) -> None:
    answers = run_forked(as_rank, 2, tmp_path, indexes=indexes, workers=2)
    assert all("value" in answer for answer in answers), answers
    given, states = zip(*(answer["value"] for answer in answers), strict=True)
    assert sorted(number for whole in given for batch in whole for number, _ in batch) == list(range(TOTAL))
    for rank, ranks, says in (
        (1, 2, "worker 0 of 2 of rank 0 of 2, this is worker 0 of 1 of rank 1 of 2"),
        (0, 1, "worker 0 of 2 of rank 0 of 2, this is worker 0 of 1 of rank 0 of 1"),
    ):
        data = as_dataset(pipe_of(indexes), seed=3, rank=rank, world_size=ranks)
        data.load_state_dict(states[0])
        with pytest.raises(StateError, match=says) as caught:
            next(iter(data))
        assert "ais_loader can change both" in caught.value.todo


def test_a_state_of_something_else_is_refused_and_named(indexes: list[SampleIndex]) -> None:
    data = as_dataset(pipe_of(indexes, weights=(1, 1)), seed=3)
    next(iter(data))
    state = data.state_dict()
    cases: list[tuple[Any, str]] = [
        (as_dataset(pipe_of(indexes, weights=(1, 1)), seed=4), "the seeds of dataset and reader"),
        (as_dataset(pipe_of(indexes, weights=(1, 1), seed=5), seed=3), "the seeds of dataset and reader"),
        (as_dataset(pipe_of(indexes, weights=(1, 2)), seed=3), "the digest of the weights"),
        (as_dataset(pipe_of(indexes[::-1], weights=(1, 1)), seed=3), "the digests of the sources"),
        (as_dataset(pipe_of(indexes), seed=3), "the order"),
        (as_dataset(pipe_of(indexes, weights=(1, 1), shuffle=None), seed=3), "the order"),
    ]
    for other, says in cases:
        with pytest.raises(StateError, match=f"(?i){says} was .* when the state was taken"):
            other.load_state_dict(state)
    larger = as_dataset(pipe_of(indexes, 5, weights=(1, 1)), seed=3)
    larger.load_state_dict(state)
    with pytest.raises(StateError, match="a global batch of 4, and this pipe makes 5"):
        next(iter(larger))
    with ais_loader(pipe_of(indexes, weights=(1, 1))) as loader:
        with pytest.raises(StateError, match="of one worker of as_dataset"):
            loader.load_state_dict(state)
        of_loader = loader.state_dict()
    with pytest.raises(StateError, match="of ais_loader, not of one worker"):
        data.load_state_dict(of_loader)
    for wrong in (None, {}, {**state, "runs": 3}, {**state, "share": [1, 1, 0, 1]}):
        with pytest.raises(StateError):
            data.load_state_dict(wrong)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*below .read_samples")
def test_a_state_that_would_not_say_where_it_stands_is_refused(indexes: list[SampleIndex]) -> None:
    index = indexes[0]
    for pipe, says in (
        (pipe_of(indexes).unbatched(), "unbatched"),
        (AISSampleReader(index).filter(bool), "filter"),
        (AISSampleReader(index, on_error="skip"), "may leave samples out"),
    ):
        data = as_dataset(pipe)
        data.state_dict()
        items = iter(data)
        next(items)
        with pytest.raises(StateError, match=f"The position in this epoch is not known: .*{says}"):
            data.state_dict()
    for bare in (lambda pipe: state_dict(pipe), lambda pipe: load_state_dict(pipe, {})):
        with pytest.raises(StateError, match="ais_loader"):
            bare(pipe_of(indexes))


def test_a_loader_without_states_is_as_it_was(indexes: list[SampleIndex]) -> None:
    loader = DataLoader(as_dataset(pipe_of(indexes)), batch_size=None, num_workers=2)
    for _ in range(2):
        assert sorted(number for batch in rows(loader) for number, _ in batch) == list(range(TOTAL))
