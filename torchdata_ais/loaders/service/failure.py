"""An exception as data: caught in one process, raised again in another."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass

from torchdata_ais.errors import LoaderError
from torchdata_ais.redaction import clean

__all__ = ["Failure"]


@dataclass(frozen=True)
class Failure:
    """An exception that happened elsewhere.

    Attributes:
        text: Where it happened and the original traceback, to its last line.
        pickled_type: The exception's class by name, empty if it cannot be found by name.
    """

    text: str
    pickled_type: bytes

    @classmethod
    def of(cls, error: BaseException, where: str) -> Failure:
        """Take down `error`.

        Args:
            error: The exception that was caught.
            where: Which process, and what it was doing, as in "in worker process 0".
        """
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        try:
            pickled_type = pickle.dumps(type(error))
        except Exception:  # noqa: BLE001 - a class defined in a function, for one
            pickled_type = b""
        return cls(clean(f"Caught {type(error).__name__} {where}.\nOriginal {lines}"), pickled_type)

    def rebuild(self) -> Exception:
        """Return the exception to raise: of the original class if that can say the whole text, else a `LoaderError`.

        Classes that end iterations or processes when raised are never rebuilt: what happened is an error here.
        """
        try:
            kind = pickle.loads(self.pickled_type)  # noqa: S301
            if issubclass(kind, Exception) and not issubclass(kind, (StopIteration, StopAsyncIteration)):
                error: Exception = kind(_Text(self.text))
                if self.text in str(error):
                    return error
        except Exception:  # noqa: BLE001, S110 - the class is unknown here, or wants other arguments
            pass
        return LoaderError(self.text)


class _Text(str):
    """A text that stays readable in exceptions that show their argument's repr, as KeyError does."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
