"""The state of a loader: what `state_dict` returns, how ranks' states are merged, who resumes what.

A state belongs to one rank. It holds, packed, where each of its workers stood at the last batch the user received;
samples are named by their place in the data set, never stored. On the same topology each worker continues its own
to the letter. On another one the rest of the epoch of all ranks and workers is dealt out anew; that takes the states
of all ranks, merged.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from itertools import count, islice, pairwise
from typing import Any

from torchdata_ais.errors import StateError
from torchdata_ais.loaders.instance import InstancePlan
from torchdata_ais.loaders.state_check import FORMAT, VERSION, cut, read_state, same_epoch, seal
from torchdata_ais.stage.seed import mix_seed
from torchdata_ais.world import instance_of

__all__ = [
    "check_single",
    "check_state",
    "make_state",
    "merge_states",
    "plans_for",
    "state_from_json",
    "state_to_json",
]


def make_state(
    *, stages: list[str], seed: int, epoch: int, rank: int, ranks: int, workers: int,
    instances: list[bytes] | None, turn: int = 0, user_epoch: int | None = None, step: int = 0,
    shards: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Return the state of one rank.

    Args:
        stages: Names of the stages, last first.
        seed: The loader's seed.
        epoch: The epoch of the data: which order of the shards.
        rank: This rank.
        ranks: Ranks there are.
        workers: Workers of this rank (1 for none).
        instances: A packed state for each worker; None means that the epoch has not begun.
        turn: The worker that yields next.
        user_epoch: The epoch as the user counts; differs from `epoch` with a fixed number of steps.
        step: Batches of it that were given out.
        shards: The digest of the shards that were listed; empty where nothing was.
    """
    return seal({
        "format": FORMAT,
        "version": VERSION,
        "stages": stages,
        "seed": int(seed),
        "epoch": int(epoch),
        "user_epoch": int(epoch if user_epoch is None else user_epoch),
        "step": step,
        "rank": rank,
        "ranks": ranks,
        "workers": workers,
        "turn": turn,
        "shards": shards,
        "instances": instances,
    })  # fmt: skip


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one state for all ranks, to resume on any topology.

    Args:
        states: The `state_dict` of every rank, taken after the same number of steps; any order. Merged ones count
            as the states in them.

    Raises:
        StateError: One is none or damaged; they are of different pipelines, epochs or steps, or of one rank twice.

    Example:
        >>> one = make_state(stages=["load_tar()"], seed=0, epoch=1, rank=0, ranks=1, workers=1, instances=None)
        >>> len(merge_states([one])["merged"])
        1
    """
    if not isinstance(states, Iterable):
        raise StateError.at(
            f"this is no list of states, but of type {type(states).__name__}",
            todo="pass the state_dict() of every rank in a list",
        )
    parts = [part for state in states for part in _parts(read_state(state))]
    if not parts:
        raise StateError.at("there is no state to merge", todo="pass the state_dict() of every rank")
    first = parts[0]
    for part in parts[1:]:
        differs = same_epoch(first, part)
        if differs is not None:
            one, other = (cut(repr(state[differs]), 100) for state in (first, part))
            raise StateError.at(
                f"the states of ranks {first['rank']} and {part['rank']} differ in {differs!r}: {one} and {other}",
                todo="merge the states of one loader, taken at the same step on all ranks",
            )
    ranks = sorted(part["rank"] for part in parts)
    twice = [rank for rank, following in pairwise(ranks) if rank == following]
    if twice:
        raise StateError.at(
            f"a rank is there twice: {cut(repr(twice), 100)}", todo="pass one state of every rank"
        )
    return seal({
        "format": FORMAT,
        "version": VERSION,
        "stages": first["stages"],
        "seed": first["seed"],
        "epoch": first["epoch"],
        "user_epoch": first["user_epoch"],
        "step": first["step"],
        "shards": first["shards"],
        "merged": sorted(parts, key=lambda part: int(part["rank"])),
    })  # fmt: skip


def check_state(state: Any, stages: list[str]) -> dict[str, Any]:
    """Return a copy of `state` that can be used.

    Args:
        state: What `state_dict` or `merge_states` returned, if it is whole.
        stages: The pipeline that is to go on with it.

    Raises:
        StateError: It is no state, of another version, damaged, or of a pipeline with other stages.
    """
    state = read_state(state)
    theirs, ours = state["stages"][::-1], stages[::-1]
    if theirs != ours:
        pairs = zip(theirs, ours, strict=False)
        index = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(theirs), len(ours)))
        there = theirs[index] if index < len(theirs) else "nothing"
        here = ours[index] if index < len(ours) else "nothing"
        raise StateError.at(
            f"the state is of another pipeline: it has {cut(there)} where this one has {cut(here)}",
            todo=f"build the pipeline as it was: {cut(' -> '.join(theirs))}",
        )
    return dict(state)


def check_single(state: Any, stages: list[str]) -> dict[str, Any]:
    """Return `check_state`, for what resumes one instance alone.

    Raises:
        StateError: As `check_state`; also for a state of several workers or ranks.
    """
    single = check_state(state, stages)
    if "merged" in single or single["workers"] != 1:
        raise StateError.at(
            "the state is of several workers or ranks",
            todo="resume it with ais_loader, or pass what state_dict() of the same kind of loader returned",
        )
    return single


def plans_for(
    state: dict[str, Any], rank: int, ranks: int, workers: int, digest: str = ""
) -> list[InstancePlan]:
    """Return how each worker of `rank` goes on.

    Args:
        state: One rank's state, or a merged one, as `check_state` returned it.
        rank: This rank.
        ranks: Ranks there are now.
        workers: Workers of each rank now (1 for none).
        digest: The digest of the shards that are listed now.

    Raises:
        StateError: The topology has changed and states of other ranks are missing.
    """
    parts = _parts(state)
    digests = (parts[0]["shards"], digest)
    epoch_seed = mix_seed(parts[0]["seed"], "epoch", parts[0]["epoch"])
    number = ranks * workers
    plans = [InstancePlan(epoch_seed, number, instance_of(rank, ranks, worker)) for worker in range(workers)]
    if all(part["instances"] is None for part in parts):
        return plans
    mine = next((part for part in parts if part["rank"] == rank and part["ranks"] == ranks), None)
    if mine is not None and mine["workers"] == workers:
        # The worker whose turn it was goes first: the round over the workers goes on where it stood.
        return [
            InstancePlan(
                plan.epoch_seed,
                number,
                instance_of(rank, ranks, turn),
                [mine["instances"][turn]],
                digests=digests,
            )
            for plan, turn in ((plan, (mine["turn"] + worker) % workers) for worker, plan in enumerate(plans))
        ]
    there = {part["rank"] for part in parts}
    if len(there) != parts[0]["ranks"]:
        # However many ranks a state says there were: only the first missing ones are named.
        missing = list(
            islice((one for one in count() if one not in there), min(8, parts[0]["ranks"] - len(there)))
        )
        raise StateError.at(
            f"the state is of {parts[0]['ranks']} ranks and lacks those of {missing}; now there are {ranks} ranks with"
            f" {workers} workers",
            todo="gather the state_dict() of all ranks and pass merge_states([...])",
        )
    states = [packed for part in parts for packed in part["instances"] or ()]
    return [
        InstancePlan(plan.epoch_seed, number, plan.instance, states, (plan.instance, number), digests)
        for plan in plans
    ]


def state_to_json(state: dict[str, Any]) -> dict[str, Any]:
    """Return `state` with its packed parts as base64 text, for ``json.dumps``.

    Raises:
        StateError: It is none, or damaged.
    """
    plain: dict[str, Any] = _convert(read_state(state), lambda packed: base64.b64encode(packed).decode())
    return plain


def state_from_json(state: dict[str, Any]) -> dict[str, Any]:
    """Return what `state_to_json` was given.

    Raises:
        StateError: It is something else, or damaged.
    """
    return read_state(_convert(state, _from_text))


def _from_text(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise StateError.at(
            "the state is damaged: a packed part of it is no base64 text",
            todo="pass what state_to_json returned, as it was saved",
        ) from None


def _convert(state: Any, change: Callable[[Any], Any]) -> Any:
    """Return `state` with its packed parts changed; what is none of ours is left for `read_state` to refuse."""
    if not isinstance(state, dict):
        return state
    merged, instances = state.get("merged"), state.get("instances")
    if isinstance(merged, list) and not any(isinstance(part, dict) and "merged" in part for part in merged):
        return {**state, "merged": [_convert(part, change) for part in merged]}
    if isinstance(instances, list):
        return {**state, "instances": [change(packed) for packed in instances]}
    return state


def _parts(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the ranks' states in `state`."""
    parts: list[dict[str, Any]] = state.get("merged", [state])
    return parts
