"""In which processes an `ais_loader` runs its pipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchdata_ais.errors import UsageError

__all__ = ["EngineName", "EngineOptions"]

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
