"""Stages that pass items on, such as ``.info()`` and ``.pipe_through()``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchdata_ais._util.arguments import check_number
from torchdata_ais._util.world import known_ranks
from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.base.each_item import Unchanged, shown_function
from torchdata_ais.pipes.base.pipe import Pipe
from torchdata_ais.pipes.base.registry import stage
from torchdata_ais.state import StageState


@stage("info")
class InfoPrinter(Unchanged):
    """Write some of the passing samples to a text stream (``.info()``).

    They show the output of a pipeline.

    Args:
        source: Pipe of anything.
        fmt: Format of one line, with the sample's fields by name: ``"{__key__} {cls}"``. None: a line for each
            field.
        n: How many samples to show at the beginning of each epoch.
        every: Show each such one after that, too; -1 for none.
        width: Characters shown of a value.
        stream: Where to write; default the standard error stream of the process. One that does not pickle keeps
            the pipe out of worker processes.
        name: Shown in the head of each sample.

    Yields:
        All items, unchanged.

    Order:
        That of the source.

    Memory:
        One item.

    Example:
        >>> import sys
        >>> _ = list(InfoPrinter([{"__key__": "a", "cls": 3}], fmt="{__key__} is {cls}", stream=sys.stdout))
        a is 3
    """

    def __init__(
        self,
        source: object,
        fmt: str | None = None,
        n: int = 3,
        every: int = -1,
        width: int = 50,
        stream: Any = None,
        name: str = "",
    ) -> None:
        super().__init__(source)
        self._fmt = fmt
        self._n = n
        self._every = every
        self._width = width
        self._stream = stream
        self._name = name

    def arguments(self) -> str:
        return "" if self._fmt is None else repr(self._fmt)

    def identity(self) -> str:
        return ""

    def _items(self) -> Iterator[object]:
        for count, sample in enumerate(self._source):
            if count < self._n or (self._every > 0 and (count + 1) % self._every == 0):
                stream = sys.stderr if self._stream is None else self._stream
                stream.write("\n".join(self._lines(sample)) + "\n")
            yield sample

    def _lines(self, sample: Any) -> Iterator[str]:
        if self._fmt is not None:
            yield self._fmt.format(**sample)
            return
        yield f"--- {self._name}"
        if isinstance(sample, dict):
            for field, value in sample.items():
                yield f"{field} {self._short(value)}"
        else:
            yield self._short(sample)

    def _short(self, value: object) -> str:
        if isinstance(value, (bytes, str)):
            value = value[: self._width]  # no need to write out megabytes to show fifty characters
        return repr(value)[: self._width]


@stage("non_empty")
class NonEmpty(Unchanged):
    """Pass items on, and raise if there are none at all (``.non_empty()``).

    Each worker checks its own.

    Args:
        source: Pipe of anything.

    Yields:
        The items, unchanged.

    Order:
        That of the source.

    Memory:
        One item.

    Raises:
        UsageError: The source had no items.

    Example:
        >>> list(NonEmpty(range(3)))
        [0, 1, 2]
    """

    def __init__(self, source: object) -> None:
        super().__init__(source)
        self._resumed = False

    def _items(self) -> Iterator[object]:
        empty, self._resumed = not self._resumed, False
        for item in self._source:
            empty = False
            yield item
        if empty:
            raise UsageError.at(
                "the stream has no items at all, and .non_empty() makes that an error",
                todo="check what the sources match and what the stages before drop; use no more workers than shards",
            )

    def load_state(self, state: StageState, below: int) -> None:
        del state, below
        self._resumed = True  # the items may all have come before the checkpoint


@stage("single_node_only")
class SingleNodeOnly(Unchanged):
    """Pass items on, and raise for several ranks (``.single_node_only()``).

    Args:
        source: Pipe of anything.

    Yields:
        The items, unchanged.

    Order:
        That of the source.

    Memory:
        One item.

    Raises:
        UsageError: ``WORLD_SIZE`` or torch.distributed says that there are several ranks.

    Example:
        >>> list(SingleNodeOnly(range(3)))
        [0, 1, 2]
    """

    def __init__(self, source: object) -> None:
        super().__init__(source)
        # Worker processes know the ranks by the environment only, so what is known here travels with the stage.
        _, self._world = known_ranks()

    def _items(self) -> Iterator[object]:
        world = max(self._world, known_ranks()[1])
        if world > 1:
            raise UsageError.at(
                f"there are {world} ranks, and .single_node_only() is for one",
                todo="take it out: shards are split over ranks and workers before .load_tar() anyway",
            )
        yield from self._source


@stage("with_length")
class LengthSetter(Unchanged):
    """Set the length of the stream to `n` items (``.with_length(n)``).

    It is for frameworks that call ``len()``.
    It changes nothing else: the stream is as long as it is. To make it that long: ``.with_epoch(n)``.

    Args:
        source: Pipe of anything.
        n: What ``len()`` returns.

    Yields:
        The items, unchanged.

    Order:
        That of the source.

    Memory:
        One item.

    Example:
        >>> len(LengthSetter(range(5), 1000))
        1000
    """

    def __init__(self, source: object, n: int) -> None:
        super().__init__(source)
        check_number(n, 0, "n")
        self._n = n

    def arguments(self) -> str:
        return f"{self._n}"

    def __len__(self) -> int:
        return self._n


@stage("pipe_through")
class PipeThrough(Pipe[Any]):
    """Make a stage of a function of an iterator (``.pipe_through(f)``).

    The function returns an iterator. This is webdataset's ``.pipe``.

    Args:
        source: Pipe of anything.
        f: Function, for example a generator function, called once an epoch with an iterator over the items; more
            arguments with `functools.partial`.

    Yields:
        What the iterable that `f` returns yields. It may drop, repeat and reorder; a checkpoint cannot see through
        it, so a request for a loader's state names this stage.

    Order:
        As `f` makes it.

    Memory:
        What `f` holds.

    Raises:
        UsageError: `f` is not a function, or returned nothing to iterate.
        Exception: Whatever `f` raises; the epoch is over then.

    Example:
        >>> def pairs(items):
        ...     for item in items:
        ...         yield item, next(items)
        >>> list(PipeThrough(range(4), pairs))
        [(0, 1), (2, 3)]
    """

    def __init__(self, source: object, f: Callable[[Iterator[Any]], Iterable[object]]) -> None:
        super().__init__(source)
        if not callable(f):
            raise UsageError.at(
                f"pipe_through() was given a {type(f).__name__}", todo="pass a function of an iterator"
            )
        self._f = f

    def arguments(self) -> str:
        return shown_function(self._f)

    def _items(self) -> Iterator[object]:
        made = self._f(iter(self._source))
        if not hasattr(made, "__iter__"):
            raise UsageError.at(
                f"{shown_function(self._f)} returned a {type(made).__name__}, nothing to iterate",
                todo="make it a generator function (yield the items), or use .map_sample() for one item at a time",
            )
        yield from made
