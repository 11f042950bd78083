"""Pipes that can be told to rest: those with methods `pause` and `resume`, as ``.prefetch`` has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torchdata_ais.stage.graph import all_pipes


@runtime_checkable
class _Pauses(Protocol):
    def pause(self) -> None: ...


@runtime_checkable
class _Resumes(Protocol):
    def resume(self) -> None: ...


def pause(pipe: Any, unless: Callable[[Any], bool] = lambda _: False) -> None:
    """Tell the pipes that can to make nothing more, those nearest to the end first."""
    for part in all_pipes(pipe) if pipe is not None else ():
        if isinstance(part, _Pauses) and not unless(part):
            part.pause()


def resume(pipe: Any) -> None:
    """Tell them to go on, the sources first."""
    for part in reversed(all_pipes(pipe) if pipe is not None else []):
        if isinstance(part, _Resumes):
            part.resume()
