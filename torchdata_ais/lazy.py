"""Names of a package that are imported on first use, so that importing the package stays cheap."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: Its ``__name__``. What it imports at once and names in ``__all__`` stays as it is.
        homes: Name -> the module that has it.

    Raises:
        AttributeError: There is no such name.
        ImportError: Its module cannot be imported.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted(sys.modules[package].__all__)
