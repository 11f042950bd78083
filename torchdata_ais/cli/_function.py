"""Functions that are named on the command line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchdata_ais.errors import UsageError


def function_named(name: str | None) -> Callable[..., Any] | None:
    """Import what MODULE:FUNCTION names; modules of the current folder count."""
    if not name:
        return None
    module, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        shown = name.replace(".py", "") if ":" in name and ".py" in name else "augment:flip"
        raise UsageError.at(
            f"there is no function {name!r}: {error}", todo=f"write MODULE:FUNCTION, such as {shown}"
        ) from error
    if not callable(function):
        raise UsageError.at(f"{name} is no function", todo="write MODULE:FUNCTION, such as augment:flip")
    made: Callable[..., Any] = function
    return made
