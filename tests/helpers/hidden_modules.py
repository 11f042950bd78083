"""Modules that are there, hidden: for this process and those it forks."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from typing import Any


class _Hides(importlib.abc.MetaPathFinder):
    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if any(fullname == name or fullname.startswith(f"{name}.") for name in self._names):
            raise ModuleNotFoundError(f"No module named {fullname!r} (hidden)", name=fullname)


def hide(*names: str) -> None:
    """Let every later import of these modules, and of what is in them, fail."""
    sys.meta_path.insert(0, _Hides(names))
    for name in list(sys.modules):
        if any(name == one or name.startswith(f"{one}.") for one in names):
            del sys.modules[name]
