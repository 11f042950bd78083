"""`to_hf`: a stream as an ``IterableDataset`` of Hugging Face's datasets."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchdata_ais.arguments import checked
from torchdata_ais.codecs.optional import require
from torchdata_ais.errors import UsageError
from torchdata_ais.loaders.instance import InstancePlan, begin
from torchdata_ais.ranks.listing import Listing
from torchdata_ais.ranks.rendezvous import begin_together
from torchdata_ais.ranks.sharding import shard_instance
from torchdata_ais.stage.pipe import IterDataPipe
from torchdata_ais.stage.slots import check_planned
from torchdata_ais.world import World


@checked
def to_hf(pipe: IterDataPipe[Any], *, parts: int | None = None, seed: int = 0) -> Any:
    """Return a stream as a ``datasets.IterableDataset``.

    Args:
        pipe: A pipe that gives one dict a sample, such as ``.decode()`` does: no batches, for Hugging Face's classes
            batch themselves.
        parts: Parts that workers and ranks share out (`num_shards` there); default one a shard of the listing, at most
            1,024. Each sample is in one of them.
        seed: Of what the pipe draws. It draws the same in each epoch; ``dataset.shuffle(seed=...)`` with
            ``set_epoch(n)`` changes the order of the parts.

    Returns:
        An ``IterableDataset``: ``split_dataset_by_node``, `DataLoader` with workers, ``Trainer(train_dataset=...)``,
        ``state_dict()`` and ``load_state_dict()`` work as theirs. A resume reads the parts under way again from their
        beginning, as they do; `ais_loader` would not.

    Raises:
        MissingLibraryError: Hugging Face's datasets are not installed.
        UsageError: The pipe reads by index (there `SampleDataset` is what Trainer takes), or cannot be copied.

    Example::

        dataset = to_hf(AISSourceLister("ais://pets/train-").load_tar().group_samples().decode())
        next(iter(dataset))["cls"]
    """
    datasets = require("datasets", "to_hf()")
    if check_planned(pipe) is not None:
        raise UsageError.at(
            "to_hf() of a pipe that reads by index",
            todo="pass SampleDataset(index, transform) as train_dataset, or a loader: see the guide",
        )
    listing, _ = begin_together(pipe, World(0, 1), {}, 0)
    count = parts or min(1024, max(1, listing.shards))
    return datasets.IterableDataset.from_generator(
        _samples, gen_kwargs={"parts": list(range(count)), "source": _Source(pipe, listing, count, seed)}
    )


@dataclass
class _Source:
    """The pipe in `count` parts."""

    pipe: IterDataPipe[Any]
    listing: Listing
    count: int
    seed: int

    def part(self, number: int) -> Iterator[Any]:
        pipe = copy.deepcopy(self.pipe)  # two iterators of the dataset may stand at different samples
        shard_instance(pipe, self.count, number)
        begin(pipe, InstancePlan.of(self.seed, 0, self.count, number))
        with self.listing.on(pipe):
            for sample in pipe:
                if not isinstance(sample, Mapping):
                    raise UsageError.at(
                        f"to_hf() was given a pipe of items of type {type(sample).__name__}",
                        todo="let the last stage give one dict a sample: leave out to_tuple() and batched()",
                    )
                yield {
                    name: value
                    for name, value in sample.items()
                    if not name.startswith("__") or name == "__key__"
                }


def _samples(parts: list[int], source: _Source) -> Iterator[dict[str, Any]]:
    for number in parts:
        yield from source.part(number)
