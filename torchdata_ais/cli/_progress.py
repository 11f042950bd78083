"""Progress bars for people: on a terminal only, on the error stream, gone when done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdata_ais.jobs import Progress


def _bars(*more: Any) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *more)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def progress(title: str, unit: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar while the block runs; yields a function that moves it on by so many units."""
    from rich.progress import TextColumn, TimeRemainingColumn

    with _bars(TextColumn(f"{unit}s"), TimeRemainingColumn()) as bar:
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


@contextmanager
def job_bars() -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows the `Progress` of a job on the cluster: a bar for each phase."""
    from rich.progress import TimeElapsedColumn

    tasks = {}
    with _bars(TimeElapsedColumn()) as bars:

        def show(progress: Progress) -> None:
            if progress.phase not in tasks:
                tasks[progress.phase] = bars.add_task(progress.phase, total=None)
            bars.update(tasks[progress.phase], completed=progress.done, total=progress.total or None)

        yield show
