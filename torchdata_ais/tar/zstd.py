"""Zstandard: of the standard library since Python 3.14, its backport before."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from torchdata_ais.errors import MissingLibraryError

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"


def load_zstd() -> Any:
    """Return the module `ZSTD`.

    Its decompressor takes one frame, makes no more at once than it is asked for, refuses windows above 128 MiB, and
    does not take a frame that was cut for a whole one.

    Raises:
        MissingLibraryError: It is not installed.
    """
    try:
        return importlib.import_module(ZSTD)
    except ImportError:
        raise MissingLibraryError.at(
            "the shard is compressed with Zstandard, and no library for it is installed",
            todo="install one: pip install backports.zstd",
        ) from None
