"""Helpers for tests of pipelines: small shards, written in one line."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["shard_bytes", "write_shard"]

Members = Mapping[str, bytes] | Iterable[tuple[str, bytes]]


def shard_bytes(members: Members, *, format: int = tarfile.USTAR_FORMAT) -> bytes:  # noqa: A002 - tarfile's name
    """Return a tar archive with these members, in order, the same bytes for the same members.

    Example:
        >>> len(shard_bytes({"a.txt": b"cat"}))
        10240
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for name, data in members.items() if isinstance(members, Mapping) else members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def write_shard(path: str | os.PathLike[str], members: Members) -> str:
    """Write a shard with these members and return its path."""
    Path(path).write_bytes(shard_bytes(members))
    return os.fspath(path)
