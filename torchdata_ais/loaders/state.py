"""The state of a loader: what `state_dict` returns, how ranks' states are merged, who resumes what.

A state belongs to one rank. It holds, packed, where each of its workers stood at the last batch the user received;
samples are named by their place in the data set, never stored. On the same topology each worker continues its own
to the letter. On another one the rest of the epoch of all ranks and workers is dealt out anew; that takes the states
of all ranks, merged.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from torchdata_ais.errors import StateError
from torchdata_ais.loaders.instance import InstancePlan
from torchdata_ais.loaders.world import instance_of
from torchdata_ais.pipes._seed import mix_seed

__all__ = ["check_state", "merge_states", "plans_for", "state_from_json", "state_to_json"]

FORMAT = "torchdata_ais.loader"
VERSION = 2
"""1, of 0.1, numbered the workers of all ranks in another way: what was left of an epoch would not fit together."""


def make_state(
    *, stages: list[str], seed: int, epoch: int, rank: int, ranks: int, instances: list[bytes] | None,
    turn: int = 0, user_epoch: int | None = None, step: int = 0, shards: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Return the state of one rank.

    Args:
        stages: Names of the stages, last first.
        seed: The loader's seed.
        epoch: The epoch of the data: which order of the shards.
        rank: This rank.
        ranks: Ranks there are.
        instances: A packed state for each worker; None means that the epoch has not begun.
        turn: The worker that yields next.
        user_epoch: The epoch as the user counts; differs from `epoch` with a fixed number of steps.
        step: Batches of it that were given out.
        shards: The digest of the shards that were listed; empty where nothing was.
    """
    return {
        "format": FORMAT,
        "version": VERSION,
        "stages": stages,
        "seed": seed,
        "epoch": epoch,
        "user_epoch": epoch if user_epoch is None else user_epoch,
        "step": step,
        "rank": rank,
        "ranks": ranks,
        "turn": turn,
        "shards": shards,
        "instances": instances,
    }


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one state for all ranks, to resume on any topology.

    Args:
        states: The `state_dict` of every rank, taken after the same number of steps; any order. Merged ones count
            as the states in them.

    Raises:
        StateError: They are of different pipelines or epochs, or of one rank twice.

    Example:
        >>> one = make_state(stages=["load_tar"], seed=0, epoch=1, rank=0, ranks=1, instances=[b""])
        >>> len(merge_states([one])["merged"])
        1
    """
    parts = [part for state in states for part in _parts(state)]
    if not parts:
        raise StateError.at("there is no state to merge", todo="pass the state_dict() of every rank")
    first = parts[0]
    for part in parts[1:]:
        for name in ("stages", "seed", "epoch", "user_epoch", "ranks", "shards"):
            if part[name] != first[name]:
                raise StateError.at(
                    f"the states differ in {name!r}: {first[name]!r} and {part[name]!r}",
                    todo="merge the states of one loader, taken at the same step on all ranks",
                )
    ranks = [part["rank"] for part in parts]
    if len(set(ranks)) != len(ranks):
        raise StateError.at(f"a rank is there twice: {sorted(ranks)}", todo="pass one state of every rank")
    return {
        "format": FORMAT,
        "version": VERSION,
        "stages": first["stages"],
        "seed": first["seed"],
        "epoch": first["epoch"],
        "user_epoch": first["user_epoch"],
        "step": first["step"],
        "shards": first["shards"],
        "merged": sorted(parts, key=lambda part: part["rank"]),
    }


def check_state(state: Any, stages: list[str]) -> None:
    """Raise `StateError` if `state` is none, of another version, or of a pipeline with other stages."""
    for part in _parts(state):
        if part["stages"] != stages:
            theirs, ours = part["stages"][::-1], stages[::-1]
            index = next(
                (i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b),
                min(len(theirs), len(ours)),
            )
            there = theirs[index] if index < len(theirs) else "nothing"
            here = ours[index] if index < len(ours) else "nothing"
            raise StateError.at(
                f"the state is of another pipeline: it has {there} where this one has {here}",
                todo=f"build the pipeline as it was: {' -> '.join(theirs)}",
            )


def plans_for(
    state: dict[str, Any], rank: int, ranks: int, workers: int, digest: str = ""
) -> list[InstancePlan]:
    """Return how each worker of `rank` goes on.

    Args:
        state: One rank's state, or a merged one.
        rank: This rank.
        ranks: Ranks there are now.
        workers: Workers of each rank now (1 for none).
        digest: The digest of the shards that are listed now.

    Raises:
        StateError: The topology has changed and states of other ranks are missing.
    """
    parts = _parts(state)
    digests = (parts[0].get("shards", ""), digest)
    epoch_seed = mix_seed(parts[0]["seed"], "epoch", parts[0]["epoch"])
    number = ranks * workers
    plans = [InstancePlan(epoch_seed, number, instance_of(rank, ranks, worker)) for worker in range(workers)]
    if all(part["instances"] is None for part in parts):
        return plans
    mine = next((part for part in parts if part["rank"] == rank and part["ranks"] == ranks), None)
    if mine is not None and len(mine["instances"] or ()) == workers:
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
    missing = sorted(set(range(parts[0]["ranks"])) - there)
    if missing:
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
    """Return `state` with its packed parts as base64 text, for ``json.dumps``."""
    return _convert(state, lambda packed: base64.b64encode(packed).decode())


def state_from_json(state: dict[str, Any]) -> dict[str, Any]:
    """Return what `state_to_json` was given."""
    return _convert(state, base64.b64decode)


def _convert(state: dict[str, Any], change: Any) -> dict[str, Any]:
    if "merged" in state:
        return {**state, "merged": [_convert(part, change) for part in state["merged"]]}
    instances = state["instances"]
    return {**state, "instances": None if instances is None else [change(packed) for packed in instances]}


def _parts(state: Any) -> list[dict[str, Any]]:
    """Return the ranks' states in `state`."""
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise StateError.at(
            "this is no state of a torchdata_ais loader",
            todo="pass what state_dict() or merge_states() returned",
        )
    if state.get("version") != VERSION:
        raise StateError.at(
            f"the state has version {state.get('version')!r}, this package writes and reads {VERSION}",
            todo="resume with the version of the package that took the checkpoint",
        )
    parts: list[dict[str, Any]] = state.get("merged", [state])
    return parts
