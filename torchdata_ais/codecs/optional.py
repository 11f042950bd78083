"""Libraries that are extras: imported when asked for, missed with the command that installs them."""

from __future__ import annotations

import importlib
from typing import Any

from torchdata_ais.errors import MissingLibraryError

__all__ = ["MissingLibraryError", "require"]


def require(module: str, extra: str, purpose: str) -> Any:
    """Import and return `module`.

    Args:
        module: The name to import.
        extra: The extra of this package that installs it.
        purpose: What needs it, for the message.

    Raises:
        MissingLibraryError: It is not installed; the message has the command. (Also an ImportError.)
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingLibraryError.at(
            f"{purpose} needs the library {module}, which cannot be imported: {error}",
            todo=f'install it: pip install "torchdata-ais[{extra}]"',
        ) from error
