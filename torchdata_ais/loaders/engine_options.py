"""What `ais_loader` is told of its processes and its passes over the data, and what its engines are told."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from typing import Any, Literal

from torchdata_ais.arguments import check_number
from torchdata_ais.errors import UsageError
from torchdata_ais.plan import Tail
from torchdata_ais.ranks.listing import Listing
from torchdata_ais.stage.pipe import IterDataPipe
from torchdata_ais.world import World

EngineName = Literal["auto", "dataloader2", "dataloader"]
StepsName = int | Literal["pad", "shortest"] | None
"""What a user writes for ``epoch_steps=``."""


@dataclass(frozen=True)
class EngineOptions:
    """How to run a pipe; the fields are the arguments of `ais_loader`.

    Attributes:
        num_workers: Worker processes; 0 runs the pipe in this one.
        prefetch: Items each worker makes ahead.
        engine: Which engine; "auto" is DataLoader2.
        context: Start method of the processes.
        stall_after: Seconds an item may take.
        records: Whether a record a batch is noted.

    Raises:
        UsageError: A value that cannot work.
    """

    num_workers: int
    prefetch: int
    engine: EngineName
    context: str | None
    stall_after: float | None
    records: bool = False

    def __post_init__(self) -> None:
        check_number(self.num_workers, 0, "num_workers")
        check_number(self.prefetch, 0, "prefetch")
        if self.engine not in ("auto", "dataloader2", "dataloader"):
            raise UsageError.at(f"engine={self.engine!r}", todo='use "auto", "dataloader2" or "dataloader"')
        methods = multiprocessing.get_all_start_methods()
        if isinstance(self.context, str) and self.context not in methods:
            raise UsageError.at(
                f"multiprocessing_context={self.context!r} is no start method",
                todo=f"use {', '.join(methods)} or None",
            )
        if self.stall_after is not None and self.stall_after <= 0:
            raise UsageError.at(f"stall_after={self.stall_after}", todo="use seconds, more than 0, or None")


@dataclass(frozen=True)
class PassOptions:
    """How to go through the data; the fields are the arguments of `ais_loader`.

    Attributes:
        seed: Seed of all epochs.
        epoch_steps: How many batches an epoch has.
        global_batch: By index, samples a step over all ranks; None: what the pipe batches, for each rank.
        tail: By index, what becomes of a remainder, instead of what the reader was told.
    """

    seed: int
    epoch_steps: StepsName
    global_batch: int | None
    tail: Tail | None


@dataclass(frozen=True)
class EngineSettings:
    """What an engine runs, and how.

    Attributes:
        pipe: The pipe.
        stateful: Whether to give the state with each item.
        listing: What the pipe's sources give; workers begin with it.
        world: The ranks.
        options: The rest.
    """

    pipe: IterDataPipe[Any]
    stateful: bool
    listing: Listing
    world: World
    options: EngineOptions
