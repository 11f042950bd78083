"""State of a loader, and of a pipe without loader.

A state belongs to one rank. It holds, packed, the position of each of its workers at the last batch the user received.
Samples are named by their position in the data set, never stored. On the same topology each worker continues exactly.
On another one the rest of the epoch of all ranks and workers is redistributed; that takes the states of all ranks,
merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count, islice, zip_longest
from typing import Any

from torchdata_ais._util.world import instance_of
from torchdata_ais.errors import StateError
from torchdata_ais.loaders.instance import InstancePlan
from torchdata_ais.pipes.base.pipe import IterDataPipe
from torchdata_ais.pipes.checkpoint.ledger import restore, save, stage_names
from torchdata_ais.state import (
    MergedState,
    PlanState,
    SharedState,
    State,
    StreamState,
    WorkerPlanState,
    content_of,
    cut,
    from_plain,
    merged_plain,
    pack,
    to_plain,
)


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one state for all ranks, to resume on any topology.

    Args:
        states: The `state_dict` of every rank, taken after the same number of steps; any order. Merged ones count as
            the states in them. The result has their parts, not copies of them.

    Raises:
        StateError: One is none or damaged; they are of different pipelines, epochs or steps, or of one rank twice.

    Example:
        >>> one = to_plain(StreamState(stages=["load_tar()"], instances=None))
        >>> len(merge_states([one])["merged"])
        1
    """
    if not isinstance(states, Iterable):
        raise StateError.at(
            f"expected a list of states, got an item of type {type(states).__name__}",
            todo="pass the state_dict() of every rank in a list",
        )
    states = list(states)
    if states and states.count(states[0]) == len(states):
        same = from_plain(states[0])
        if isinstance(same, PlanState):
            return to_plain(same)  # by index that of any rank is that of all
    parts: dict[int, dict[str, Any]] = {}
    first: StreamState | None = None
    for state in states:
        found, content = _of_streams(from_plain(state)), content_of(state)
        for part, plain in zip(found.parts, content.get("merged", [content]), strict=True):
            first = first or part
            _check_belongs(first, part)
            if part.rank in parts:
                raise StateError.at(
                    f"a rank is there twice: {part.rank}", todo="pass one state of every rank"
                )
            parts[part.rank] = plain
    if not parts:
        raise StateError.at("there is no state to merge", todo="pass the state_dict() of every rank")
    return merged_plain([parts[rank] for rank in sorted(parts)])


def _check_belongs(first: StreamState, part: StreamState) -> None:
    """Raise if two ranks' states are not of one loader, at one step."""
    differs = first.difference(part)
    if differs is not None:
        name, one, other = differs
        raise StateError.at(
            f"the states of ranks {first.rank} and {part.rank} differ in {name!r}: {cut(repr(one), 100)} and "
            f"{cut(repr(other), 100)}",
            todo="merge the states of one loader, taken at the same step on all ranks",
        )


def check_state(state: object, stages: list[str]) -> StreamState | MergedState:
    """Return `state`, validated and decoded, of a pipeline with these stages."""
    checked = _of_streams(from_plain(state))
    theirs, ours = checked.parts[0].stages[::-1], stages[::-1]
    if theirs != ours:
        pairs = zip_longest(theirs, ours, fillvalue="nothing")
        there, here = next(pair for pair in pairs if pair[0] != pair[1])
        raise StateError.at(
            f"the state is of another pipeline: it has {cut(there)} where this one has {cut(here)}",
            todo=f"build the pipeline as it was: {cut(' -> '.join(theirs))}",
        )
    return checked


def check_single(state: object, stages: list[str]) -> StreamState:
    """Return `check_state`, to resume one instance alone."""
    single = check_state(state, stages)
    if isinstance(single, MergedState) or single.workers != 1:
        raise StateError.at(
            "the state is of several workers or ranks",
            todo="resume it with ais_loader, or pass what state_dict() of the same kind of loader returned",
        )
    return single


def check_plan_state(state: object) -> PlanState:
    """Return the state of a pipe that reads by index."""
    if isinstance(state, str):
        raise StateError.at("the state is a text", todo="pass state_from_json(text)")
    found = from_plain(state)
    if isinstance(found, WorkerPlanState):
        raise StateError.at(
            "the state is of one worker of as_dataset, not of ais_loader",
            todo="resume it with the loader it was taken of",
        )
    if not isinstance(found, PlanState):
        raise _of_a_stream()
    return found


def check_worker_plan(state: object) -> WorkerPlanState:
    """Return the state of one worker of a dataset that reads by index."""
    found = from_plain(state)
    if isinstance(found, PlanState):
        raise StateError.at(
            "the state is of ais_loader, not of one worker of as_dataset",
            todo="resume it with ais_loader",
        )
    if not isinstance(found, WorkerPlanState):
        raise _of_a_stream()
    return found


