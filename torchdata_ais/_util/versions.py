"""Versions of libraries, and import of optional ones."""

from __future__ import annotations

import importlib
import platform
import re
import sys
from importlib import metadata
from typing import Any

from torchdata_ais.errors import MissingLibraryError

__all__ = ["MissingLibraryError", "require"]


_PACKAGES = (
    *("torchdata-ais", "torch", "torchdata", "aistore", "numpy", "pillow", "urllib3", "xxhash", "msgspec"),
    *("webdataset", "simplejpeg", "google-crc32c", "backports.zstd", "soundfile", "av", "cbor2", "dill"),
    *("lightning", "accelerate"),
)

OLDEST = {"torch": (2, 3, 1), "torchdata": (0, 8), "aistore": (1, 24)}
"""Oldest supported versions; torchdata is optional."""

NEWEST_TORCH = "2.15"
"""Newest tested torch; a later one may have no DataPipes."""


def check_versions() -> None:
    """Raise `MissingLibraryError` if a library of `OLDEST` is too old."""
    for name, oldest in OLDEST.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # reported where it is needed
        if tuple(int(part) for part in re.findall(r"\d+", version)[: len(oldest)]) < oldest:
            raise MissingLibraryError.at(
                f"{name} {version} is too old",
                todo=f'install a newer one: pip install "{name}>={".".join(map(str, oldest))}"',
            )


def versions() -> dict[str, str]:
    """Return the versions of Python, the platform and relevant packages.

    It imports nothing, so that it works where an import fails.

    Example:
        >>> list(versions())[:3]
        ['python', 'platform', 'torchdata-ais']
    """
    found = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    found.update((name, version) for name in _PACKAGES if (version := _version(name)))
    return found


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        if name != "torchdata-ais":
            return ""
        own = sys.modules["torchdata_ais"].__version__  # it is imported, or this file would not be
        return f"{own} (not installed: imported from a folder)"


def show_versions() -> None:
    """Write `versions` to standard output, one a line, for a bug report."""
    rows = versions()
    width = max(map(len, rows))
    sys.stdout.write("".join(f"{name:<{width}}  {version}\n" for name, version in rows.items()))


def require(module: str, purpose: str, *, package: str = "") -> Any:
    """Import and return `module`, which `purpose` needs.

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
