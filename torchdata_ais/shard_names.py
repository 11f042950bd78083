"""What the name of a shard looks like."""

from __future__ import annotations

import re

COMPRESSIONS = ("gz", "bz2", "xz", "zst")
"""What can be read and written; ``.tgz`` is ``.tar.gz``."""

INDEX_FOLDER = ".index/"
"""Where sample indexes lie beside the shards."""

CLASSES_FILE = "classes.json"
"""Where the names of the classes lie beside the shards."""

_ARCHIVE_ENDINGS = (".tar.gz", ".tar.lz4", ".tar", ".tgz", ".zip")
"""What AIStore's own jobs read and write."""

_SHARD = rf"\.(tar(\.({'|'.join(COMPRESSIONS)}))?|tgz)$"
_IS_SHARD = re.compile(_SHARD)

VISIBLE_SHARD = r"(^|/)[^/.][^/]*" + _SHARD
"""A shard that is not hidden, nor on its way."""


def is_shard(name: str) -> bool:
    """Return whether this is the name of a shard that can be read.

    Example:
        >>> is_shard("a/s.tar.zst"), is_shard("s.tgz"), is_shard("s.tar.part"), is_shard("s.zip")
        (True, True, False, False)
    """
    return _IS_SHARD.search(name) is not None


def is_plain_tar(name: str) -> bool:
    """Return whether the shard of this name can be entered at an offset: it is not compressed.

    Example:
        >>> is_plain_tar("s.tar"), is_plain_tar("s.tar.gz")
        (True, False)
    """
    return name.endswith(".tar")


def archive_ending(name: str) -> str:
    """Return the ending of an archive that AIStore's jobs know, or ``""``.

    Example:
        >>> archive_ending("s.tar.lz4"), archive_ending("s.txt")
        ('.tar.lz4', '')
    """
    return next((ending for ending in _ARCHIVE_ENDINGS if name.endswith(ending)), "")


def common_beginning(names: list[str]) -> str:
    """Return what all of `names` begin with.

    Example:
        >>> common_beginning(["a/s-01.tar", "a/s-02.tar"])
        'a/s-0'
    """
    low, high = min(names), max(names)
    end = next((at for at, (one, two) in enumerate(zip(low, high, strict=False)) if one != two), len(low))
    return low[:end]
