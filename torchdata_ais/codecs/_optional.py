"""Libraries that are extras: imported when asked for, missed with the command that installs them."""

from __future__ import annotations

import importlib
from typing import Any

from torchdata_ais.errors import UsageError


class MissingLibraryError(UsageError, ImportError):
    """An optional library is needed here and is not installed. Never skipped as if a sample were bad."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


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
            todo=f'pip install "torchdata-ais[{extra}]"',
        ) from error
