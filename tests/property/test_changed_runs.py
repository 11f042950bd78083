"""Runs by index that change on their way, with and without resumes, against the rules of rounds and epochs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from helpers.examples import examples
from helpers.planned_runs import mixture, numbers, pipe_over, source_shard
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from torchdata_ais import SampleIndex, Schedule, ais_loader
from torchdata_ais.errors import StateError, UsageError

SIZES = (7, 19, 33, 12)
CHANGES = ("weights", "batch", "set_schedule", "skip", "sources")
STEPS_AT_END = 50


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[SampleIndex]:
    folder = tmp_path_factory.mktemp("changed")
    return [SampleIndex.build(source_shard(folder, number, size)) for number, size in enumerate(SIZES)]


@dataclass
class Changing:
    """A run whose loader is replaced at changes, and, with `resumes`, in between."""

    sources: list[SampleIndex]
    random: Random
    how: dict[str, Any]
    weights: list[int]
    batch: int
    schedule: Schedule | None
    resumes: Random | None = None
    batches: list[tuple[int, list[int]]] = field(default_factory=list)
    states: list[str] = field(default_factory=list)

    def open(self, state: Any = None, allow: Any = ()) -> None:
        if state is not None:
            self.loader.close()
        self.loader = ais_loader(
            pipe_over(mixture(self.sources, *self.weights, stop=self.how["stop"]), 3, **self.how["pipe"]),
            schedule=self.schedule,
            seed=self.how["seed"],
            global_batch=None if self.schedule is not None and self.schedule.batches else self.batch,
        )
        if state is not None:
            self.loader.load_state_dict(state, allow=allow)
        self._coming = self._all()

    def _all(self) -> Iterator[list[int]]:
        while True:
            for batch in self.loader:
                yield numbers(batch)

    def advance(self, steps: int) -> None:
        while steps:
            some = steps if self.resumes is None else min(steps, self.resumes.randint(1, 6))
            for _ in range(some):
                batch = next(self._coming)
                self.batches.append((self.loader.epoch, batch))
                self.states.append(json.dumps(self.loader.state_dict()))
            steps -= some
            if self.resumes is not None:
                self.open(json.loads(self.states[-1]))

    def change(self, kind: str) -> None:
        random, state = self.random, self.loader.state_dict()
        there = [number for number, weight in enumerate(self.weights) if weight]
        if kind == "skip":
            self.loader.skip(random.randint(1, 3), "defer")
        elif kind == "set_schedule":
            batches = {0: random.randint(2, 6)} if random.random() < 0.7 else None
            weights = {0: [random.randint(1, 6) for _ in there]} if random.random() < 0.7 else None
            self.loader.set_schedule(Schedule(global_batch=batches, weights=weights))
        elif kind == "weights":
            for number in there:
                self.weights[number] = random.randint(1, 6)
            if self.schedule is not None:
                row = {0: [self.weights[number] for number in there]}
                self.schedule = Schedule(weights=row, global_batch={0: random.randint(2, 6)})
            self.open(state, {"weights", "schedule", "batch"})
        elif kind == "batch":
            self.batch = random.randint(2, 6)
            self.open(state, {"batch"})
        else:
            number = random.randrange(len(SIZES))
            self.weights[number] = 0 if number in there and len(there) > 1 else random.randint(1, 6)
            self.open(state, {"sources", "weights", "schedule", "batch"})


def repeats(values: list[int]) -> int:
    return len(values) - len(set(values))


@pytest.mark.quick(1)
@pytest.mark.parametrize("epoch_steps", [None, 5])
@given(
    stop=st.sampled_from(["first", "all"]),
    tail=st.sampled_from(["short", "short", "drop"]),
    there=st.integers(1, len(SIZES)),
    changes=st.lists(st.tuples(st.integers(1, 9), st.sampled_from(CHANGES)), min_size=1, max_size=5),
    scheduled=st.booleans(),
    seed=st.integers(0, 1 << 16),
)
@example(  # the same epoch changes twice
    stop="first",
    tail="short",
    there=4,
    changes=[(2, "set_schedule"), (5, "set_schedule"), (6, "weights"), (5, "weights")],
    scheduled=False,
    seed=60,
)
@example(  # a source goes and comes back
    stop="first", tail="short", there=4, changes=[(3, "sources"), (4, "sources")], scheduled=False, seed=60
)
@settings(max_examples=examples(60), deadline=None)
def test_promise_3_rounds_and_epochs_hold_through_any_changes_and_resumes(
    sources: list[SampleIndex],
    epoch_steps: int | None,
    stop: str,
    tail: Any,
    there: int,
    changes: list[tuple[int, str]],
    scheduled: bool,
    seed: int,
) -> None:
    """Each sample once in a round; in an epoch at most or at least once; the same after a resume at any step."""
    random = Random(seed)
    weights = [random.randint(1, 6) if number < there else 0 for number in range(len(SIZES))]
    with_sources = not scheduled and any(kind == "sources" for _, kind in changes)
    schedule = None
    if scheduled:
        later = {random.randint(1, 4): [random.randint(1, 6) for _ in range(there)]}
        schedule = Schedule(
            weights={0: weights[:there], **later}, global_batch={0: 3, random.randint(1, 9): 5}
        )
    how = {"stop": stop, "seed": seed, "pipe": {"epoch_steps": epoch_steps, "tail": tail}}
    runs = []
    for resumes in (None, Random(seed)):
        run = Changing(
            sources,
            Random(seed),
            how,
            list(weights),
            random.randint(2, 6) if not runs else runs[0][1],
            schedule,
        )
        first, run.resumes = run.batch, resumes
        run.open()
        try:
            for steps, kind in changes:
                run.advance(steps)
                if kind != "sources" or with_sources:
                    run.change(kind)
            run.advance(STEPS_AT_END)
        except UsageError as error:
            if "larger than the epoch" not in str(error):
                raise
            event("refused")
            return
        finally:
            run.loader.close()
        runs.append((run, first))
    (whole, _), (resumed, _) = runs
    assert resumed.batches == whole.batches
    assert resumed.states == whole.states
    if tail == "drop":
        return
    for source, size in enumerate(SIZES):
        drawn = [one for _, batch in whole.batches for one in batch if one // 1000 == source]
        assert not any(repeats(drawn[at : at + size]) for at in range(0, len(drawn), size))
    if epoch_steps is None and not with_sources:
        for epoch in range(whole.batches[-1][0]):
            came = [one for number, batch in whole.batches if number == epoch for one in batch]
            if stop == "first":
                assert not repeats(came)
            else:
                assert len(set(came)) == sum(SIZES[:there])


def test_a_schedule_of_other_sources_in_a_state_is_to_be_allowed(sources: list[SampleIndex]) -> None:
    with ais_loader(pipe_over(mixture(sources, 1, 1, 1))) as loader:
        loader.set_schedule(Schedule(weights={0: [1, 2, 3]}))
        state = loader.state_dict()
    with ais_loader(pipe_over(mixture(sources, 1, 1))) as loader:
        with pytest.raises(StateError, match=r"set_schedule.*allow=\{'schedule'\}"):
            loader.load_state_dict(state, allow={"sources"})
        loader.load_state_dict(state, allow={"sources", "schedule"})
        assert len(numbers(next(iter(loader)))) == 4
