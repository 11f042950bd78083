"""Test helpers for pipelines: small shards, and a check of exact resume."""

from __future__ import annotations

import atexit
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from torchdata_ais._util.arguments import checked
from torchdata_ais.errors import UsageError
from torchdata_ais.writing.prepare import check_place

__all__ = ["check_resume", "example_shards", "shard_bytes", "write_shard"]

Members = Mapping[str, bytes] | Iterable[tuple[str, bytes]]


@checked
def shard_bytes(members: Members, *, format: int = tarfile.USTAR_FORMAT) -> bytes:  # noqa: A002 - tarfile's name
    """Return a tar archive with these members, in order.

    The same members give the same bytes.

    Example:
        >>> len(shard_bytes({"a.txt": b"cat"}))
        10240
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        pairs = list(members.items() if isinstance(members, Mapping) else members)
        for pair in pairs:
            if not isinstance(pair, tuple | list) or list(map(type, pair)) != [str, bytes]:
                raise UsageError.at(
                    f"{pair!r:.60} is no member of a shard", todo='pass {"0.txt": b"cat"}, or pairs of these'
                )
        for name, data in pairs:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


@checked
def write_shard(path: str | os.PathLike[str], members: Members) -> str:
    """Write a shard with these members and return its path."""
    check_place(os.fspath(path))
    Path(path).write_bytes(shard_bytes(members))
    return os.fspath(path)


@checked
def example_shards(
    folder: str | os.PathLike[str] | None = None, counts: Iterable[int] = (1, 3, 2)
) -> list[str]:
    """Write small shards and return their paths.

    Sample ``n`` has key ``0000n``, ``cls`` n and ``txt`` n times "x".

    Args:
        folder: The target; default a new temporary folder, which is removed when the process ends.
        counts: Samples of each shard.

    Example:
        >>> [os.path.basename(path) for path in example_shards()]
        ['shard-000.tar', 'shard-001.tar', 'shard-002.tar']
    """
    root = _temporary_folder() if folder is None else Path(folder)
    number = 0
    paths = []
    for index, count in enumerate(counts):
        members = []
        for _ in range(count):
            members += [(f"{number:05d}.cls", b"%d" % number), (f"{number:05d}.txt", b"x" * number)]
            number += 1
        paths.append(write_shard(root / f"shard-{index:03d}.tar", members))
    return paths


def _temporary_folder() -> Path:
    """Make a folder that this process, and no fork of it, removes at its end."""
    folder, owner_pid = tempfile.mkdtemp(prefix="torchdata_ais-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner_pid:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return Path(folder)


@checked
def check_resume(
    make_pipe: Callable[[], Any],
    *,
    same: Callable[[Any, Any], bool] | None = None,
    max_bytes: int = 64 << 10,
) -> int:
    """Resume from every step of an epoch, and compare the whole rest.

    Takes a checkpoint at each step, and resumes it in a new pipe.

    Args:
        make_pipe: Returns a new pipe of the same stages over the same data each time.
        same: Returns whether two items are equal; default: equal tensors, arrays and containers of them.
        max_bytes: Bound on the packed state.

    Returns:
        The number of steps checked.

    Raises:
        AssertionError: Names the step and the first item that differs, the second resume that differs from the first,
            or a state that changes its shape or is too large.
        StateError: The pipeline cannot be resumed; names the stage.

    Example:
        >>> from torchdata_ais import AISSourceLister
        >>> shards = example_shards()
        >>> check_resume(lambda: AISSourceLister(shards).shuffle().load_tar().group_samples().shuffled(3).decode())
        6
    """
    from torchdata_ais.loaders.state import load_state_dict, state_dict

    equal = same or _equal
    whole = list(make_pipe())
    keys: set[str] | None = None
    for step in range(1, len(whole) + 1):
        pipe = make_pipe()
        items = iter(pipe)
        head = list(islice(items, step))
        state = state_dict(pipe)
        size = sum(map(len, state["instances"]))
        assert size <= max_bytes, f"step {step}: the state has {size} bytes, more than {max_bytes}"
        assert keys is None or keys == set(state), f"step {step}: the state has another shape"
        keys = set(state)
        resumed = make_pipe()
        load_state_dict(resumed, state)
        rest = iter(resumed)
        once = list(islice(rest, 1))
        again = make_pipe()
        load_state_dict(again, state_dict(resumed) if once else state)
        for label, got in (("", [*head, *once, *rest]), (" resumed twice", [*head, *once, *again])):
            _compare(whole, got, equal, f"step {step}{label}")
    return len(whole)


def _compare(expected: list[Any], got: list[Any], equal: Callable[[Any, Any], bool], where: str) -> None:
    for index, (one, other) in enumerate(zip(expected, got, strict=False)):
        assert equal(one, other), f"{where}: item {index} is {other!r} instead of {one!r}"
    assert len(expected) == len(got), f"{where}: {len(got)} items instead of {len(expected)}"


def _equal(one: object, other: Any) -> bool:
    import numpy as np
    import torch

    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and np.array_equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(_equal(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
