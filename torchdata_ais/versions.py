"""Which versions are at work: the first lines of a bug report."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

__all__ = ["show_versions", "versions"]

_PACKAGES = (
    *("torchdata-ais", "torch", "torchdata", "aistore", "numpy", "pillow", "urllib3", "xxhash", "msgspec"),
    *(
        "webdataset",
        "simplejpeg",
        "backports.zstd",
        "soundfile",
        "av",
        "cbor2",
        "dill",
        "lightning",
        "accelerate",
    ),
)


def versions() -> dict[str, str]:
    """Return the versions of Python, of the platform, and of what is installed of the packages that matter.

    Nothing is imported for it, so that it works where an import fails.

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
        from torchdata_ais import __version__

        return f"{__version__} (not installed: imported from a folder)"


def show_versions() -> None:
    """Write `versions` to standard output, one a line, for a bug report."""
    rows = versions()
    width = max(map(len, rows))
    sys.stdout.write("".join(f"{name:<{width}}  {version}\n" for name, version in rows.items()))
