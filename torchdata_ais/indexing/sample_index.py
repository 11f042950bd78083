"""`SampleIndex`: every sample of plain tars, by number; made of shards, and compared with them."""

from __future__ import annotations

import os
from typing import Any

from typing_extensions import Self, Unpack

from torchdata_ais.index import IndexedSamples
from torchdata_ais.indexing.build import Method, build_stored, home_of
from torchdata_ais.indexing.verify import problems_of
from torchdata_ais.jobs import OnProgress
from torchdata_ais.store import Cluster, ClusterNames, cluster_options

__all__ = ["SampleIndex", "build_index"]


class SampleIndex(IndexedSamples):
    """The samples of any number of stored indexes, in their order, or some of them.

    Made by `build` (or the command ``torchdata-ais index``) and `open`; `concat`, `select` and `split` make others of
    it. An index does not change.

    Order: as stored: shards as they were listed, samples as they stand in their shard.

    Memory: 8 bytes a shard and 8 bytes a selected sample, and at most 16 MiB of tables that were asked for last.

    Attributes:
        shards: The rows of the table of shards.
        keys: The keys of the samples, a lazy Arrow column.
        fields: The combinations of fields that samples have.
        proof: ``"bytes"`` or ``"headers"``.
        digest: What the index covers.

    Example:
        >>> from torchdata_ais import SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> index = SampleIndex.build(example_shards(counts=(3, 2)))
        >>> len(index), index[4].key, index[4].fields, index.proof
        (5, '00004', ('cls', 'txt'), 'bytes')
        >>> [reference.key for reference in index.select([4, 0])]
        ['00000', '00004']
    """

    @classmethod
    def build(
        cls,
        sources: Any,
        *,
        method: Method = "auto",
        processes: int = 0,
        where: str | os.PathLike[str] | None = None,
        previous: IndexedSamples | None = None,
        progress: OnProgress | None = None,
        cluster: Cluster = None,
        **named: Unpack[ClusterNames],
    ) -> Self:
        """Make the index of the samples of shards.

        Args:
            sources: What `.list_ais()` takes: prefixes, templates, paths, folders, one or several.
            method: ``"cluster"``: AIStore's own job looks at the headers where the shards lie, and no sample is moved;
                shards that it has no valid index of are named in the log, and read. ``"read"``: every shard is read,
                which finds the XXH64 of each sample, too. ``"auto"``: by the cluster where it has that job, else by
                reading.
            processes: Read in so many processes; 0 reads in this one.
            where: Store the index there as it grows: a folder, or ``ais://bucket/name``. A build that broke off goes on
                where it was (at most a minute of work is done again); of an index that stands there, only shards that
                changed are made anew. None keeps the index in memory, to be stored by `SampleIndex.save`.
            previous: An index of an earlier time. Shards that it has with the same size and the same checksum (or,
                where there is none, version) are taken from it.
            progress: Called with each new `Progress`.
            cluster: See `torchdata_ais.store.Cluster`.
            **named: Parts of `cluster` by version 0.1's names: ``endpoint client token options``.

        Order: that of the listing.

        Memory: one sample a process, one part of the index (64 MiB) and 200 bytes a shard; the whole index if `where`
        is None.

        Raises:
            NotFoundError: There are no such shards.
            TransportError, ShardError, SampleError: A shard cannot be read or is not sound; no index is made.
            JobError: The cluster has no such job, or does not do it, with ``method="cluster"``.
            UsageError: A shard is compressed, or stands in the list twice; or `previous` is a selection.

        Example:
            >>> from torchdata_ais.testing import example_shards
            >>> SampleIndex.build(example_shards(counts=(3, 2)))  # doctest: +ELLIPSIS
            SampleIndex(5 samples of 2 shards, proof='bytes', digest='...')
        """
        settings = cluster_options(cluster, **named)
        stored = build_stored(
            sources,
            settings,
            method=method,
            processes=processes,
            where=where,
            previous=previous,
            progress=progress,
        )
        return cls([stored], home=home_of(sources), options=settings)

    def verify(self, *, processes: int = 0, progress: OnProgress | None = None) -> None:
        """Compare the index with the stored shards: every byte of both is read.

        Args:
            processes: Read in so many processes; 0 reads in this one.
            progress: Called with each new `torchdata_ais.jobs.Progress`.

        Raises:
            SampleIndexError: The index is damaged; or a shard is not there, or is another one than was indexed, or a
                sample in it is. It names index, shard and key. (`torchdata_ais.indexing.problems_of` yields all.)
            TransportError: The cluster cannot be asked.

        Example:
            >>> from torchdata_ais.testing import example_shards
            >>> SampleIndex.build(example_shards(counts=(3, 2))).verify()
        """
        for problem in problems_of(self, processes=processes, progress=progress):
            raise problem


build_index = SampleIndex.build
