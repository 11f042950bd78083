"""Seeds out of one seed: equal in all processes, or another in each.

The generator is Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3; SC 2011): a block of four
words for each value of a counter. Seeds must be those that torchdata 0.9 draws, so that orders are the same.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from torchdata_ais.errors import UsageError

_ROUNDS = 10
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85  # increments of the key: the golden ratio, and the square root of 3 less 1
_WORD = 0xFFFFFFFF
_SEEDS = 1 << 64


def _block(key: int, counter: int) -> tuple[int, int]:
    """Return the block at `counter`, as two numbers of 64 bits."""
    low, high = key & _WORD, key >> 32
    a, b, c, d = (counter >> shift & _WORD for shift in (0, 32, 64, 96))
    for _ in range(_ROUNDS):
        one, two = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = two >> 32 ^ b ^ low, two & _WORD, one >> 32 ^ d ^ high, one & _WORD
        low, high = low + _WEYL[0] & _WORD, high + _WEYL[1] & _WORD
    return b << 32 | a, d << 32 | c


class PhiloxEngine:
    """A sequence of 64-bit numbers, and dependent engines: `spawn`.

    Block 0 is the key of the spawned ones; the numbers are the halves of the blocks from 1 on.

    Example:
        >>> engine = PhiloxEngine(123)
        >>> engine.generate() == PhiloxEngine(123).generate(), engine.generate() == engine.generate()
        (True, False)
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed: int | None = None
        self._drawn = 0
        if seed is not None:
            self.seed(seed)

    def seed(self, seed: int) -> PhiloxEngine:
        """Start the sequence of `seed` (64 bits of it count); return this engine."""
        self._seed, self._drawn = seed % _SEEDS, 0
        return self

    def generate(self) -> int:
        """Return the next number."""
        assert self._seed is not None, "Please provide seed to PhiloxEngine"
        number = _block(self._seed, 1 + self._drawn // 2)[self._drawn % 2]
        self._drawn += 1
        return number

    def spawn(self, index: int) -> PhiloxEngine:
        """Return engine `index` of those of the seed, whatever was drawn."""
        assert index >= 0, f"Expected a non-negative value for spawn, but found {index}"
        assert self._seed is not None, "Please provide seed to PhiloxEngine"
        return PhiloxEngine(_block(_block(self._seed, 0)[0], index // 2 * 2)[index % 2])

    def clone(self) -> PhiloxEngine:
        """Return an engine that continues this sequence."""
        other = PhiloxEngine(self._seed)
        other._drawn = self._drawn
        return other


class SeedGenerator:
    """Seeds for the pipes of a graph: shared by processes, or of a worker.

    Without a seed of at most 64 bits it takes one from torch's global generator, and leaves that as it was.

    Example:
        >>> one, two = (SeedGenerator(7).spawn(worker) for worker in range(2))
        >>> one.generate_shared_seed() == two.generate_shared_seed(), one.generate_seed() == two.generate_seed()
        (True, False)
    """

    def __init__(self, seed: int | None = None) -> None:
        self._shared_rng = PhiloxEngine()
        self._worker_rng = PhiloxEngine()
        self.seed(seed)

    def seed(self, seed: int | None = None) -> None:
        """Start again with `seed`, or with one of torch's global generator."""
        seed = _torch_seed() if seed is None else checked(seed)
        self._shared_rng.seed(seed)
        self._worker_rng.seed(seed)

    def generate_shared_seed(self) -> int:
        """Return the next seed of those that are equal in all processes."""
        return self._shared_rng.generate()

    def generate_seed(self) -> int:
        """Return the next seed of this worker."""
        return self._worker_rng.generate()

    def spawn(self, worker_id: int, inplace: bool = False) -> SeedGenerator:
        """Return the generator of a worker, or become it."""
        if worker_id < 0:
            raise UsageError.at(f"worker_id={worker_id}", todo="workers and ranks are numbered from 0")
        other = self
        if not inplace:
            other = SeedGenerator(0)
            other._shared_rng = self._shared_rng.clone()
        other._worker_rng = self._worker_rng.spawn(worker_id)
        return other


def checked(seed: int) -> int:
    """Return `seed`, or raise `UsageError` if it has more than 64 bits."""
    if seed >= _SEEDS:
        raise UsageError.at(f"the seed {seed} has more than 64 bits", todo="pass a number below 2**64")
    return seed


def _torch_seed() -> int:
    # The generator is put back: looking costs nothing. No device is named: that would start CUDA in this process.
    with torch.random.fork_rng(devices=[]):
        bounds = torch.iinfo(torch.int64)
        return int(torch.randint(bounds.min, bounds.max, ()).item()) - bounds.min


def dist_share_seed(seed: int, process_group: Any = None) -> int:
    """Return the seed that rank 0 gave, on every rank."""
    half = _SEEDS >> 1  # a tensor has no unsigned ones
    shared = torch.tensor(seed - half, dtype=torch.int64)
    dist.broadcast(shared, src=0, group=process_group)
    return int(shared.item()) + half
