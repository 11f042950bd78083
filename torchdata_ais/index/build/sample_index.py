"""SampleIndex: build, open and verify."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any, Literal

from typing_extensions import Self, override

from torchdata_ais._util.arguments import checked
from torchdata_ais.errors import AISError, NotFoundError, SampleIndexError, TransportError, UsageError
from torchdata_ais.index import IndexedSamples, IndexedShard, ShardSamples, StoredIndex, entry_of, stored_text
from torchdata_ais.index.build.builder import build_stored
from torchdata_ais.index.build.by_reading import Indexing, Method, in_processes, index_shard
from torchdata_ais.index.build.export import export_index
from torchdata_ais.index.build.foreign import energon_info_at, is_foreign, open_foreign
from torchdata_ais.index.location import ShardsFrom, options_for, shard_places
from torchdata_ais.store import Cluster, StoreOptions, cluster_options, given_options
from torchdata_ais.store.jobs import OnProgress, SizedProgress

_TODO = "index it again: torchdata-ais index"

Found = IndexedShard | AISError
Difference = tuple[str, str | None]
"""A difference, and the key of its sample."""


def problems_of(
    index: IndexedSamples, *, processes: int = 0, progress: OnProgress | None = None
) -> Iterator[SampleIndexError]:
    """Yield the faults of an index: its own bytes, then its shards.

    Each shard is read to its end. The errors name index, shard and key: of each shard the first difference, in the
    order of the index. Of a selection the selected samples are compared.

    Raises:
        TransportError: The cluster does not answer.

    Example:
        >>> from torchdata_ais import SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> list(problems_of(SampleIndex.build(example_shards(counts=(3, 2)))))
        []
    """
    for stored in index.stored:
        damages = list(stored.damages())
        yield from damages
        if damages:
            return
    chosen = list(index.selected())
    work = functools.partial(_looked_at, options=index.options)
    names = [stored.shard(number).name for stored, number, _ in chosen]
    with_found = in_processes(work, names, processes)
    size = 0
    for done, ((stored, number, rows), found) in enumerate(zip(chosen, with_found, strict=True)):
        row = stored.shard(number)
        difference = _difference(stored, number, rows, found)
        if difference is not None:
            what, key = difference
            where = stored.folder.where
            yield SampleIndexError.at(
                f"{where}: the shard {row.name}: {what}", todo=_TODO, url=row.name, key=key
            )
        if progress is not None:
            size += row.size or 0
            progress(SizedProgress("check", done + 1, len(chosen), size))


def _looked_at(name: str, options: StoreOptions) -> Found:
    """Return the present index entry of a shard, or why it has none."""
    try:
        return index_shard(name, options)
    except NotFoundError as error:
        return error
    except TransportError:
        raise  # the cluster does not answer
    except AISError as error:
        return error


def _difference(stored: StoredIndex, number: int, rows: object, found: Found) -> Difference | None:
    row = stored.shard(number)
    if isinstance(found, NotFoundError):
        return "it is not there any more", None
    if isinstance(found, AISError):
        return f"it cannot be indexed any more ({found.what})", None
    entry, now = found
    for name, old, new in (("checksum", row.checksum, entry.checksum), ("size", row.size, entry.size)):
        if old is not None and new is not None and old != new:
            return f"it is another one than was indexed: {name} {old} became {new}", None
    return _sample_difference(stored, number, rows, now)


def _sample_difference(stored: StoredIndex, number: int, rows: Any, now: ShardSamples) -> Difference | None:
    """Compare the samples of index and shard; a selection may lack some."""
    proven = stored.shard(number).proven
    _, then = entry_of(stored, number, rows, stored.samples(number))
    by_key = {stored_text(key): place for place, key in enumerate(now.keys)}
    for place, key in enumerate(then.keys):
        there = by_key.get(key)
        if there is None:
            return f"the sample {key!r} is not in it any more", key
        fields = tuple(map(stored_text, now.fields[there]))
        if (fields, now.sizes[there]) != (then.fields[place], then.sizes[place]):
            return f"the sample {key!r} has other fields, or fields of other sizes", key
        begin, end = then.starts[place], then.ends[place]
        if not begin <= now.starts[there] < end:
            return f"the sample {key!r} stands at byte {now.starts[there]}, not {begin}", key
        if proven and (begin, end) != (now.starts[there], now.ends[there]):
            return f"the sample {key!r} does not reach as far as it did", key
        if then.xxh64 and now.xxh64 and now.xxh64[there] != then.xxh64[place]:
            return f"the bytes of the sample {key!r} are others", key
    if stored.head.selection or rows is not None:
        return None
    known = set(then.keys)
    for key, fields in zip(map(stored_text, now.keys), now.fields, strict=True):
        # Samples of nothing but links, which no stream accepts, are not seen by the cluster.
        if key not in known and (fields or proven):
            return f"the sample {key!r} in it is not in the index", key
    return None


class SampleIndex(IndexedSamples):
    """The samples of one or several stored indexes, all or a selection.

    Made by `build` (or the command ``torchdata-ais index``) and `open`; `concat`, `select` and `split` make others of
    it. An index does not change.

    Order: as stored: shards as they were listed, samples as they are in their shard.

    Memory: 9 bytes a shard and 8 bytes a selected sample, and at most 20 MiB of recently used tables.

    Attributes:
        shards: The rows of the table of shards.
        keys: The keys of the samples, a lazy Arrow column.
        fields: The combinations of fields that samples have.
        proof: ``"bytes"`` or ``"headers"``.
        digest: A hash of the contents.

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
    @checked
    def build(
        cls,
        sources: object,
        *,
        method: Method = "read",
        processes: int = 0,
        where: str | os.PathLike[str] | None = None,
        previous: IndexedSamples | None = None,
        progress: OnProgress | None = None,
        cluster: Cluster = None,
    ) -> Self:
        """Build the index of the samples of shards.

        Args:
            sources: As for `.list_ais()`: prefixes, templates, paths, folders, one or several.
            method: ``"read"``: every shard is read, which finds the XXH64 of each sample, too. ``"cluster"``:
                AIStore's job reads the headers where the shards are stored, and no sample is moved. Shards without a
                valid index of the job are logged, and read. That job destroys objects that were uploaded in parts, so
                all objects with its prefix are listed first, and one such object is an error.
            processes: How many processes read; 0 reads in this one.
            where: Store the index there as it grows: a folder, or ``ais://bucket/name``. A build that broke off
                resumes where it was (at most a minute of work is repeated); with an existing index there, only
                changed shards are indexed again. None keeps the index in memory, to be stored by `SampleIndex.save`.
            previous: An index of an earlier time. Shards that it has with the same size and the same checksum (or,
                where there is none, version) are taken from it.
            progress: Called with each new `Progress`.
            cluster: See `torchdata_ais.store.Cluster`.

        Order: that of the listing.

        Memory: one sample a process, one part of the index (64 MiB) and 200 bytes a shard; the whole index if `where`
        is None.

        Raises:
            NotFoundError: The shards do not exist.
            TransportError, ShardError, SampleError: A shard cannot be read or is damaged; no index is made.
            JobError: With ``method="cluster"``: the cluster has no such job, or cannot index these shards, or an object
                was uploaded in parts. No job was started then.
            UsageError: A shard is compressed, or is in the list twice; or `previous` is a selection.

        Example:
            >>> from torchdata_ais.testing import example_shards
            >>> SampleIndex.build(example_shards(counts=(3, 2)))  # doctest: +ELLIPSIS
            SampleIndex(5 samples of 2 shards, proof='bytes', digest='...')
        """
        settings = cluster_options(cluster)
        how = Indexing(settings, method, processes, progress)
        stored, home = build_stored(sources, how, where, previous)
        return cls([stored], home=home, options=settings)

    @classmethod
    @override
    @checked
    def open(
        cls,
        where: str | os.PathLike[str],
        *,
        shards: object = None,
        shards_from: ShardsFrom = None,
        processes: int = 0,
        index_dir: str | os.PathLike[str] | None = None,
        cluster: Cluster = None,
    ) -> Self:
        """Open a stored index, or one of Energon, DALI, wids or Lhotse.

        A stored index is read on use, by ranges, and checked. An index of another tool is read whole, compared with
        the shards, and kept in memory; `save` stores it.

        Args:
            where: The prefix, template, bucket, folder or pattern of shards whose index is next to them (see
                `index_place`); or the folder it was saved to: a path, ``ais://bucket/name``, a web URL. Of a template
                or a pattern the samples of the shards that it names are selected. Or of another tool: a data set of
                Energon (with ``.nv-meta/.info.json``), files ``.idx`` of Energon, Lhotse or DALI's wds2idx (a name, a
                template, a pattern), a JSON of wids.
            shards: The shards of ``.idx`` files, in their order; default the shards next to them.
            shards_from: Further buckets, prefixes, folders or web URLs whose shards the index may name: one, or a list.
                By default those of the place it is opened for: of a bucket or a web server those in it, of a folder
                those below it (of ``DIR/.index`` those below ``DIR``).
            processes: How many processes read data that another tool's index lacks; 0 reads in this one.
            index_dir: A folder of this node to copy a stored index to, see `kept_in`.
            cluster: See `torchdata_ais.store.Cluster`; of a path of this machine none is needed.

        Raises:
            NotFoundError: There is none.
            SampleIndexError: It is damaged, of a version this package does not read, or names shards of another place;
                one of another tool does not fit a shard, which is named.
            TransportError: It cannot be read.

        Example:
            >>> import tempfile
            >>> from torchdata_ais.testing import example_shards
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = SampleIndex.build(example_shards(folder, counts=(3, 2))).save(folder)
            ...     len(SampleIndex.open(folder))
            5
        """
        text = os.fspath(where)
        given = given_options(cluster)
        options = options_for(text, given)
        if not is_foreign(text):
            if shards is not None:
                raise UsageError.at("shards= of an index that names its shards", todo="leave shards= out")
            try:
                return super().open(where, shards_from=shards_from, index_dir=index_dir, cluster=given)
            except NotFoundError:
                info = energon_info_at(text, options)
                if info is None:
                    raise
                text = info
        found = open_foreign(text, shards, options, places=shard_places(shards_from), processes=processes)
        return cls([found], options=options)

    @checked
    def export(
        self,
        form: Literal["energon", "dali", "wids"],
        where: str | os.PathLike[str] | None = None,
        *,
        cluster: Cluster = None,
    ) -> list[str]:
        """Write the index in another tool's format; return the written files.

        Args:
            form: ``"energon"``: ``.tar.idx`` next to each shard, and ``.nv-meta/.info.json`` in their folder.
                ``"dali"``: ``.idx`` next to each shard, as wds2idx writes it; the headers of the shards are read for
                it. ``"wids"``: ``shardindex.json`` in their folder.
            where: A folder or prefix to write to instead.
            cluster: See `torchdata_ais.store.Cluster`; default the one it was opened with.

        Order: shards and samples as in the index.

        Memory: the rows of a shard.

        Raises:
            UsageError: A form that is not known; a selection, which only DALI's form can hold; shards of one name, or
                shards in several folders.
            SampleIndexError: A shard is another one than was indexed.
            TransportError: It cannot be stored.

        Example:
            >>> import os, tempfile
            >>> from torchdata_ais.testing import example_shards
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     files = SampleIndex.build(example_shards(folder, counts=(3,))).export("dali")
            ...     [os.path.basename(file) for file in files]
            ['shard-000.idx']
        """
        options = cluster_options(given_options(cluster) or self.options)
        return export_index(self, form, where, options)

    @checked
    def verify(self, *, processes: int = 0, progress: OnProgress | None = None) -> None:
        """Compare the index with the stored shards: every byte of both is read.

        Args:
            processes: Read in so many processes; 0 reads in this one.
            progress: Called with each new `torchdata_ais.store.jobs.Progress`.

        Raises:
            SampleIndexError: The index is damaged; or a shard or a sample in it is missing or has changed. It names
                index, shard and key. (`torchdata_ais.index.build.problems_of` yields all.)
            TransportError: The cluster does not answer.

        Example:
            >>> from torchdata_ais.testing import example_shards
            >>> SampleIndex.build(example_shards(counts=(3, 2))).verify()
        """
        for index in (self, *(join.other for join in self.joins)):
            for problem in problems_of(index, processes=processes, progress=progress):
                raise problem


build_index = SampleIndex.build
