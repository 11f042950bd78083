"""`SampleDataset`: samples of an index by number for torch's `DataLoader`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex

from torch.utils.data import Dataset, get_worker_info

from torchdata_ais._util.arguments import check_function, checked
from torchdata_ais.errors import AISError, ArgumentError, UsageError
from torchdata_ais.index import IndexedSamples, ShardsFrom, opened_index
from torchdata_ais.index.listing_check import compare_with_listing
from torchdata_ais.index.samples_view import index_html
from torchdata_ais.pipes.base.pickle_check import received, sendable
from torchdata_ais.pipes.base.sources import StageTransport
from torchdata_ais.reading.by_index import IndexedReader
from torchdata_ais.reading.joined import JoinedIndexes, read_whole
from torchdata_ais.reading.open_shard import Safety
from torchdata_ais.reading.runs import naming_index, sample_of, url_of_shard
from torchdata_ais.samples import Sample, pack_place
from torchdata_ais.store import Cluster, ObjectCache, Retry, given_options

_log = logging.getLogger("torchdata_ais")


class SampleDataset(Dataset[Any]):
    """The samples of an index as a map-style dataset.

    It has ``len(dataset)`` and ``dataset[i]``, and works with any sampler of torch. A batch is one read: `DataLoader`
    with ``batch_size=`` requests all of its samples at once (``__getitems__``). The dataset pickles, and works in
    workers of any start method. Shards not verified by reading (`SampleIndex.proof`) are compared with a listing when
    it is made.

    Args:
        index: A `SampleIndex`, or the place of a stored one, as `SampleIndex.open` takes it.
        transform: Called with each `Sample`, whose fields are bytes; its result is the item. `Decoder` is one.
        shards_from: Of a place: further places whose shards the index may name, see `SampleIndex.open`.
        cluster: As for `load_tar`; default that of the opened index. So is `retry`.
        prefetch_bytes: Size of one request, of a batch.
        safety: As for `load_tar`: ``max_sample_bytes`` counts here.
        cache: As for `load_tar`: whole shards are kept, and read from there.

    Memory:
        A batch of `DataLoader`: its samples, and ``prefetch_bytes + max(sample)`` while they are read; 8 bytes a shard
        and a selected sample for the index.

    Raises:
        IndexError: The sample does not exist.
        SampleIndexError: A shard, or a sample in it, differs from the index.
        ObjectChangedError: A shard is another one than was indexed.
        TransportError: As for `load_tar`.
        SampleError: As the stream would.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from torchdata_ais import Decoder, SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> dataset = SampleDataset(SampleIndex.build(example_shards(counts=(3, 2))), Decoder())
        >>> len(dataset), dataset[-1]["cls"]
        (5, 4)
        >>> [batch["cls"].tolist() for batch in DataLoader(dataset, batch_size=2)]
        [[0, 1], [2, 3], [4]]
    """

    @checked
    def __init__(
        self,
        index: IndexedSamples | str | os.PathLike[str],
        transform: Callable[[Sample], Any] | None = None,
        *,
        shards_from: ShardsFrom = None,
        cluster: Cluster = None,
        prefetch_bytes: int | None = None,
        retry: Retry | None = None,
        safety: Safety | None = None,
        cache: ObjectCache | None = None,
    ) -> None:
        given = given_options(cluster)
        index = opened_index(index, shards_from, given)
        if not isinstance(index, IndexedSamples):
            raise UsageError.at(
                f"SampleDataset was given an item of type {type(index).__name__}, not an index",
                todo="pass SampleIndex.open(...) or its place; a Mixture is read by AISSampleReader",
            )
        if transform is not None:
            check_function(transform, 1, "transform=")
        self.index = index
        self.transform = transform
        self._transport = StageTransport(given, prefetch_bytes=prefetch_bytes, retry=retry)
        self._joined = JoinedIndexes([index])
        for each in self._joined.all:
            compare_with_listing(each, self._transport.resolve_over(each.options))
        self._safety = safety or Safety()
        self._cache = cache
        self._noted = False

    def __getstate__(self) -> object:
        return {**vars(self), "transform": sendable(self.transform)}

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state, transform=received(state["transform"]))

    @property
    def classes(self) -> tuple[str, ...] | Mapping[str, tuple[str, ...]] | None:
        """The names of the classes; see `torchdata_ais.SampleIndex.classes`."""
        return self.index.classes

    def _repr_html_(self) -> str:
        return f"<b>{type(self).__name__}</b>{index_html(self.index)}"

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, number: SupportsIndex) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[SupportsIndex]) -> list[Any]:
        """Return some samples, in the requested order, in one read.

        One may be requested twice.
        """
        options = [self._transport.resolve_over(index.options) for index in self._joined.all]
        reader = IndexedReader(
            options, options[0].prefetch_bytes, self._safety.max_sample_bytes, cache=self._cache
        )
        wanted = list(self._joined.wanted(0, [self._place(one) for one in numbers]))
        items = []
        for whole in read_whole(reader.read, [wanted]):
            found, reference = whole.found, whole.wanted.reference
            if isinstance(found, AISError):
                raise naming_index(found, self.index, reference)
            sample = sample_of(found, url_of_shard(reference.shard.name, options[0].endpoint))
            sample.place = pack_place(reference.number, found.offset)
            self._joined.add_partners(sample, whole)
            self.index.relabel(sample, reference)
            items.append(sample if self.transform is None else self.transform(sample))
        if self.transform is None and not self._noted and len(items) > 1:
            self._note_bytes(items[0])
        return items

    def _note_bytes(self, sample: Sample) -> None:
        """Log once that a batch of DataLoader has bytes in it."""
        fields = [name for name, value in sample.items() if isinstance(value, bytes)]
        worker = get_worker_info()
        if fields and (worker is None or worker.id == 0):
            _log.warning(
                "the batches hold bytes, as stored (%s): make the data set with SampleDataset(index, Decoder())",
                ", ".join(fields),
            )
        self._noted = True

    def _place(self, number: SupportsIndex) -> int:
        """Return the number from the beginning of one that may count from the end."""
        if not isinstance(number, SupportsIndex):
            raise ArgumentError.at(
                f"a SampleDataset was asked for {number!r:.60}, of type {type(number).__name__}",
                todo="its samples have numbers from 0 on; torch.utils.data.Subset(dataset, numbers) is a part of it",
            )
        place = number.__index__()
        if not -len(self) <= place < len(self):
            raise IndexError(
                f"there is no sample {place} in a data set of {len(self)} samples, which begin at 0"
            )
        return place % len(self)

    def __repr__(self) -> str:
        return f"SampleDataset({self.index!r})"
