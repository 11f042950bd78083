"""Checkpoint of a pipe.

Between two items of the last stage a chain is at rest: all that is under way is what `load_tar` has open, what it
has not started, and the samples that single stages hold (a shuffle buffer, decode threads). A checkpoint writes down
just that, the samples by their place only. To resume, `load_tar` reads the held samples again, those of the last
stage first, then continues at the shards' positions; each stage lets the samples of the stages below pass and takes
back its own.

Only a straight chain of known stages can be saved: a stage that keeps items back without saying so would lose them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from torchdata_ais.errors import StateError
from torchdata_ais.pipes.base.contract import Reader, Stage
from torchdata_ais.pipes.base.pipe import IterDataPipe
from torchdata_ais.pipes.base.seed import EpochSeed, mix_seed
from torchdata_ais.pipes.base.torch_pipes import Shuffler
from torchdata_ais.pipes.base.torch_stages import stage_of
from torchdata_ais.pipes.base.upstream import parents, upstream
from torchdata_ais.pipes.checkpoint.shard_order import find_sharder
from torchdata_ais.pipes.planned.batches import plan_of
from torchdata_ais.pipes.planned.shared_seed import SharedSeed
from torchdata_ais.pipes.planned.stage import PlannedStage
from torchdata_ais.state import InstanceState, Part, StageState

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Where an object stands in memory: another one in each process."""


Chain = tuple[list[Stage], Reader]
"""The stages of a pipe up to its reader, last first, and the reader."""


class Obstacle(NamedTuple):
    """A stage that a checkpoint cannot pass through, and why."""

    stage: IterDataPipe[object]
    error: StateError


def chain_of(tail: IterDataPipe[object]) -> Chain:
    """Return the stages from `tail` up to the reader (`load_tar`), and it."""
    found = _walk(tail)
    if isinstance(found, Obstacle):
        raise found.error
    return found


def obstacle_of(tail: IterDataPipe[object]) -> Obstacle | None:
    """Return what keeps a checkpoint from being taken, or None."""
    found = _walk(tail)
    return found if isinstance(found, Obstacle) else None


def _walk(tail: IterDataPipe[object]) -> Chain | Obstacle:
    stages: list[Stage] = []
    pipe = tail
    while not isinstance(pipe, Reader):
        above = parents(pipe)
        if isinstance(pipe, PlannedStage):
            why = StateError.at(
                f"{pipe!r} reads by index: of a bare pipe, and of streams' loaders, there is no state of that",
                todo="take the state of ais_loader(pipe), or of as_dataset(pipe)",
            )
            return Obstacle(pipe, why)
        if len(above) > 1:
            why = StateError.at(
                f".{stage_of(pipe).functional_name}() reads {len(above)} pipes, which a state of streams cannot hold",
                todo="name the shards of all in one list_ais; or read by index, which has a state: "
                "AISSampleReader(Mixture({first: 0.7, second: 0.3})) mixes, AISSampleReader(SampleIndex.concat([first, "
                "second])) takes one after the other",
            )
            return Obstacle(pipe, why)
        if not above:
            why = StateError.at(
                f"{pipe!r} does not stand in a straight chain below one load_tar",
                todo="take checkpoints of list_ais, load_tar, group_samples and stages chained below them",
            )
            return Obstacle(pipe, why)
        stage = stage_of(pipe)
        if not stage.resumable:
            why = StateError.at(
                f"the stage {pipe!r} may hold items that a checkpoint would lose",
                todo="use this package's stages and torch's map, filter, batch and collate, or take no checkpoint",
            )
            return Obstacle(pipe, why)
        stages.append(stage)
        pipe = above[0]
    (source,) = parents(pipe)
    for above_load in upstream(source):
        own_order = hasattr(above_load, "set_seed") and type(above_load) not in (Shuffler, SharedSeed)
        if own_order or stage_of(above_load).repeats:
            why = StateError.at(
                f"the stage {above_load!r} orders or repeats shards in its own way",
                todo="shuffle shards with torch's .shuffle(), and let the loader count epochs",
            )
            return Obstacle(above_load, why)
    if find_sharder(source) is None:
        why = StateError.at(
            "the sharding filter above load_tar is not the only one, or filtering stages follow it",
            todo="leave .sharding_filter() out, load_tar brings its own; filter shards before it",
        )
        return Obstacle(pipe, why)
    return stages, pipe


