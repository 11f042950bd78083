"""A progress bar for people: on a terminal only, on the error stream, gone when done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

__all__ = ["progress", "progress_of"]


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


def progress_of(stack: ExitStack, title: str) -> Callable[..., None]:
    """Return a function of ``(done, total, unit)`` that shows a bar from its first call on, until `stack` is closed."""
    advance: Callable[[int], None] | None = None
    shown = 0

    def show(done: int, total: int, unit: str = "shard") -> None:
        nonlocal advance, shown
        if advance is None:
            advance = stack.enter_context(progress(title, unit, total))
        advance(max(0, done - shown))
        shown = max(done, shown)

    return show
