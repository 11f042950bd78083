"""How many there are of each kind, and which was the first."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

_K = TypeVar("_K", bound=Hashable)


class Tally(dict[_K, tuple[int, str]]):
    """The number of things of each kind, and what the first of them is called.

    Example:
        >>> tally = Tally()
        >>> tally.add("hidden by its name", ".git"), tally.add("hidden by its name", ".cache"), tally
        (1, 2, {'hidden by its name': (2, '.git')})
    """

    def add(self, kind: _K, what: str) -> int:
        """Count one more, and return how many there are of its kind."""
        count, first = self.get(kind, (0, ""))
        self[kind] = count + 1, first or what
        return count + 1

    def __add__(self, later: Tally[_K]) -> Tally[_K]:
        total = Tally(self)
        for kind, (more, what) in later.items():
            count, first = self.get(kind, (0, ""))
            total[kind] = count + more, first or what
        return total
