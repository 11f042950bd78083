"""Processes that share a rank's data compare what they give: replicas of a model must see the same batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import xxhash

from torchdata_ais.errors import LoaderError
from torchdata_ais.ranks.alive import Ranks
from torchdata_ais.world import World

__all__ = ["Replicas", "batch_digest"]


class Replicas:
    """Compares every n-th batch of this process with those of the others that have the same data.

    Args:
        ranks: All processes of the loader, and their store.
        world: This process's rank in the data.
        every: Steps from one comparison to the next: one request to the store each.
    """

    def __init__(self, ranks: Ranks, world: World, every: int) -> None:
        self._ranks, self._rank, self._every = ranks, world.rank, every

    def compare(self, step: int, batch: Any) -> None:
        """Compare the batch of a global step, if it is its turn.

        Raises:
            LoaderError: Another replica was given another batch; both are named.
        """
        if step % self._every:
            return
        digest = batch_digest(batch)
        first, process = self._ranks.first_to_tell(f"replica/{self._rank}/{step}", digest)
        if first != digest:
            raise LoaderError.at(
                f"the processes {process} and {self._ranks.rank} share the data of rank {self._rank}, and were given "
                f"different batches in step {step}",
                todo="give both the same pipe, without random stages of your own; look which of them skipped a sample",
                rank=self._ranks.rank,
                failed_rank=process,
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
