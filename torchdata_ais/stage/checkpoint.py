"""Where a pipe stands, and how to begin there again: the ledger of a checkpoint.

Between two items of the last stage a chain is at rest: all that is under way is what `load_tar` has open, what it
has not begun, and the samples that single stages hold (a shuffle buffer, decode threads). A checkpoint writes down
just that, the samples by their place only. To resume, `load_tar` reads the held samples again, those of the last
stage first, then goes on where the shards stood; each stage lets the samples of the stages below pass and takes
back its own.

Only a straight chain of known stages can be saved: a stage that keeps items back without saying so would lose them.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch.utils.data.datapipes.iter import Batcher, Collator, Filter, Mapper

from torchdata_ais.errors import StateError
from torchdata_ais.pipes.load_tar import AISFileLoader
from torchdata_ais.samples import SHARD_SHIFT
from torchdata_ais.stage.load_state import Resume
from torchdata_ais.stage.pipe import IterDataPipe, Pipe, parents, upstream
from torchdata_ais.stage.seed import EpochSeed, mix_seed
from torchdata_ais.stage.shard_order import find_sharder
from torchdata_ais.stage.shared_seed import SharedSeed

__all__ = ["Obstacle", "begin_epoch", "chain_of", "fresh", "obstacle_of", "restore", "save", "stage_names"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Where an object stands in memory: another one in each process."""

_CORE = (Mapper, Filter, Batcher, Collator)


class Obstacle(NamedTuple):
    """What a checkpoint cannot pass through.

    Attributes:
        stage: The stage.
        error: Why.
    """

    stage: IterDataPipe[Any]
    error: StateError


def chain_of(tail: IterDataPipe[Any]) -> tuple[list[IterDataPipe[Any]], AISFileLoader]:
    """Return the stages from `tail` up to, and the `load_tar` stage itself.

    Raises:
        StateError: A stage that a checkpoint cannot pass through; names it.
    """
    found = _walk(tail)
    if isinstance(found, Obstacle):
        raise found.error
    return found


def obstacle_of(tail: IterDataPipe[Any]) -> Obstacle | None:
    """Return what keeps a checkpoint from being taken, or None."""
    found = _walk(tail)
    return found if isinstance(found, Obstacle) else None


def _walk(tail: IterDataPipe[Any]) -> tuple[list[IterDataPipe[Any]], AISFileLoader] | Obstacle:
    stages: list[IterDataPipe[Any]] = []
    pipe = tail
    while not isinstance(pipe, AISFileLoader):
        above = parents(pipe)
        if len(above) != 1:
            why = StateError.at(
                f"{pipe!r} does not stand in a straight chain below one load_tar",
                todo="take checkpoints of list_ais, load_tar, group_samples and stages chained below them",
            )
            return Obstacle(pipe, why)
        if not (type(pipe) in _CORE or (isinstance(pipe, Pipe) and pipe.resumable)):
            why = StateError.at(
                f"the stage {pipe!r} may hold items that a checkpoint would lose",
                todo="use this package's stages and torch's map, filter, batch and collate, or take no checkpoint",
            )
            return Obstacle(pipe, why)
        stages.append(pipe)
        pipe = above[0]
    for above_load in upstream(pipe._source):
        if isinstance(above_load, SharedSeed):
            continue
        own_order = (
            hasattr(above_load, "set_seed") and type(above_load).__module__.partition(".")[0] != "torch"
        )
        if own_order or getattr(type(above_load), "repeats", False):
            why = StateError.at(
                f"the stage {above_load!r} orders or repeats shards in its own way",
                todo="shuffle shards with torch's .shuffle(), and let the loader count epochs",
            )
            return Obstacle(above_load, why)
    if find_sharder(pipe._source) is None:
        why = StateError.at(
            "the sharding filter above load_tar is not the only one, or filtering stages follow it",
            todo="leave .sharding_filter() out, load_tar brings its own; filter shards before it",
        )
        return Obstacle(pipe, why)
    return stages, pipe


def fresh(number: int, instance: int) -> dict[str, Any]:
    """Return the state of an instance that has not begun its epoch."""
    return {
        "load": {
            "n": number, "i": instance, "next": 0, "left": None,
            "open": [], "seen": [], "held": b"", "versions": [],
        }
    }  # fmt: skip


