"""Helpers for tests of pipelines: small shards, written in one line."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["example_shards", "shard_bytes", "write_shard"]

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


def example_shards(
    folder: str | os.PathLike[str] | None = None, counts: Iterable[int] = (1, 3, 2)
) -> list[str]:
    """Write small shards and return their paths: sample ``n`` has key ``0000n``, ``cls`` n and ``txt`` n times "x".

    Args:
        folder: Where to write; default a new temporary folder.
        counts: Samples of each shard.

    Example:
        >>> [os.path.basename(path) for path in example_shards()]
        ['shard-000.tar', 'shard-001.tar', 'shard-002.tar']
    """
    root = Path(tempfile.mkdtemp(prefix="torchdata_ais-") if folder is None else folder)
    number = 0
    paths = []
    for index, count in enumerate(counts):
        members = []
        for _ in range(count):
            members += [(f"{number:05d}.cls", b"%d" % number), (f"{number:05d}.txt", b"x" * number)]
            number += 1
        paths.append(write_shard(root / f"shard-{index:03d}.tar", members))
    return paths
