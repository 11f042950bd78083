"""Which engine runs the pipe of an `ais_loader`, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torchdata_ais.errors import UsageError
from torchdata_ais.loaders.engines import DataLoader2Engine, DataLoaderEngine, Engine, InProcessEngine
from torchdata_ais.ranks.listing import Listing
from torchdata_ais.stage.pipe import IterDataPipe
from torchdata_ais.world import World

__all__ = ["EngineName", "EngineOptions", "make_engine"]

EngineName = Literal["auto", "dataloader2", "dataloader"]


@dataclass(frozen=True)
class EngineOptions:
    """How to run a pipe; the fields are the arguments of `ais_loader`.

    Raises:
        UsageError: A value that cannot work.
    """

    num_workers: int
    prefetch: int
    engine: EngineName
    context: str | None
    stall_after: float | None

    def __post_init__(self) -> None:
        if self.num_workers < 0 or self.prefetch < 0:
            raise UsageError.at(
                f"num_workers={self.num_workers}, prefetch={self.prefetch}", todo="use 0 or more"
            )
        if self.engine not in ("auto", "dataloader2", "dataloader"):
            raise UsageError.at(f"engine={self.engine!r}", todo='use "auto", "dataloader2" or "dataloader"')
        if self.stall_after is not None and self.stall_after <= 0:
            raise UsageError.at(f"stall_after={self.stall_after}", todo="use seconds, more than 0, or None")


def make_engine(
    pipe: IterDataPipe[Any], stateful: bool, how: EngineOptions, listing: Listing, world: World
) -> Engine:
    """Return a new engine for `pipe`.

    Args:
        pipe: The pipe.
        stateful: Whether to give the state with each item.
        how: Which engine, and its settings.
        listing: What the pipe's sources give.
        world: The ranks.
    """
    if how.num_workers == 0:
        return InProcessEngine(pipe, stateful, listing, how.stall_after)
    name = how.engine
    if name == "auto":
        name = "dataloader2" if _has_dataloader2() else "dataloader"
    if name == "dataloader":
        return DataLoaderEngine(
            pipe, stateful, listing, how.num_workers, how.prefetch, how.context, how.stall_after
        )
    return DataLoader2Engine(
        pipe, stateful, listing, world, how.num_workers, how.prefetch, how.context, how.stall_after
    )


def _has_dataloader2() -> bool:
    try:
        from torchdata_ais.dataloader2 import torchdata_names  # noqa: F401
    except ImportError:
        return False
    return True
