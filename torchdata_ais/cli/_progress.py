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
    console.quiet = not console.is_terminal  # older rich prints an empty line at the end of a disabled bar
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _counts(unit: str = "", size: Callable[[], int] | None = None) -> tuple[Any, ...]:
    """Return the columns of things that are counted: how many, how fast, how many bytes, how long."""
    from rich.progress import MofNCompleteColumn, ProgressColumn, Task, TimeElapsedColumn, TimeRemainingColumn
    from rich.text import Text

    from torchdata_ais.shown import bytes_text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.1f} {unit}/s" if unit else f"{speed:.1f}/s")

    class Bytes(ProgressColumn):
        def render(self, task: Task) -> Text:
            done = size() if size is not None else task.fields.get("size", 0)
            if size is None and not done:
                return Text("")
            rate = f" {bytes_text(int(done / task.elapsed))}/s" if task.elapsed and done else ""
            return Text(f"{bytes_text(done)}{rate}")

    if unit:
        return MofNCompleteColumn(), Rate(), *((Bytes(),) if size is not None else ()), TimeRemainingColumn()
    return MofNCompleteColumn(), Rate(), Bytes(), TimeElapsedColumn()


@contextmanager
def progress(
    title: str, unit: str, total: int, size: Callable[[], int] | None = None
) -> Iterator[Callable[[int], None]]:
    """Show a bar while the block runs; yields a function that moves it on by so many units.

    Args:
        title: What is done.
        unit: What is counted.
        total: How many of them.
        size: Says how many bytes are done.
    """
    with _bars(*_counts(f"{unit}s", size)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda steps: bar.advance(task, steps)


@contextmanager
def moved_bytes(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar of MB and MB/s while the block runs; yields a function that moves it on by so many bytes."""
    from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    with _bars(DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(title, total=total or None)
        yield lambda steps: bar.advance(task, steps)


def progress_of(stack: ExitStack, title: str, size: Callable[[], int] | None = None) -> Callable[..., None]:
    """Return a function of ``(done, total, unit)`` that shows a bar from its first call on, until `stack` is closed."""
    advance: Callable[[int], None] | None = None
    shown = 0

    def show(done: int, total: int, unit: str = "shard") -> None:
        nonlocal advance, shown
        if advance is None:
            advance = stack.enter_context(progress(title, unit, total, size))
        advance(max(0, done - shown))
        shown = max(done, shown)

    return show


@contextmanager
def job_bars() -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows the `Progress` of a job on the cluster: a bar for each phase."""
    from torchdata_ais.jobs import SizedProgress

    tasks = {}
    with _bars(*_counts()) as bars:

        def show(progress: Progress) -> None:
            if progress.phase not in tasks:
                tasks[progress.phase] = bars.add_task(progress.phase, total=None, size=0)
            bars.update(
                tasks[progress.phase],
                completed=progress.done,
                total=progress.total or None,
                size=progress.size if isinstance(progress, SizedProgress) else 0,
            )

        yield show
