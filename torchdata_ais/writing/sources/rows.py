"""The rows of a table, by number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

Row = dict[str, Any]


class Rows(ABC):
    """The rows of a table, by number.

    Attributes:
        columns: The names of the columns.
        digest: Changes when the table does.
        texts: Columns that may hold text.
    """

    columns: list[str]
    digest: str
    texts: frozenset[str]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, numbers: Sequence[int], columns: Sequence[str] | None = None) -> Iterator[tuple[int, Row]]:
        """Yield rows with their numbers, in the order asked for.

        Args:
            numbers: Which ones.
            columns: Only these columns, where that saves reading.
        """

    def labels(self, column: str) -> list[str] | None:  # noqa: ARG002 - only Parquet files have them
        """Return the names that the table itself gives the numbers of a column, if it does."""
        return None


class ListedRows(Rows):
    """Rows in memory."""

    def __init__(self, rows: list[Row], digest: str) -> None:
        self.columns = list(dict.fromkeys(name for row in rows for name in row))
        self.digest = digest
        self.texts = frozenset(self.columns)
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, numbers: Sequence[int], columns: Sequence[str] | None = None) -> Iterator[tuple[int, Row]]:  # noqa: ARG002
        """Yield rows with their numbers."""
        return ((number, self._rows[number]) for number in numbers)
