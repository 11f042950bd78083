"""What a loader is given, and what follows of it: how it goes through the data."""

from __future__ import annotations

from os import PathLike
from typing import Any

from torch.utils.data import ChainDataset

from torchdata_ais.codecs import Normalize
from torchdata_ais.device import DeviceName
from torchdata_ais.errors import UsageError
from torchdata_ais.loaders.engine import EngineOptions
from torchdata_ais.loaders.epoch_steps import kind_of_passes
from torchdata_ais.loaders.meeting import Meeting
from torchdata_ais.loaders.passes import Passes, PassOptions
from torchdata_ais.loaders.planned import PlannedPasses
from torchdata_ais.pipes.read_samples import AISSampleReader
from torchdata_ais.plan import Tail
from torchdata_ais.stage.datapipes import IterDataPipe
from torchdata_ais.stage.slots import check_planned
from torchdata_ais.world import RankNames


class LoaderNames(RankNames, total=False):
    """The arguments of a loader about ranks, what they share out by index, looking on, and the device."""

    global_batch: int | None
    tail: Tail | None
    trace: bool | int
    run_dir: str | PathLike[str] | None
    device: DeviceName
    normalize: Normalize | None


def check_pipe(given: Any, name: str) -> None:
    """Raise `UsageError` unless a loader was given a pipe."""
    if isinstance(given, IterDataPipe):
        return
    todo = "pass the last stage of a chain that begins with AISSourceLister(...) or IterableWrapper([...])"
    if isinstance(given, list | tuple | ChainDataset):  # what + makes of two pipes
        todo = (
            "make one pipe of several: one.concat(other), one after the other; one.mix_random(other), mixed"
        )
    raise UsageError.at(f"{name} was given an item of type {type(given).__name__}, not a pipe", todo=todo)


def passes_over(pipe: IterDataPipe[Any], how: EngineOptions, given: PassOptions, meeting: Meeting) -> Passes:
    """Return what goes through the data of `pipe`: by a plan, or as a stream.

    Raises:
        UsageError: Arguments that are for the other.
    """
    planned = check_planned(pipe)
    if isinstance(planned, AISSampleReader):
        return PlannedPasses(pipe, planned, how, given, meeting)
    if given.global_batch is not None or given.tail is not None:
        raise UsageError.at(
            "global_batch= and tail= are for pipes that read by index",
            todo="begin the pipe with .read_samples(), or use epoch_steps=",
        )
    return kind_of_passes(given.epoch_steps)(pipe, how, given, meeting)