def stage_names(tail: IterDataPipe[Any]) -> list[str]:
    """Return the stages from `tail` to `load_tar` as texts: what makes two pipelines the same for a state."""
    stages, loader = chain_of(tail)
    return [_ADDRESS.sub("", _stage_name(pipe)) for pipe in [*stages, loader]]


def _stage_name(pipe: IterDataPipe[Any]) -> str:
    if isinstance(pipe, Pipe):
        return f"{pipe.functional_name or type(pipe).__name__}({pipe.identity()})"
    name = str(getattr(pipe, "functional_name", "") or type(pipe).__name__)
    return f"{name}({pipe.batch_size})" if isinstance(pipe, Batcher) else name


def save(tail: IterDataPipe[Any]) -> dict[str, Any] | None:
    """Return where the pipe stands, as plain values; None if it was not begun.

    Call it between two items: after one was received and before the next is asked for.
    """
    stages, loader = chain_of(tail)
    load = loader.save_state()
    if load is None:
        return None
    held = array("Q")
    saved: list[list[Any]] = []
    for pipe in stages:
        places = list(pipe.held_places()) if isinstance(pipe, Pipe) else []
        if any(place < 0 for place in places):
            raise StateError.at(
                f"the stage {pipe!r} holds samples whose place in the data set is not known",
                todo="put it before stages that make new items, such as to_tuple and map",
            )
        held.extend(places)
        saved.append([len(places), pipe.save_state() if isinstance(pipe, Pipe) else None])
    held.frombytes(load["held"])
    load["held"] = held.tobytes()
    load["versions"] = loader._versions({place >> SHARD_SHIFT for place in held})
    seeds = [pipe.epoch_seed.save() for pipe in _seeded(tail)]
    return {"load": load, "stages": saved, "seeds": seeds}


def restore(
    tail: IterDataPipe[Any],
    states: Sequence[dict[str, Any]],
    share: tuple[int, int] = (0, 1),
    digests: tuple[str, str] = ("", ""),
) -> None:
    """Make the next iteration of `tail` go on where `states` stood.

    Args:
        tail: The pipe.
        states: What `save` gave in each instance whose rest is to be shared.
        share: ``(instance, instances)``. One state with ``(0, 1)`` is continued to the letter; otherwise the rest
            of all is dealt out, and the stages begin with empty buffers.
        digests: Those of the shards when the states were taken, and now.
    """
    stages, loader = chain_of(tail)
    exact = len(states) == 1 and share == (0, 1) and "stages" in states[0]
    seeded = _seeded(tail)
    if exact and (len(states[0]["stages"]), len(states[0]["seeds"])) != (len(stages), len(seeded)):
        raise StateError.at(
            f"the state is of another pipeline: it has {len(states[0]['stages'])} stages and"
            f" {len(states[0]['seeds'])} seeds, this one {len(stages)} and {len(seeded)}",
            todo="build the pipeline as it was",
        )
    loader.load_state(Resume(states, share, digests), 0, 0)
    below = 0
    for index, pipe in enumerate(stages):
        if exact and isinstance(pipe, Pipe):
            held, state = states[0]["stages"][index]
            pipe.load_state(state, held, below)
            below += held
    if exact:
        for pipe, seed in zip(seeded, states[0]["seeds"], strict=True):
            pipe.epoch_seed.restore(seed)


def begin_epoch(tail: IterDataPipe[Any], epoch_seed: int, number: int, instance: int) -> None:
    """Give every stage of ours its seed for the epoch that is about to begin.

    Stages that draw per item (``shuffled``) get one that also depends on which `instance` of `number` this is; what
    must be the same in all instances (the order of the shards) depends on `epoch_seed` alone.
    """
    for index, pipe in enumerate(_seeded(tail)):
        own = (index, number, instance) if pipe.seed_per_instance else (index,)
        pipe.epoch_seed.send(mix_seed(epoch_seed, *own))


def _seeded(tail: IterDataPipe[Any]) -> list[Any]:
    return [pipe for pipe in upstream(tail) if isinstance(vars(pipe).get("epoch_seed"), EpochSeed)]