def stage_names(tail: IterDataPipe[object]) -> list[str]:
    """Return the stages up to the reader as texts, equal for equal pipelines."""
    stages, reader = chain_of(tail)
    said = (
        f"{stage.functional_name or type(stage).__name__}({stage.identity()})" for stage in (*stages, reader)
    )
    return [_ADDRESS.sub("", text) for text in said]


def save(tail: IterDataPipe[object]) -> InstanceState | None:
    """Return the position of the pipe; None if it was not started.

    Call it between two items: after one was received and before the next is requested.
    """
    return saver(tail)()


def saver(tail: IterDataPipe[object]) -> Callable[[], InstanceState | None]:
    """Return a function that saves the pipe as `save` does, for each step.

    The graph is walked here, and must stay as it is.
    """
    stages, reader = chain_of(tail)
    seeds = [seed for _, seed in _seeded(tail)]

    def saved() -> InstanceState | None:
        held: list[int] = []
        states: list[StageState] = []
        for stage in stages:
            places = list(stage.held_places())
            if min(places, default=0) < 0:
                raise StateError.at(
                    f"the stage {stage!r} holds samples whose place in the data set is not known",
                    todo="put it before stages that make new items, such as to_tuple and map",
                )
            held.extend(places)
            states.append(StageState(len(places), stage.save_state()))
        position = reader.save_position(held)
        return None if position is None else InstanceState(position, states, [seed.save() for seed in seeds])

    return saved


def restore(tail: IterDataPipe[object], part: Part, digests: tuple[str, str] = ("", "")) -> None:
    """Make the next iteration of `tail` go on where `part` stood.

    What `save` gave is continued to the letter; of a share of others the stages begin with empty buffers. `digests` are
    those of the shards when the state was taken, and now.
    """
    stages, reader = chain_of(tail)
    if isinstance(part, InstanceState) and part.stages is not None:
        seeded = list(_seeded(tail))
        if (len(part.stages), len(part.seeds)) != (len(stages), len(seeded)):
            raise StateError.at(
                f"the state is of another pipeline: it has {len(part.stages)} stages and {len(part.seeds)} seeds, this"
                f" one {len(stages)} and {len(seeded)}",
                todo="build the pipeline as it was",
            )
        below = 0
        for stage, state in zip(stages, part.stages, strict=True):
            stage.load_state(state, below)
            below += state.held
        for (_, seed), saved in zip(seeded, part.seeds, strict=True):
            seed.restore(saved)
    reader.load_part(part, digests)


def begin_epoch(tail: IterDataPipe[object], epoch_seed: int, number: int, instance: int) -> None:
    """Give every stage of ours its seed for the epoch that is about to begin.

    Stages that draw per item (``shuffled``) get one that also depends on which `instance` of `number` this is; what
    must be the same in all instances (the order of the shards) depends on `epoch_seed` alone.
    """
    for index, (stage, seed) in enumerate(_seeded(tail)):
        own = (index, number, instance) if stage.seed_per_instance else (index,)
        seed.send(mix_seed(epoch_seed, *own))
    planned = plan_of(tail)
    if planned is not None:
        planned.set_seed(epoch_seed)


def _seeded(tail: IterDataPipe[object]) -> Iterator[tuple[Stage, EpochSeed]]:
    for pipe in upstream(tail):
        stage = stage_of(pipe)
        if stage.epoch_seed is not None:
            yield stage, stage.epoch_seed
