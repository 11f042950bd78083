""".resampled(), .split_by_node() and .split_by_worker()."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import count
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.base.contract import MemoryBound
from torchdata_ais.pipes.base.pipe import IterDataPipe, Pipe, as_pipe
from torchdata_ais.pipes.base.registry import stage
from torchdata_ais.pipes.base.seed import EpochSeed, Seeded, mix_seed
from torchdata_ais.pipes.base.upstream import ensure_sharded
from torchdata_ais.pipes.planned.shared_seed import sharder_above


@stage("resampled")
class Resampler(Pipe[Any], Seeded):
    """Draw items at random, with replacement, without end (``.resampled()``).

    Meant for shards, before ``.load_tar()``: all ranks and workers draw the same sequence, and the sharding filter
    deals it out, so every worker reads different shards and none runs out. Give the epochs a length with
    ``.with_epoch(n)``. Samples are repeated and left out: for training, not for evaluation.

    Args:
        source: Pipe of shards, or of any items few enough to be held.
        n: How many to draw in each epoch; None for no end.
        seed: Mixed into the seed the loader sends; without a loader the draws are a function of it and the epoch.
        deterministic: False draws from the system's entropy instead: another sequence in each worker and run.

    Yields:
        Items of the source; nothing, if it has none.

    Order:
        A function of (order of the source, seed, epoch). After a sharding filter also of the worker.

    Memory:
        All items of the source.

        >>> Resampler([]).memory_bound().text
        'all items of the source'

    Example:
        >>> pipe = Resampler(["a.tar", "b.tar"], 100)
        >>> sorted(set(pipe))
        ['a.tar', 'b.tar']
    """

    repeats = True
    gives = "more"
    mixes = True

    def __init__(
        self, source: object, n: int | None = None, *, seed: int = 0, deterministic: bool = True
    ) -> None:
        super().__init__(source)
        if n is not None and n < 0:
            raise UsageError.at(f"n={n}", todo="use a number of draws, or None for no end")
        self._n = n
        self._deterministic = deterministic
        self.epoch_seed = EpochSeed(seed)

    def memory_bound(self) -> MemoryBound:
        return MemoryBound("all items of the source")

    def arguments(self) -> str:
        shown = [] if self._n is None else [f"{self._n}"]
        return ", ".join(shown + ([] if self._deterministic else ["deterministic=False"]))

    def _items(self) -> Iterator[object]:
        seed = self.epoch_seed.next_epoch()
        sharder = sharder_above(self._source)
        if sharder is not None:
            seed = mix_seed(seed, sharder.instance_id)
        rng = random.Random(seed if self._deterministic else os.urandom(16))
        items = list(self._source)
        if not items:
            return
        for _ in count() if self._n is None else range(self._n):
            yield items[int(rng.random() * len(items))]


@stage("split_by_node")
class SplitByNode(Pipe[Any]):
    """Split shards over ranks and workers (``.split_by_node()``).

    It makes torch's ``.sharding_filter()``.
    Ranks and workers are split in one step, the only one for which loaders keep the shuffle before it the same
    everywhere. So ``.split_by_node()``, ``.split_by_worker()``, one after the other, or none at all before
    ``.load_tar()``, come to the same: every shard is read by exactly one worker of one rank.

    Args:
        source: Pipe of shards.

    Yields:
        The items of this worker: every `n`-th, for `n` ranks times workers.

    Order:
        That of the source.

    Memory:
        One item.

    Example:
        >>> pipe = SplitByNode(range(6))
        >>> pipe.apply_sharding(3, 1)
        >>> list(pipe)
        [1, 4]
    """

    def __new__(cls, source: object) -> IterDataPipe[Any]:  # type: ignore[misc]
        """Return a sharding filter over `source`, or a `source` that has one."""
        return ensure_sharded(as_pipe(source))


@stage("split_by_worker")
class SplitByWorker(SplitByNode):
    """Split shards over ranks and workers (``.split_by_worker()``).

    Another name of `SplitByNode`.

    Args:
        source: Pipe of shards.

    Yields:
        The items of this worker.

    Order:
        That of the source.

    Memory:
        One item.

    Example:
        >>> pipe = SplitByWorker(range(6))
        >>> SplitByWorker(pipe) is pipe
        True
    """