def check_same(what: str, then: object, now: object, todo: str) -> None:
    """Raise `StateError` if a property of a run has changed."""
    if then != now:
        raise StateError.at(f"{what} was {then!r} when the state was taken, and is {now!r}", todo=todo)


def _of_a_stream() -> StateError:
    return StateError.at(
        "the state is of streams of shards, not of reading by index",
        todo="resume it with the pipeline it was taken of",
    )


def _of_streams(state: State) -> StreamState | MergedState:
    if isinstance(state, (PlanState, WorkerPlanState)):
        raise StateError.at(
            "the state is of reading by index, not of streams of shards",
            todo="resume it with the pipeline it was taken of; one of a run by index needs no merging",
        )
    return state


def plans_for(
    state: StreamState | MergedState, rank: int, ranks: int, workers: int, digest: str = ""
) -> list[InstancePlan]:
    """Return the position of each worker of `rank`.

    `state` is a result of `check_state`. The others are of now: how many ranks, workers of each (1 for none), and the
    digest of the listed shards.

    Raises:
        StateError: The topology has changed and states of other ranks are missing.
    """
    parts = state.parts
    first = parts[0]
    digests = (first.shards, digest)
    number = ranks * workers
    fresh = InstancePlan.of(first.seed, first.epoch, number, 0)
    own = [instance_of(rank, ranks, worker) for worker in range(workers)]
    if all(part.instances is None for part in parts):
        return [replace(fresh, instance=instance) for instance in own]
    mine = next((part for part in parts if part.rank == rank and part.ranks == ranks), None)
    if mine is not None and mine.workers == workers and mine.instances is not None:
        # The worker whose turn it was goes first: the round over the workers continues at its position.
        turns = [(mine.turn + worker) % workers for worker in range(workers)]
        return [
            replace(fresh, instance=own[turn], state=pack(mine.instances[turn]), digests=digests)
            for turn in turns
        ]
    _check_complete(parts, ranks, workers)
    saved = [instance for part in parts for instance in part.instances or ()]
    return [
        replace(fresh, instance=instance, state=pack(SharedState(saved, instance, number)), digests=digests)
        for instance in own
    ]


def _check_complete(parts: Sequence[StreamState], ranks: int, workers: int) -> None:
    """Raise if states of ranks are missing that another topology needs."""
    expected, present = parts[0].ranks, {part.rank for part in parts}
    if len(present) == expected:
        return
    # A state may claim any number of ranks: only the first missing ones are named.
    missing = list(islice((rank for rank in count() if rank not in present), min(8, expected - len(present))))
    raise StateError.at(
        f"the state is of {expected} ranks and lacks those of {missing}; now there are {ranks} ranks with"
        f" {workers} workers",
        todo="gather the state_dict() of all ranks and pass merge_states([...])",
    )


def state_to_json(state: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `state` for ``json.dumps``, if it is whole.

    The state can also be kept as it is.

    Raises:
        StateError: It is none, or damaged.
    """
    return to_plain(from_plain(state))


def state_from_json(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state that `state_to_json` encoded, if it is whole.

    Raises:
        StateError: It is something else, or damaged.
    """
    return to_plain(from_plain(state))


def state_dict(pipe: IterDataPipe[object]) -> dict[str, Any]:
    """Return the position of `pipe`, after the item received last.

    Args:
        pipe: The last stage of a chain that is being iterated in this process.

    Raises:
        StateError: A stage that a checkpoint cannot pass through; names it.

    Example:
        >>> from torchdata_ais import AISSourceLister
        >>> from torchdata_ais.testing import example_shards
        >>> pipe = AISSourceLister(example_shards()).load_tar().group_samples().decode()
        >>> items = iter(pipe)
        >>> next(items)["cls"], next(items)["cls"]
        (0, 1)
        >>> state = state_dict(pipe)
        >>> load_state_dict(pipe, state)
        >>> [sample["cls"] for sample in pipe]
        [2, 3, 4, 5]
    """
    state = StreamState(stages=stage_names(pipe))
    stands = save(pipe)
    if stands is not None:
        state.instances = [stands]
    return to_plain(state)


def load_state_dict(pipe: IterDataPipe[object], state: dict[str, Any]) -> None:
    """Make the next iteration of `pipe` resume at `state`.

    The ones after it are whole epochs again.

    Args:
        pipe: A chain of the same stages.
        state: The result of `state_dict`.

    Raises:
        StateError: It is none, damaged, of another pipeline, or of several workers.
    """
    instances = check_single(state, stage_names(pipe)).instances
    if instances is not None:
        restore(pipe, instances[0])
