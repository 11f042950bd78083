"""Import of optional libraries, with an error that has the command to install them."""

from __future__ import annotations

import importlib
from typing import Any

from torchdata_ais.errors import MissingLibraryError

__all__ = ["MissingLibraryError", "require"]


def require(module: str, purpose: str, *, package: str = "") -> Any:
    """Import and return `module`.

    Args:
        module: The name to import.
        purpose: What needs it, for the message.
        package: What pip installs, where that is not `module`.

    Raises:
        MissingLibraryError: It is not installed; the message has the command. (Also an ImportError.)
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingLibraryError.at(
            f"{purpose} needs the library {module}, which cannot be imported: {error}",
            todo=f'install it: pip install "{package or module}"',
        ) from error
