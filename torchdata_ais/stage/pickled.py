"""What pickles of other versions are refused with.

A pickle holds the attributes of a stage as they were, so another version would go on with a chain that is not what it
says. Each stage therefore pickles a mark. Pickles of 0.1 have none, and name modules that are gone, or whose stages are
in another file now: in their place stand modules that are made here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any, NoReturn

from torchdata_ais.errors import StateError

MARK = ("pickled by torchdata_ais", 4)
"""The second is counted on when attributes of stages change in a way that an older pickle would not fit."""


def unmarked(state: dict[str, Any]) -> dict[str, Any]:
    """Return the pickled attributes of a stage without the mark.

    Raises:
        StateError: They have none, or another.
    """
    name, form = MARK
    if state.get(name) != form:
        refuse()
    return {attribute: value for attribute, value in state.items() if attribute != name}


def refuse() -> NoReturn:
    """Raise the error for a pickle of another version."""
    raise StateError.at(
        "this pipe was pickled by another version of torchdata_ais (0.1, or one between releases)",
        todo="make it anew by the code that made it; a pickle of a pipe is for other processes of the same program",
    )


class GoneClass:
    """Stands for a class that pickles of 0.1 name."""

    def __new__(cls, *_: Any) -> GoneClass:  # noqa: D102
        refuse()


class _GoneModule(ModuleType):
    """Stands for a module that pickles of 0.1 name: it has what its package passes on, and refuses all else."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # who looks at all modules there are asks for such
            raise AttributeError(name)
        package = sys.modules[self.__name__.rpartition(".")[0]]
        return vars(package).get(name, GoneClass)


def stand_in_for(package: str, modules: Iterable[str]) -> None:
    """Let pickles name those modules of a package, which are gone."""
    for name in modules:
        sys.modules[f"{package}.{name}"] = _GoneModule(f"{package}.{name}")
