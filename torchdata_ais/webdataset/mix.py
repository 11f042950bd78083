"""Datasets made of others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import IterableDataset

from torchdata_ais import pipes
from torchdata_ais.webdataset.left_out import explaining
from torchdata_ais.webdataset.utils import run_seed


class RoundRobin(IterableDataset[Any]):
    """Take one item of each dataset in turn.

    Args:
        datasets: The datasets.
        longest: Whether to go on with the rest when one has ended; else the stream ends there.

    Example:
        >>> list(RoundRobin([[1, 2, 3], [10]], longest=True))
        [1, 10, 2, 3]
    """

    def __init__(self, datasets: Sequence[Iterable[object]], longest: bool = False) -> None:
        self.datasets = datasets
        self.longest = longest

    def __iter__(self) -> Iterator[Any]:
        yield from pipes.RoundRobin(list(self.datasets), longest=self.longest)


class RandomMix(IterableDataset[Any]):
    """Take each item from a dataset chosen by chance.

    Args:
        datasets: The datasets.
        probs: Their weights, in any scale; default all the same.
        longest: Whether to go on with the rest when one has ended; else the stream ends there.
        seed: The choice is a function of it, of the epoch and of the worker.

    Example:
        >>> sorted(RandomMix([[1, 2], [10]], longest=True))
        [1, 2, 10]
    """

    def __init__(
        self,
        datasets: Sequence[Iterable[object]],
        probs: Sequence[float] | None = None,
        longest: bool = False,
        seed: int = 0,
    ) -> None:
        self.datasets = datasets
        self.probs = probs
        self.longest = longest
        self.seed = seed
        self.epoch = -1

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        seed = run_seed(self.seed, self.epoch)
        yield from pipes.RandomMix(list(self.datasets), probs=self.probs, longest=self.longest, seed=seed)


class MockDataset(IterableDataset[Any]):
    """Yield the same sample again and again.

    Example:
        >>> list(MockDataset({"cls": 1}, 2))
        [{'cls': 1}, {'cls': 1}]
    """

    def __init__(self, sample: object, length: int) -> None:
        self.sample = sample
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.length):
            yield self.sample


__getattr__ = explaining(__name__)
