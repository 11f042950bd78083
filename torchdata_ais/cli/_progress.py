"""Progress bars for people: on a terminal only, on the error stream, gone when done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdata_ais.jobs import Progress


def _bars(*columns: Any) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _counts(unit: str = "") -> tuple[Any, ...]:
    """Return the columns of things that are counted: how many, how fast, how long."""
    from rich.progress import MofNCompleteColumn, ProgressColumn, Task, TimeElapsedColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.1f} {unit}/s" if unit else f"{speed:.1f}/s")

    if unit:
        return MofNCompleteColumn(), Rate(), TimeRemainingColumn()
    return MofNCompleteColumn(), Rate(), TimeElapsedColumn()


@contextmanager
def progress(title: str, unit: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar while the block runs; yields a function that moves it on by so many units."""
    with _bars(*_counts(f"{unit}s")) as bar:
        task = bar.add_task(title, total=total)
        yield lambda steps: bar.advance(task, steps)


@contextmanager
def moved_bytes(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar of MB and MB/s while the block runs; yields a function that moves it on by so many bytes."""
    from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    with _bars(DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(title, total=total or None)
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
    tasks = {}
    with _bars(*_counts()) as bars:

        def show(progress: Progress) -> None:
            if progress.phase not in tasks:
                tasks[progress.phase] = bars.add_task(progress.phase, total=None)
            bars.update(tasks[progress.phase], completed=progress.done, total=progress.total or None)

        yield show
