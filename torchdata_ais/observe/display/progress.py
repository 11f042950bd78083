"""`progress`: a bar for a loader, in a notebook or on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

Show = Callable[[int, str], object]
"""Shows so many batches, and a line about them."""


def progress(
    batches: Iterable[T], *, total: int | None = None, title: str = "", every_s: float = 0.2
) -> Iterator[T]:
    """Yield the batches of a loader, and show their progress and rate.

    The bar also shows the time left. In a notebook it is below the cell, and stays there with the final numbers; on a
    terminal it is a line of the error stream, which disappears. Elsewhere (a log, a pipe) nothing is shown.

    Args:
        batches: A loader, a pipe or any iterable.
        total: How many there are; default ``len(batches)``, where that is known: by index, or with ``epoch_steps=``.
        title: Shown before the bar.
        every_s: Seconds between two updates, at least.

    Order:
        That of the batches.

    Memory:
        One batch, as without it.

    Raises:
        Exception: Any error of the batches.

    Example:
        >>> sum(batch for batch in progress([1, 2, 3]))
        6
    """
    if total is None:
        with suppress(TypeError):  # a stream does not know it
            total = len(batches)  # type: ignore[arg-type]
    done = samples = 0
    begin = shown = time.monotonic()
    with _shown(title, total) as show:
        try:
            for batch in batches:
                yield batch
                done += 1
                samples += _samples(batch)
                now = time.monotonic()
                if now - shown >= every_s:
                    shown = now
                    show(done, _line(done, samples, total, now - begin))
        finally:
            show(done, _line(done, samples, None, time.monotonic() - begin))


def _samples(batch: Any) -> int:
    """Return how many samples a batch has, by its first column."""
    if isinstance(batch, dict):
        batch = next(iter(batch.values()), ())
    elif isinstance(batch, tuple) and batch:
        batch = batch[0]
    try:
        return 1 if isinstance(batch, (str, bytes)) else len(batch)
    except TypeError:  # one value
        return 1


def _line(done: int, samples: int, total: int | None, seconds: float) -> str:
    """Return the numbers.

    Example:
        >>> _line(10, 640, 40, 2.0)
        '10 of 40 batches, 640 samples, 320/s, 6 s left'
        >>> _line(40, 2560, None, 8.0)
        '40 batches, 2560 samples, 320/s, 8 s'
    """
    of = "" if total is None else f" of {total}"
    time_text = (
        f"{seconds:.0f} s" if total is None else f"{seconds / max(1, done) * max(0, total - done):.0f} s left"
    )
    return f"{done}{of} batches, {samples} samples, {samples / max(seconds, 1e-9):.0f}/s, {time_text}"


def _shown(title: str, total: int | None) -> AbstractContextManager[Show]:
    ipython = sys.modules.get("IPython")  # not imported for the answer
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None and hasattr(shell, "kernel"):  # it shows HTML
        return _notebook(title, total)
    return _terminal(title, total) if sys.stderr.isatty() else nullcontext(lambda _done, _text: None)


@dataclass(repr=False)
class _Bar:
    """Output in a notebook, and its text form for later."""

    title: str
    total: int | None
    done: int
    text: str

    def __repr__(self) -> str:
        return f"{self.title} {self.text}".strip()

    def _repr_html_(self) -> str:
        from html import escape

        most = "" if self.total is None else f' max="{max(1, self.total)}" value="{self.done}"'
        return f"<div>{escape(self.title)} <progress{most}></progress> {escape(self.text)}</div>"


@contextmanager
def _notebook(title: str, total: int | None) -> Iterator[Show]:
    from IPython import display

    publish: Any = display.display
    handle = publish(_Bar(title, total, 0, ""), display_id=True)

    def show(done: int, text: str) -> None:
        at_end = "left" not in text  # of an unknown number: the bar is full now
        handle.update(_Bar(title, done if at_end and total is None else total, done, text))

    yield show


@contextmanager
def _terminal(title: str, total: int | None) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}")
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, text="")
        yield lambda done, text: bar.update(task, completed=done, text=text)
