"""A bar for each phase of a job on the cluster: on a terminal only, on the error stream, gone when done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdata_ais.jobs import Progress

__all__ = ["job_bars"]


@contextmanager
def job_bars() -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows a `Progress`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    tasks = {}
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:

        def show(progress: Progress) -> None:
            if progress.phase not in tasks:
                tasks[progress.phase] = bars.add_task(progress.phase, total=None)
            bars.update(tasks[progress.phase], completed=progress.done, total=progress.total or None)

        yield show
