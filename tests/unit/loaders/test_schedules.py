"""Loaders by index with a schedule: batches, weights, skipped steps, left-out samples, changes on the way."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from helpers.command import run
from helpers.planned_runs import mixture, of_world, pipe_over, some, source_shard
from torch.distributed import HashStore

from torchdata_ais import AISSourceLister, SampleIndex, Schedule, ais_loader, explain
from torchdata_ais.errors import ArgumentError, EmptyBatchError, StateError, UsageError

SIZES = (13, 40, 21, 9)
RICH = Schedule(
    global_batch={0: 6, 4: 9, 17: 4},
    weights={0: [1, 4, 2, 1], (5, 14): [1, 1, 0, 2], 20: [0, 0, 1, 1]},
    skip={(3, 5): "drop", (11, 13): "defer", (24, 27): "drop"},
    exclude={1: ["1-003", 7, "1-039"], 3: [0]},
    max_repeats={3: 2},
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[SampleIndex]:
    folder = tmp_path_factory.mktemp("schedules")
    return [SampleIndex.build(source_shard(folder, number, size)) for number, size in enumerate(SIZES)]


def keys(samples: list[tuple[str, str]]) -> set[int]:
    return {1000 * int(key[0]) + int(key[2:]) for key, _ in samples}


def all_batches(loader: Any) -> Iterator[list[int]]:
    """Yield the batches of one epoch after the other."""
    while True:
        for batch in loader:
            yield batch[0].tolist()


def rich_pipe(sources: list[SampleIndex]) -> Any:
    return pipe_over(mixture(sources, 1, 1, 1, 1, stop="never"), epoch_steps=10)


@pytest.mark.quick(3)
@pytest.mark.parametrize("step", [9, 3, 12, *(one for one in range(1, 22) if one not in (3, 9, 12))])
def test_promise_5_a_run_with_a_schedule_is_one_run_on_any_ranks_after_any_resume(
    sources: list[SampleIndex], step: int
) -> None:
    def make() -> Any:
        return rich_pipe(sources)

    whole, last = of_world(make, 1, None, 23, schedule=RICH)
    with ais_loader(make(), schedule=RICH.to_json()) as loader:
        steps = [one for one in range(30) if not any(begin <= one < end for begin, end, _ in RICH.skips)]
        assert [keys(loader.samples_of(one)) for one in steps] == whole
        with pytest.raises(UsageError, match="Step 12 is skipped by the schedule"):
            loader.samples_of(12)
    given = {number for batch in whole for number in batch}
    assert not given & {1003, 1007, 1039, 3000}
    ranks = 2 + step % 2
    got, state = of_world(make, 1, None, step, schedule=RICH)
    state = json.loads(json.dumps(state))
    later, end = of_world(make, ranks, state, 23 - step, schedule=RICH)
    assert (got + later, end) == (whole, last)
    with ais_loader(make(), schedule=RICH, start_step=last["step"]) as loader:
        assert loader.state_dict() == last


@pytest.mark.parametrize("tail", ["short", "drop", "pad"])
def test_promise_3_epochs_that_end_with_the_data_hold_with_a_schedule(
    sources: list[SampleIndex], tail: Any
) -> None:
    """Each sample once in an epoch, with batches that grow, deferred steps and a resume at every step."""
    schedule = Schedule(global_batch={0: 4, 3: 7, 9: 5}, skip={(2, 4): "defer", (12, 13): "drop"})

    def made() -> Any:
        return ais_loader(pipe_over(sources[1], tail=tail), schedule=schedule)

    with made() as loader:
        lengths, epochs = [], []
        for _ in range(3):
            lengths.append(len(loader))
            epochs.append([batch[0].tolist() for batch in loader])
            assert loader.steps_left == len(loader)
    assert lengths == [len(epoch) for epoch in epochs]
    flat = [number for batch in epochs[0] for number in batch]
    assert len(set(flat)) == (40 if tail != "drop" else len(flat))
    dropped = 5 if tail != "drop" else None
    second = [number for batch in epochs[1] for number in batch]
    if dropped is not None:
        assert len(set(second)) == 40 - dropped
    whole = [batch for epoch in epochs for batch in epoch]
    for step in range(len(whole)):
        with made() as loader:
            got = some(loader, step)
            state = loader.state_dict()
        with made() as loader:
            loader.load_state_dict(state)
            assert got + some(loader, len(whole) - step) == whole


@pytest.mark.quick(1)
@pytest.mark.parametrize(("ranks", "workers"), [(1, 2), (2, 1), (1, 3)])
def test_promise_4_workers_give_the_steps_of_a_schedule(
    sources: list[SampleIndex], ranks: int, workers: int
) -> None:
    whole, last = of_world(lambda: rich_pipe(sources), 1, None, 20, schedule=RICH)
    got, state = of_world(lambda: rich_pipe(sources), ranks, None, 20, schedule=RICH, num_workers=workers)
    assert (got, state) == (whole, last)


def test_a_changed_schedule_holds_from_the_returned_step_on(sources: list[SampleIndex]) -> None:
    later = Schedule(global_batch={0: 3, 9: 8}, weights={0: [1, 0, 0, 0]})
    for step in (0, 1, 4, 9):
        with ais_loader(rich_pipe(sources), schedule=RICH) as loader:
            batches = all_batches(loader)
            got = list(islice(batches, step))
            at = loader.set_schedule(later)
            state = loader.state_dict()
            got += islice(batches, 8)
            expected = [keys(loader.samples_of(one)) for one in range(at, at + 8)]
            assert [set(batch) for batch in got[step:]] == expected
            assert [len(batch) for batch in got[step:]] == [3 if one < 9 else 8 for one in range(at, at + 8)]
            end = loader.state_dict()
        with ais_loader(rich_pipe(sources), schedule=RICH) as loader:
            loader.load_state_dict(json.loads(json.dumps(state)))
            assert some(loader, 8) == got[step:]
            assert loader.state_dict() == end


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.ci)])
@pytest.mark.parametrize("epoch_steps", [None, 6])
def test_skipped_steps_do_not_come_and_the_others_stay(
    sources: list[SampleIndex], workers: int, epoch_steps: int | None
) -> None:
    def made() -> Any:
        return ais_loader(pipe_over(sources[1], 4, epoch_steps=epoch_steps), num_workers=workers)

    with made() as loader:
        whole = some(loader, 20)
    with made() as loader:
        batches = all_batches(loader)
        got = list(islice(batches, 2))
        assert loader.skip(3) == 2
        assert loader.steps_left == len(loader) - 2
        state = loader.state_dict()
        got += islice(batches, 11)
        assert loader.step == 16
    assert got == whole[:2] + whole[5:16]
    with made() as loader:
        loader.load_state_dict(state)
        assert some(loader, 11) == whole[5:16]
    with made() as loader:
        batches = all_batches(loader)
        got = list(islice(batches, 3))
        assert loader.skip(range(5, 7), "defer") == 3
        got += islice(batches, 10)
    assert got == whole[:13]


@pytest.mark.parametrize("spec", ["drop", "defer"])
def test_skips_are_bounded_and_told(sources: list[SampleIndex], spec: Any) -> None:
    with ais_loader(pipe_over(sources[1], 4)) as loader:
        batches = all_batches(loader)
        list(islice(batches, 4))
        with pytest.raises(UsageError, match="begins before step 4"):
            loader.skip(range(3, 6), spec)
        loader.skip(range(6, 8), spec)
        with pytest.raises(UsageError, match="two entries with step 7"):
            loader.skip(range(7, 9), spec)
        for wrong in (0, range(8, 20, 2), range(9, 9)):
            with pytest.raises(UsageError, match="steps="):
                loader.skip(wrong, spec)
        assert len(next(batches)) == 4


def test_a_batch_that_is_left_out_whole_is_an_error_or_is_replaced(sources: list[SampleIndex]) -> None:
    schedule = Schedule(exclude={0: range(4, 8)})
    with ais_loader(pipe_over(sources[1], shuffle=None), schedule=schedule) as loader:
        assert next(iter(loader))[0].tolist() == [1000, 1001, 1002, 1003]
        with pytest.raises(EmptyBatchError, match="left out"):
            list(loader)
    with ais_loader(pipe_over(sources[1], shuffle=None, empty="repeat"), schedule=schedule) as loader:
        batches = [batch[0].tolist() for batch in loader]
    assert batches[:3] == [[1000, 1001, 1002, 1003]] * 2 + [[1008, 1009, 1010, 1011]]
    with ais_loader(
        pipe_over(sources[1], shuffle=None), schedule=Schedule(exclude={0: [5, "1-006"]})
    ) as loader:
        batches = [batch[0].tolist() for batch in loader]
    assert batches[1] == [1004, 1007]
    assert len(batches) == 10


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ({"exclude": [[4, [1]]]}, "exclude names source 4, and there are 4"),
        ({"exclude": [[1, [40]]]}, "exclude of source 1 names a sample 40"),
        ({"exclude": [[1, ["1-040"]]]}, "names a sample '1-040'"),
        ({"weights": [[0, 0, [1, 2]]]}, "the weights of step 0 are 2, and there are 4 sources"),
        ({"max_repeats": [[9, 1]]}, "max_repeats names source 9"),
        ({"skip": [[4, 14, "drop"]]}, None),
        ({"skip": [[4, 20, "drop"]]}, "leaves epoch 1 without a step"),
        ({"global_batch": [[5, 2]]}, "leaves a rank without any"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused_before_the_first_batch(
    sources: list[SampleIndex], schedule: Any, says: str | None
) -> None:
    with ais_loader(rich_pipe(sources), schedule=schedule, rank=0, world_size=3) as loader:
        if says is None:
            assert len(some(loader, 5)) == 5
            return
        with pytest.raises(UsageError, match=f"(?i){says}"):
            next(iter(loader))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Schedule(weights={0: []}), "weights of step 0 are"),
        (lambda: Schedule(weights={0: [0, 0]}), "are all 0"),
        (lambda: Schedule(weights={0: [0.5, 0.6]}), "sum to 1.1"),
        (lambda: Schedule(weights={0: [float("nan"), 1.0]}), "weights of step 0 are"),
        (lambda: Schedule(weights={0: [True, 1]}), "weights of step 0 are"),
        (lambda: Schedule(weights={(5, 5): [1]}), "from step 5 to 5"),
        (lambda: Schedule(weights={(5, 9): [1], 7: [1]}), "contradict"),
        (lambda: Schedule(weights={-1: [1]}), "whole number"),
        (lambda: Schedule(global_batch={0: 0}), "global_batch=0"),
        (lambda: Schedule(global_batch={"a": 4}), "step of global_batch='a'"),  # type: ignore[dict-item]
        (lambda: Schedule(skip={(3, 6): "drop", (5, 7): "defer"}), "two entries with step 5"),
        (lambda: Schedule(skip={(3, 6): "later"}), 'use "drop" or "defer"'),  # type: ignore[dict-item]
        (lambda: Schedule(exclude={0: "key"}), "pass a list of keys"),
        (lambda: Schedule(exclude={0: [-1]}), "exclude of source 0"),
        (lambda: Schedule(max_repeats={0: 0}), "max_repeats=0"),
        (lambda: Schedule.from_json({"batch": []}), "no entries batch"),
        (lambda: Schedule.from_json({"skip": [[1, 2]]}), "no schedule as JSON"),
        (lambda: Schedule.from_json("{"), "no schedule as JSON"),
    ],
)
def test_entries_that_cannot_be_are_named(make: Any, says: str) -> None:
    with pytest.raises(UsageError, match=f"(?i){says}"):
        make()


def test_what_a_schedule_needs_is_said(sources: list[SampleIndex]) -> None:
    with (
        ais_loader(pipe_over(sources[1]), schedule=Schedule(max_repeats={0: 2})) as loader,
        pytest.raises(UsageError, match=r"max_repeats= .*epoch_steps="),
    ):
        next(iter(loader))
    with (
        ais_loader(pipe_over(sources[1]), schedule=Schedule(global_batch={0: 4, 5: 60})) as loader,
        pytest.raises(UsageError, match="global batch of 60 samples is larger than the epoch, which has 40"),
    ):
        next(iter(loader))
    with (
        ais_loader(pipe_over(sources[1]), global_batch=8, schedule=Schedule(global_batch={0: 4})) as loader,
        pytest.raises(UsageError, match="global_batch=8, and the schedule begins with 4"),
    ):
        next(iter(loader))
    once = Schedule(max_repeats={0: 1})
    with ais_loader(pipe_over(sources[1], epoch_steps=4), schedule=once) as loader:
        batches = all_batches(loader)
        assert len({number for batch in islice(batches, 10) for number in batch}) == 40
        assert len(loader) == 2  # the last epoch is shorter
        with pytest.raises(UsageError, match=r"Step 12 has no samples.*before step 10"):
            next(batches)
        with pytest.raises(UsageError, match="Step 12 has no samples"):
            loader.samples_of(12)


def test_promise_5_another_schedule_at_a_resume_is_a_change_to_be_allowed(sources: list[SampleIndex]) -> None:
    with ais_loader(rich_pipe(sources), schedule=RICH) as loader:
        some(loader, 7)
        state, seen = loader.state_dict(), sum(loader.samples_seen())
    other = Schedule(global_batch={0: 6, 9: 5}, weights={0: [1, 1, 1, 1]})
    for schedule, says in ((other, "another schedule"), (None, "another schedule")):
        with ais_loader(rich_pipe(sources), schedule=schedule, global_batch=6) as loader:
            with pytest.raises(StateError, match=rf"{says}.*allow=\{{'schedule'\}}"):
                loader.load_state_dict(state)
            loader.load_state_dict(state, allow={"schedule"})
            later = some(loader, 4)
            step = loader.step - 4
            expected = [6 if schedule is None or one < 9 else 5 for one in range(step, step + 4)]
            assert [len(batch) for batch in later] == expected
            again = loader.state_dict()
            assert sum(loader.samples_seen()) - sum(map(len, later)) == seen
        with ais_loader(rich_pipe(sources), schedule=schedule, global_batch=6) as loader:
            loader.load_state_dict(again)
            assert len(some(loader, 2)) == 2


def test_streams_have_no_schedule(tmp_path: Path) -> None:
    stream = AISSourceLister([source_shard(tmp_path, 0, 4)]).load_tar().group_samples().batched(2)
    with pytest.raises(UsageError, match="for pipes that read by index"):
        ais_loader(stream, schedule=RICH)
    with ais_loader(stream) as loader:
        for call in (lambda: loader.set_schedule(RICH), lambda: loader.skip(2)):
            with pytest.raises(UsageError, match=r"Begin the pipe with \.read_samples"):
                call()


def of_ranks(
    sources: list[SampleIndex], calls: dict[int, dict[int, Any]], steps: int, schedules: Any = (RICH, RICH)
) -> list[Any]:
    """Return what two ranks with a common store get; `calls` are made on each after a number of its batches."""
    store, found = HashStore(), [None, None]

    def train(rank: int) -> None:
        got: list[Any] = []
        try:
            with ais_loader(
                rich_pipe(sources),
                schedule=schedules[rank],
                rank=rank,
                world_size=2,
                store=store,
                rank_timeout_s=20,
            ) as loader:
                batches = all_batches(loader)
                for number in range(steps):
                    if number in calls[rank]:
                        got.append(calls[rank][number](loader))
                    got.append(set(next(batches)))
        except Exception as error:
            got.append(error)
        found[rank] = got  # type: ignore[call-overload]

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_ranks_that_are_at_different_steps_change_at_the_same_one(sources: list[SampleIndex]) -> None:
    later = Schedule(global_batch={0: 8}, weights={0: [1, 2, 0, 1]})

    def change(loader: Any) -> int:
        return int(loader.set_schedule(later))

    first, second = of_ranks(sources, {0: {2: change}, 1: {5: change}}, 9)
    assert [one for one in first if isinstance(one, int)] == [7]  # steps 3 and 4 are skipped
    assert [one for one in second if isinstance(one, int)] == [7]
    assert first.index(7) == 2
    assert second.index(7) == 5
    parts = [[one for one in got if isinstance(one, set)] for got in (first, second)]
    with ais_loader(rich_pipe(sources), schedule=RICH) as loader:
        whole = [set(batch) for batch in islice(all_batches(loader), 5)]
    with ais_loader(rich_pipe(sources), schedule=RICH, start_step=7) as loader:
        assert loader.set_schedule(later) == 7
        whole += [set(batch) for batch in islice(all_batches(loader), 4)]
    assert [one | other for one, other in zip(*parts, strict=True)] == whole


def test_ranks_that_change_the_schedule_in_different_ways_are_told(sources: list[SampleIndex]) -> None:
    found = of_ranks(
        sources, {0: {1: lambda loader: loader.skip(2)}, 1: {1: lambda loader: loader.skip(3)}}, 4
    )
    for rank, got in enumerate(found):
        assert isinstance(got[-1], UsageError)
        assert f"Rank {1 - rank} changes the schedule" in str(got[-1])


def test_ranks_that_make_different_calls_are_told_at_once(sources: list[SampleIndex]) -> None:
    calls = {0: {1: lambda loader: loader.skip(2)}, 1: {1: lambda loader: loader.set_schedule(RICH)}}
    for rank, got in enumerate(of_ranks(sources, calls, 4)):
        assert isinstance(got[-1], UsageError)
        assert f"Rank {1 - rank} changes the schedule" in str(got[-1])


def test_a_state_that_is_refused_leaves_a_change_to_come(sources: list[SampleIndex]) -> None:
    with ais_loader(pipe_over(sources[1], 8)) as loader:
        some(loader, 2)
        other = loader.state_dict()
    with ais_loader(pipe_over(sources[1]), micro_batches=3) as loader:
        batches = all_batches(loader)
        whole = list(islice(batches, 1))  # within a step: the change comes with the next one
        assert loader.skip(1) == 1
        before = loader.state_dict()
        assert before["changes"]
        with pytest.raises(StateError, match="a global batch of 8"):
            loader.load_state_dict(other)
        assert loader.state_dict() == before
        assert len(whole) == 1


def test_ranks_that_are_given_different_schedules_are_told(sources: list[SampleIndex]) -> None:
    other = Schedule.from_json({**RICH.to_json(), "max_repeats": [[3, 3]]})
    for got in of_ranks(sources, {0: {}, 1: {}}, 2, (RICH, other)):
        assert isinstance(got[0], UsageError)
        assert "schedule" in str(got[0])


def test_explain_and_the_commands_follow_a_schedule(sources: list[SampleIndex], tmp_path: Path) -> None:
    pipe = pipe_over(sources[1], shuffle=None)
    schedule = Schedule(global_batch={0: 4, 2: 8}, skip={(3, 4): "drop"}, exclude={0: [0]})
    plan = explain(pipe, schedule=schedule).plan
    assert plan is not None
    assert (plan.steps, plan.samples) == (5, 32)  # 4, 4, 8, (8), 8 and 8 of 40
    (tmp_path / "schedule.json").write_text(json.dumps(schedule.to_json()))
    with pytest.raises(UsageError, match="schedule= of a stream"):
        explain(AISSourceLister([source_shard(tmp_path, 0, 4)]).load_tar().group_samples(), schedule=schedule)
    SampleIndex.build(source_shard(tmp_path, 1, 40)).save(tmp_path)
    words = ["--schedule", str(tmp_path / "schedule.json"), "--global-batch", "4"]
    for step, keys_of in ((0, range(1, 4)), (2, range(8, 16)), (4, range(24, 32))):
        done = run("trace-step", str(tmp_path), "--step", str(step), *words)
        assert [line.split()[0] for line in done.stdout.splitlines()] == [f"1-{n:03d}" for n in keys_of]
    done = run("trace-step", str(tmp_path), "--step", "3", *words)
    assert "Step 3 is skipped" in done.stderr
    done = run("simulate", "--shards", "4", "--samples", "40", *words, "--json")
    assert json.loads(done.stdout)["steps"] == 5
    done = run("simulate", "--shards", "4", "--samples", "40", "--schedule", "none.json")
    assert "--schedule none.json" in done.stderr


@pytest.mark.parametrize("tail", ["short", "drop", "pad"])
def test_ranks_of_other_weights_share_the_same_global_batches(sources: list[SampleIndex], tail: Any) -> None:
    def made(rank: int, ranks: int, **how: Any) -> Any:
        return ais_loader(
            pipe_over(sources[1], tail=tail), global_batch=12, rank=rank, world_size=ranks, **how
        )

    with made(0, 1) as loader:
        whole = [set(batch) for batch in some(loader, 7)]
    parts, states = [], []
    for rank in range(3):
        with made(rank, 3, rank_weights=[3, 1, 2]) as loader:
            parts.append([batch[0].tolist() for batch in loader])
            assert len(parts[-1]) == len(whole[: 3 if tail == "drop" else 4])
            states.append(loader.state_dict())
    assert [len(part[0]) for part in parts] == [6, 2, 4]
    assert [set().union(*steps) for steps in zip(*parts, strict=True)] == whole[: len(parts[0])]
    assert states[0] == states[1] == states[2]
    with made(1, 2, rank_weights=[1, 3]) as loader:
        loader.load_state_dict(states[0])
        assert len(some(loader, 1)[0]) == 9


def test_rank_weights_that_cannot_be_are_told(sources: list[SampleIndex]) -> None:
    for wrong, says in (
        ([1, 2, 3], "has 3 numbers, and there are 2 ranks"),
        ([1, 100], "leaves a rank without any"),
    ):
        with (
            ais_loader(pipe_over(sources[1]), rank_weights=wrong, rank=0, world_size=2) as loader,
            pytest.raises(UsageError, match=says),
        ):
            next(iter(loader))
    for bad in ([0, 1], [1.5, 1]):
        with pytest.raises((UsageError, ArgumentError), match="rank_weights"):
            ais_loader(pipe_over(sources[1]), rank_weights=bad, rank=0, world_size=2)


def grouped(batches: list[list[int]], parts: int) -> list[set[int]]:
    """Return the samples of each optimizer step."""
    assert len(batches) % parts == 0
    return [set().union(*batches[at : at + parts]) for at in range(0, len(batches), parts)]


@pytest.mark.parametrize("workers", [0, pytest.param(3, marks=pytest.mark.ci)])
@pytest.mark.parametrize(("ranks", "parts"), [(1, 3), (2, 2), (2, 3)])
def test_micro_batches_are_parts_of_the_same_steps(
    sources: list[SampleIndex], ranks: int, parts: int, workers: int
) -> None:
    def made(rank: int, ranks: int, **how: Any) -> Any:
        return ais_loader(
            pipe_over(sources[1]), global_batch=12, schedule={"skip": [[5, 6, "drop"]]}, rank=rank, world_size=ranks,
            **how,
        )  # fmt: skip

    with made(0, 1) as loader:
        batches = all_batches(loader)
        whole = [set(batch) for batch in islice(batches, 10)]
        last = loader.state_dict()
    got, states = [], []
    for rank in range(ranks):
        with made(rank, ranks, micro_batches=parts, num_workers=workers) as loader:
            assert (len(loader), loader.steps_left) == (4 * parts, 4 * parts)
            batches = all_batches(loader)
            got.append(grouped(list(islice(batches, 10 * parts)), parts))
            states.append(loader.state_dict())
            assert loader.step == last["step"]
            assert keys(loader.samples_of(1)) == whole[1]
    assert [set().union(*steps) for steps in zip(*got, strict=True)] == whole
    assert states == [last] * ranks


def test_a_state_within_micro_batches_begins_the_step_again(sources: list[SampleIndex]) -> None:
    def made(**how: Any) -> Any:
        return ais_loader(pipe_over(sources[1], 4), micro_batches=3, seed=4, **how)

    with made() as loader:
        whole = list(islice(all_batches(loader), 30))
    for taken in range(1, 13):
        with made() as loader:
            batches = all_batches(loader)
            assert list(islice(batches, taken)) == whole[:taken]
            assert loader.steps_left == (len(loader) - taken) % len(loader) or taken == 12
            state = loader.state_dict()
            assert loader.step == state["step"] == taken // 3
        with made() as loader:
            loader.load_state_dict(state)
            assert list(islice(all_batches(loader), 6)) == whole[taken // 3 * 3 : taken // 3 * 3 + 6]
        with ais_loader(pipe_over(sources[1], 4), micro_batches=2, global_batch=12, seed=4) as loader:
            loader.load_state_dict(state)
            step = grouped(list(islice(all_batches(loader), 2)), 2)
            assert step == grouped(whole[taken // 3 * 3 : taken // 3 * 3 + 3], 3)
    with made() as loader:
        batches = all_batches(loader)
        assert list(islice(batches, 4)) == whole[:4]
        assert loader.skip(1) == 2  # the step under way goes on
        assert list(islice(batches, 5)) == whole[4:6] + whole[9:12]


def test_micro_batches_that_cannot_be_are_told(sources: list[SampleIndex]) -> None:
    with (
        ais_loader(pipe_over(sources[1]), micro_batches=5, global_batch=4) as loader,
        pytest.raises(UsageError, match="micro_batches=5, and a rank has 4 samples of a step"),
    ):
        next(iter(loader))
    with pytest.raises(UsageError, match="micro_batches=0"):
        ais_loader(pipe_over(sources[1]), micro_batches=0)


def test_an_empty_micro_batch_is_replaced_from_its_own_step(sources: list[SampleIndex]) -> None:
    pipe = pipe_over(sources[1], 4, shuffle=None, empty="repeat")
    schedule = Schedule(exclude={0: range(16, 20)})
    with ais_loader(pipe, micro_batches=2, schedule=schedule) as loader:
        batches = [batch[0].tolist() for batch in loader]
    assert (
        batches[4] == batches[3] == [1012, 1013, 1014, 1015]
    )  # it is the first part: the step before is nearest
    schedule = Schedule(exclude={0: range(12, 16)})
    with ais_loader(pipe, micro_batches=2, schedule=schedule) as loader:
        batches = [batch[0].tolist() for batch in loader]
    assert batches[3] == batches[2] == [1008, 1009, 1010, 1011]
