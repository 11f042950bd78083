"""A progress bar for people: on a terminal only, on the error stream, gone when done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress"]


@contextmanager
def progress(title: str, unit: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar while the block runs; yields a function that moves it on by so many units."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(f"{unit}s"))
    bar = Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    )
    with bar:
        task = bar.add_task(title, total=total)
        yield lambda steps: bar.advance(task, steps)
