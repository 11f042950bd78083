"""What a plan draws from: the indexes, what is chosen of them and how, and what tells all that from others."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from torchdata_ais.arguments import check_number
from torchdata_ais.errors import UsageError
from torchdata_ais.index import IndexedSamples, Mixture, ShardsFrom, check_no_places, opened_index
from torchdata_ais.plan import Shuffle, Sources, Tail
from torchdata_ais.plan.hashing import Integers
from torchdata_ais.plan.packing import Groups
from torchdata_ais.reading.joined import JoinedIndexes
from torchdata_ais.reading.packing import Grouping, digest_of
from torchdata_ais.store import StoreOptions


@dataclass(eq=False, repr=False)
class PlannedSources:
    """Indexes, and how samples are drawn from them.

    Args:
        source: An index, a `Mixture`, or the places of stored indexes, which are opened when they are needed.
        positions: The numbers of the samples to read, instead of all.
        cluster: How to reach places.
        shuffle: See `AISSampleReader`, as `tail`, `epoch_steps` and `run_bytes`.
        tail: Likewise.
        epoch_steps: Likewise.
        run_bytes: Likewise.
        index_dir: Likewise.
        shards_from: Likewise.
    """

    source: Any
    positions: InitVar[npt.ArrayLike | None]
    cluster: StoreOptions | None
    _: KW_ONLY
    shuffle: Shuffle
    tail: Tail
    epoch_steps: int | None
    run_bytes: int
    index_dir: str | os.PathLike[str] | None
    shards_from: ShardsFrom = None

    def __post_init__(self, positions: npt.ArrayLike | None) -> None:
        self._numbers = None if positions is None else _numbers(positions)
        self._grouping: Grouping | None = None
        self._groups: list[Groups] | None = None
        self.check(self.epoch_steps, self.tail)
        if isinstance(self.source, (IndexedSamples, Mixture)):
            check_no_places(self.shards_from)
            self._samples()  # says what is wrong with it

    def check(self, epoch_steps: int | None, tail: Tail | None) -> None:
        """Raise `UsageError` where what is given instead of the own cannot be; nothing is opened for it."""
        check_number(epoch_steps, 1, "epoch_steps", optional=True)
        Sources((1,), **self._how_with(epoch_steps, tail))

    @cached_property
    def mixture(self) -> Mixture:
        """What is read, as a mixture (of one)."""
        if isinstance(self.source, Mixture):
            return self.source.kept_in(self.index_dir)
        if isinstance(self.source, IndexedSamples):
            index = self.source
        else:
            places = self.source if isinstance(self.source, (list, tuple)) else [self.source]
            index = IndexedSamples.concat(
                [opened_index(place, self.shards_from, self.cluster) for place in places]
            )
        if not len(index):
            raise UsageError.at(f"{index!r} has no sample", todo="index shards that have some")
        return Mixture({index: 1}).kept_in(self.index_dir)

    @cached_property
    def joined(self) -> JoinedIndexes:
        """The indexes, and those that are joined to them."""
        return JoinedIndexes(self.mixture.sources)

    def group_by(self, grouping: Grouping | None) -> None:
        """Draw groups of samples instead of samples; None: samples again."""
        if grouping is None or self._grouping is None or grouping.words != self._grouping.words:
            self._groups = None
        self._grouping = grouping

    @property
    def groups(self) -> list[Groups] | None:
        """The groups that are drawn, of each source; None: samples are drawn."""
        if self._grouping is not None and self._groups is None:
            self._groups = [
                self._grouping.groups(number, index, self._numbers, shuffle=self.shuffle == "samples")
                for number, index in enumerate(self.mixture.sources)
            ]
        return self._groups

    def sources_with(self, epoch_steps: int | None = None, tail: Tail | None = None) -> Sources:
        """Return what is drawn from, and how, as the plan has it.

        Args:
            epoch_steps: Instead of what was given.
            tail: Likewise.
        """
        mixture = self.mixture
        return Sources(
            self._samples(),
            self._mean_bytes() if self.shuffle == "runs" else (),
            mixture.schedule,
            mixture.stop,
            **self._how_with(epoch_steps, tail),
        )

    def _mean_bytes(self) -> tuple[float, ...]:
        means = tuple(index.mean_bytes() for index in self.mixture.sources)
        groups = self.groups
        if groups is None:
            return means
        return tuple(mean * len(one.order) / len(one) for mean, one in zip(means, groups, strict=True))

    def _how_with(self, epoch_steps: int | None, tail: Tail | None) -> dict[str, Any]:
        return {
            "shuffle": self.shuffle,
            "tail": self.tail if tail is None else tail,
            "epoch_steps": self.epoch_steps if epoch_steps is None else epoch_steps,
            "run_bytes": self.run_bytes,
        }

    def _samples(self) -> tuple[int, ...]:
        """Return how many samples each source has; raise where `positions=` cannot be."""
        samples = tuple(len(index) for index in self.mixture.sources)
        if self.groups is not None:
            return tuple(map(len, self.groups))
        numbers = self._numbers
        if numbers is None:
            return samples
        if len(samples) > 1:
            raise UsageError.at(
                "positions= of a mixture", todo="select from its indexes: index.select(numbers)"
            )
        if int(numbers.min()) < 0 or int(numbers.max()) >= samples[0]:
            raise UsageError.at(
                f"positions= has {numbers.min()} to {numbers.max()}, the index {samples[0]} samples",
                todo="numbers begin at 0",
            )
        return (len(numbers),)

    def digests(self) -> list[str]:
        """Return what tells each source from others, as 16 hexadecimal digits."""
        chosen = b"" if self._numbers is None else self._numbers.tobytes()
        own = [
            xxhash.xxh64_hexdigest(index.digest.encode() + b"/" + chosen) for index in self.mixture.sources
        ]
        if self.groups is None:
            return own
        grouped = zip(own, map(digest_of, self.groups), strict=True)
        return [xxhash.xxh64_hexdigest(f"{one}/{groups}".encode()) for one, groups in grouped]

    def weights_digest(self) -> str:
        """Return what tells the weights, and when they hold, from others, as 16 hexadecimal digits."""
        digests = self.digests()
        said = [
            (start, sorted(pair for pair in zip(digests, weights, strict=True) if pair[1]))
            for start, weights in self.mixture.schedule
        ]
        return xxhash.xxh64_hexdigest(repr(said).encode())

    def order(self, epoch_steps: int | None = None, tail: Tail | None = None) -> str:
        """Return in words how the order is made: a state fits only the same."""
        usual = Sources((1,))
        how = self._how_with(epoch_steps, tail)
        shown = [f"{name}={value!r}" for name, value in how.items() if value != getattr(usual, name)]
        grouped = [] if self._grouping is None else [self._grouping.words]
        return ", ".join([*shown, f"stop={self.mixture.stop!r}", *grouped])

    def told(self) -> list[str]:
        """Return what all ranks must have been given alike."""
        mixture = self.mixture
        sources = [
            f"{len(index)} samples with digest {digest}"
            for index, digest in zip(mixture.sources, self.digests(), strict=True)
        ]
        weights = [f"weights {weights} from position {start}" for start, weights in mixture.schedule]
        chosen = [] if self._numbers is None else [f"{len(self._numbers)} positions"]
        return [*sources, *weights, self.order(), *chosen]

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if isinstance(self.source, (IndexedSamples, Mixture)):
            state.pop("mixture", None)  # made anew of what is kept anyway
            state.pop("joined", None)
        return state


def _numbers(positions: npt.ArrayLike) -> Integers:
    """Return `positions=` as numbers; what is none is not rounded to one."""
    numbers = np.asarray(positions)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1 or not len(numbers):
        raise UsageError.at(
            f"positions= of shape {numbers.shape} and type {numbers.dtype}",
            todo="pass a list of whole numbers, at least one",
        )
    return numbers.astype(np.int64)
