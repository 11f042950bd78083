"""Processes that share a rank's data compare what they give: replicas of a model must see the same batches."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
import xxhash

from torchdata_ais.errors import LoaderError
from torchdata_ais.ranks.alive import Ranks
from torchdata_ais.world import World

_KEPT = 64
"""Digests that are kept to compare with what is heard later."""

_TOLD = 16


class _Digest(msgspec.Struct, array_like=True):
    """What a process was given up to a step: the digest is of all batches compared so far, so a difference stays."""

    number: int
    step: int
    digest: str


class _Told(msgspec.Struct, array_like=True):
    """What one process says of itself, the latest last."""

    process: int
    digests: list[_Digest]


_told = msgspec.json.Decoder(_Told)


class Replicas:
    """Compares every n-th batch of this process with those of the others that have the same data.

    A batch costs its digest. What the others were given is heard beside the batches: all of a place leave their latest
    digests under one name, each in place of what it heard there before.

    Args:
        ranks: All processes of the loader, and their store.
        world: This process's rank in the data.
        every: Steps from one comparison to the next.
    """

    def __init__(self, ranks: Ranks, world: World, every: int) -> None:
        self._ranks, self._rank, self._every = ranks, world.rank, every
        self._lock = threading.Lock()  # one thread notes, another one tells
        self._mine: deque[_Digest] = deque(maxlen=_KEPT)
        self._heard = b""
        self._other: _Told | None = None

    def note(self, step: int, batch: Any) -> None:
        """Note the batch of a global step, if it is its turn; asks nobody."""
        if step % self._every:
            return
        digest = batch_digest(batch)
        with self._lock:
            number, before = (self._mine[-1].number + 1, self._mine[-1].digest) if self._mine else (0, "")
            chained = xxhash.xxh3_64_hexdigest(f"{before} {step} {digest}".encode())
            self._mine.append(_Digest(number, step, chained))

    def exchange(self) -> bool:
        """Tell what this process was given, or hear what another one told: one request. Return whether it was told.

        Raises:
            LoaderError: Another replica was given another batch; both are named. Or the store is gone.
        """
        with self._lock:
            mine = list(self._mine)
        told = msgspec.json.encode(_Told(self._ranks.rank, mine[-_TOLD:]))
        there = self._ranks.replace(f"replica/{self._rank}", self._heard, told)
        self._heard = there
        if there != told:
            self._other = _told.decode(there)
        if self._other is not None:  # it may be ahead, and is compared again until this process is there
            self._compare(mine, self._other)
        return there == told

    def exchange_last(self) -> None:
        """Hear what was told last, and leave what this process was given for those that come later."""
        if not self.exchange():
            self.exchange()

    def _compare(self, mine: list[_Digest], other: _Told) -> None:
        digests = {one.number: one for one in mine}
        known = [(digests[theirs.number], theirs) for theirs in other.digests if theirs.number in digests]
        differ = next((at for at, (ours, theirs) in enumerate(known) if ours.digest != theirs.digest), None)
        if differ is None:
            return
        ours, _ = known[differ]
        before = " or before it" if not differ and ours.number else ""
        raise LoaderError.at(
            f"the processes {other.process} and {self._ranks.rank} share the data of rank {self._rank}, and were given "
            f"different batches in step {ours.step}{before}",
            todo="give both the same pipe, without random stages of your own; look which of them skipped a sample",
            rank=self._ranks.rank,
            failed_rank=other.process,
        )


def batch_digest(batch: Any) -> str:
    """Return 16 hexadecimal digits of all that is in a batch, tensors by their bytes.

    Example:
        >>> one = {"x": torch.ones(2), "y": ["a"]}
        >>> batch_digest(one) == batch_digest({"x": torch.ones(2), "y": ["a"]}), batch_digest(one) == batch_digest([])
        (True, False)
    """
    state = xxhash.xxh3_64()
    _add(state, batch)
    return state.hexdigest()


def _add(state: Any, item: Any) -> None:
    if isinstance(item, torch.Tensor):
        state.update(f"{item.dtype}{tuple(item.shape)}".encode())
        state.update(item.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    elif isinstance(item, Mapping):
        for name, value in item.items():
            state.update(repr(name).encode())
            _add(state, value)
    elif isinstance(item, (list, tuple)):
        state.update(f"[{len(item)}".encode())
        for value in item:
            _add(state, value)
    else:
        state.update(item if isinstance(item, bytes) else repr(item).encode())
