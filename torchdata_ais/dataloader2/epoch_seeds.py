"""The seeds of an epoch under DataLoader2: the next ones of the loader, and the same on all ranks."""

from __future__ import annotations

from typing import Any

import torch

from torchdata_ais.dataloader2.torchdata_names import SeedGenerator
from torchdata_ais.errors import UsageError
from torchdata_ais.ranks.alive import Ranks


def epoch_seeds(seed_generator: Any, ranks: Ranks | None, number: int, *, apart: bool) -> Any:
    """Return an epoch's seed generator, and leave `seed_generator` at the next epoch's.

    Args:
        seed_generator: The loader's.
        ranks: The ranks that share the seed, if they can reach each other.
        number: How many epochs were begun.
        apart: Whether there are other ranks, which nobody can ask.

    Raises:
        UsageError: The ranks would have different seeds.
    """
    seed = seed_generator.generate_shared_seed()
    drawn = _drawn_from_torch(seed)
    if drawn:
        # torchdata asked torch's generator for the seed and put the number back: take it out, so that the next
        # epoch gets another one.
        torch.empty((), dtype=torch.int64).random_()
    if ranks is not None:
        shared = SeedGenerator(ranks.share_seed(number, seed))
        return shared.spawn(ranks.rank, inplace=True)
    if apart and drawn:
        raise UsageError.at(
            "the loader has no seed, and without a store the ranks cannot share one: each would take its part "
            "of another order",
            todo="call loader.seed(n), with the same n on all ranks, or pass store=",
        )
    return SeedGenerator(seed)


def _drawn_from_torch(seed: int) -> bool:
    """Return whether `seed` is what torchdata makes of the present state of torch's global generator.

    Either directly, or after a DistributedReadingService has made a seed for all ranks of it.
    """
    with torch.random.fork_rng(devices=[]):
        direct = SeedGenerator().generate_shared_seed()
    return seed in (direct, SeedGenerator(direct).generate_shared_seed())
