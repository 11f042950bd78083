"""Rank and worker of this process, and the seeds that follow from them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from torchdata_ais._util.world import known_ranks
from torchdata_ais.pipes.base.seed import mix_seed
from torchdata_ais.pipes.repeated import passes
from torchdata_ais.webdataset.left_out import explaining

enforce_security = os.environ.get("WDS_SECURE", "0") not in ("", "0")
"""Whether `gopen` and `tarfile_samples` refuse local files, as in webdataset; shells and pickles are always refused."""


class PipelineStage:
    """Base of stages written as classes.

    ``run(source)`` returns the items that come of those of `source`.
    """

    def run(self, *args: Any, **named: Any) -> Any:
        """Return an iterator.

        The first stage of a pipeline is called without a source.
        """
        raise NotImplementedError


class Place(NamedTuple):
    """Number of this process, and the number of processes."""

    rank: int
    world_size: int
    worker: int
    num_workers: int


def pytorch_worker_info(group: object = None) -> Place:
    """Return rank, ranks, worker and workers of this process.

    Example:
        >>> rank, world_size, worker, num_workers = pytorch_worker_info()
        >>> worker, num_workers
        (0, 1)
    """
    known, ranks = known_ranks(group)
    rank, ranks = (0, 1) if known is None else (known, ranks)
    info = get_worker_info()
    if info is not None:
        return Place(rank, ranks, info.id, info.num_workers)
    if "WORKER" in os.environ and "NUM_WORKERS" in os.environ:
        return Place(rank, ranks, int(os.environ["WORKER"]), int(os.environ["NUM_WORKERS"]))
    return Place(rank, ranks, 0, 1)


def pytorch_worker_seed(group: object = None) -> int:
    """Return a number that differs between workers and ranks."""
    place = pytorch_worker_info(group)
    return place.rank * 1000 + place.worker


def run_seed(seed: object, run: int, *, own: bool = True) -> int:
    """Return the seed of one run, a function of (seed, epoch, rank, worker).

    In a worker the seed that its loader draws for each epoch counts, too. Without it, workers that are replaced in
    each epoch would repeat the first one. Rank and worker count only if each draws its `own`.

    Example:
        >>> run_seed(7, 0), run_seed(7, 1)
        (7, 8)
    """
    seed = 0 if seed is None else seed
    place = pytorch_worker_info()
    base = loader_seed()
    if base is None and isinstance(seed, int) and (place.world_size == 1 or not own):
        return seed + run
    return mix_seed(seed, "run", run, base, *(place if own else ()))


def loader_seed() -> int | None:
    """Return the loader's seed for this epoch, for all its workers; else None."""
    info = get_worker_info()
    return None if info is None else info.seed - info.id


def identity(x: object) -> Any:
    """Return `x`."""
    return x


def make_seed(*args: object) -> int:
    """Return a number below 2**31 of the arguments, the same in every process.

    Example:
        >>> make_seed(3, "train") == make_seed(3, "train") != make_seed("train", 3)
        True
    """
    return mix_seed(*args) & 0x7FFFFFFF


def guess_batchsize(batch: Any) -> int:
    """Return the length of the first column of a batch."""
    return len(batch[0])


def lookup_sym(sym: str, modules: Iterable[str]) -> Any:
    """Return the first object of that name in modules of the program, or None."""
    for name in modules:
        found = vars(importlib.import_module(name, package=__package__)).get(sym)
        if found is not None:
            return found
    return None


def repeatedly(
    source: Iterable[object],
    nepochs: int | None = None,
    nbatches: int | None = None,
    nsamples: int | None = None,
    batchsize: Callable[[Any], int] = guess_batchsize,
) -> Iterator[Any]:
    """Iterate `source` again, up to so many epochs, batches or samples.

    Example:
        >>> list(repeatedly([1, 2], nbatches=3))
        [1, 2, 1]
    """
    samples = 0
    for batch in islice(passes(lambda: source, nepochs), nbatches):
        yield batch
        samples += 0 if nsamples is None else batchsize(batch)
        if nsamples is not None and samples >= nsamples:
            return


__getattr__ = explaining(__name__)
