"""``.info()``: show samples as they pass."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torchdata_ais.stage.each_item import Unchanged
from torchdata_ais.stage.registry import stage


@stage("info")
class InfoPrinter(Unchanged):
    """Write some of the samples that pass to a text stream (``.info()``), to see what a pipeline makes.

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
        source: Any,
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

    def _items(self) -> Iterator[Any]:
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

    def _short(self, value: Any) -> str:
        if isinstance(value, (bytes, str)):
            value = value[: self._width]  # no need to write out megabytes to show fifty characters
        return repr(value)[: self._width]
