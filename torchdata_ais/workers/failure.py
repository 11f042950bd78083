"""An exception as data: caught in one process, raised again in another."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

from torchdata_ais.errors import AISError, LoaderError, noted
from torchdata_ais.redaction import clean
from torchdata_ais.stage.origin import trimmed


@dataclass(frozen=True)
class Failure:
    """An exception that happened elsewhere.

    Attributes:
        where: Which process, and what it was doing, as in "in worker process 0".
        name: The exception's class.
        cause: What the exception says.
        trace: The original traceback, to its last line.
        notes: The notes of the exception.
        parts: What happened, what to do, and the place, of an error of this package.
        pickled_type: The exception's class by name, empty if it cannot be found by name.
    """

    where: str
    name: str
    cause: str
    trace: str
    notes: tuple[str, ...]
    parts: tuple[str, str, dict[str, Any]] | None
    pickled_type: bytes

    @classmethod
    def of(cls, error: BaseException, where: str) -> Failure:
        """Take down `error`.

        Args:
            error: The exception that was caught.
            where: Which process, and what it was doing, as in "in worker process 0".
        """
        told = traceback.TracebackException(type(error), error, trimmed(error).__traceback__)
        told.__notes__ = None  # they go on their own
        try:
            pickled_type = pickle.dumps(type(error))
        except Exception:  # noqa: BLE001 - a class defined in a function, for one
            pickled_type = b""
        name = type(error).__name__
        return cls(
            where,
            name,
            clean(str(error)) or name,
            "".join(clean(line) for line in told.format()),
            tuple(clean(str(note)) for note in getattr(error, "__notes__", ())),
            (error.what, error.todo, error.place) if isinstance(error, AISError) else None,
            pickled_type,
        )

    def rebuild(self) -> Exception:
        """Return the exception to raise: of the original class if that can say the whole text, else a `LoaderError`.

        It begins with the cause; where it was raised follows. Errors of this package have their parts, and the process
        in their place. Classes that end iterations or processes when raised are never rebuilt: what happened is an
        error here.
        """
        error = self._same() or LoaderError(f"{self.name}: {self._text()}", place={})
        for note in self.notes:
            noted(error, note)
        return error

    def _same(self) -> Exception | None:
        try:
            kind = pickle.loads(self.pickled_type)  # noqa: S301
            if self.parts is not None:
                what, todo, place = self.parts
                ours: AISError = kind(what, todo=todo, place={**place, "in": self.where.removeprefix("in ")})
                return ours
            if issubclass(kind, Exception) and not issubclass(kind, (StopIteration, StopAsyncIteration)):
                error: Exception = kind(_Text(self._text()))
                return error if self._text() in str(error) else None
        except Exception:  # noqa: BLE001, S110 - the class is unknown here, or wants other arguments
            pass
        return None

    def _text(self) -> str:
        return f"{self.cause}\n\nCaught {self.name} {self.where}.\nOriginal {self.trace}"


class _Text(str):
    """A text that stays readable in exceptions that show their argument's repr, as KeyError does."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
