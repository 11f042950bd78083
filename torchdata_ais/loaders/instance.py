"""One instance of a pipe: what a worker of a rank is told at the start of an epoch, and what it reports back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from torchdata_ais.errors import StateError
from torchdata_ais.stage.checkpoint import begin_epoch, fresh, restore, save
from torchdata_ais.stage.pipe import IterDataPipe
from torchdata_ais.stage.saved import read_saved
from torchdata_ais.stage.seed import mix_seed

__all__ = [
    "InstancePlan",
    "begin",
    "pack_fresh",
    "pack_or_refuse",
    "pack_share",
    "pack_state",
    "raise_if_refused",
]


@dataclass(frozen=True)
class InstancePlan:
    """How one instance begins an epoch.

    Attributes:
        epoch_seed: The same in all instances.
        number: Instances in the epoch: ranks times workers.
        instance: Which one this is.
        states: Packed states whose rest is to be shared out; empty to begin the epoch.
        share: Which part of that rest; ``(0, 1)`` of a single state is its exact continuation.
        digests: Those of the shards when the states were taken, and now; empty where that is not known.
    """

    epoch_seed: int
    number: int
    instance: int
    states: Sequence[bytes] = ()
    share: tuple[int, int] = (0, 1)
    digests: tuple[str, str] = ("", "")

    @classmethod
    def of(cls, seed: int, epoch: int, number: int, instance: int) -> InstancePlan:
        """Return the plan of a fresh epoch."""
        return cls(mix_seed(seed, "epoch", epoch), number, instance)


def begin(tail: IterDataPipe[Any], plan: InstancePlan) -> None:
    """Prepare the next iteration of `tail` as `plan` says."""
    begin_epoch(tail, plan.epoch_seed, plan.number, plan.instance)
    if plan.states:
        states = [read_saved(state) for state in plan.states]
        if plan.share == (0, 1) and "load" in states[0]:
            # Continued to the letter: the instance draws as the one did that it continues.
            begin_epoch(tail, plan.epoch_seed, states[0]["load"]["n"], states[0]["load"]["i"])
        restore(tail, states, plan.share, plan.digests)


def pack_state(tail: IterDataPipe[Any]) -> bytes | None:
    """Return where `tail` stands as bytes; None if its iteration was not begun.

    Raises:
        StateError: A stage through which a checkpoint cannot pass.
    """
    state = save(tail)
    return None if state is None else msgspec.msgpack.encode(state)


_REFUSED = b"!"


def pack_or_refuse(tail: IterDataPipe[Any]) -> bytes | None:
    """Return `pack_state`, or why there is none: nobody may ever ask for it, so the epoch must not end for it."""
    try:
        return pack_state(tail)
    except StateError as error:
        return _REFUSED + msgspec.msgpack.encode((error.what, error.todo, error.place))


def raise_if_refused(state: bytes) -> bytes:
    """Return `state`, or raise the `StateError` that `pack_or_refuse` met."""
    if state.startswith(_REFUSED):
        what, todo, place = msgspec.msgpack.decode(state[len(_REFUSED) :])
        raise StateError(what, todo=todo, place=place)
    return state


def pack_fresh(number: int, instance: int) -> bytes:
    """Return the state of an instance that has not begun."""
    return msgspec.msgpack.encode(fresh(number, instance))


def pack_share(plan: InstancePlan) -> bytes:
    """Return the state of an instance that was to resume its share of others and has not begun."""
    return msgspec.msgpack.encode({"of": [read_saved(state) for state in plan.states], "share": plan.share})
