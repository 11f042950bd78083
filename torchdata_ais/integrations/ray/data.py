"""Ray Data: datasource and datasink."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torchdata_ais.codecs.encoder import EncoderSpec
from torchdata_ais.errors import MissingLibraryError, UsageError
from torchdata_ais.index import (
    IndexedSamples,
    IndexWriter,
    ShardEntry,
    ShardSamples,
    ShardsFrom,
    folder_at,
    index_place,
    opened_index,
)
from torchdata_ais.store import Cluster, StoreOptions, cluster_options, given_options, list_each
from torchdata_ais.urls import ObjectURL, parse_url
from torchdata_ais.writing.manifest import ShardInfo
from torchdata_ais.writing.prepare import prepare
from torchdata_ais.writing.shard_writer import ShardWriter

if TYPE_CHECKING:
    from ray.data import Datasink, Datasource
    from ray.data.datasource import ReadTask
else:
    try:
        from ray.data import Datasink, Datasource
        from ray.data.datasource import ReadTask
    except ImportError:
        Datasink, Datasource, ReadTask = object, object, None

_ROWS = 256
_BYTES = 32 << 20  # of a block, or one sample

Fields = str | Iterable[str] | None

_Part = tuple[Callable[[], Iterator[Any]], int | None, int | None, tuple[str, ...]]
"""Input of a task: samples, their number and bytes, and the shards.

Each is given as far as it is known.
"""


class _SampleDatasource(Datasource):
    """Common base: tasks that read samples and yield them as Arrow tables."""

    def __init__(self, cluster: Cluster, fields: Fields) -> None:
        check_ray()
        super().__init__()
        self._options: StoreOptions | None = given_options(cluster) if cluster is not None else None
        self._fields = (
            None if fields is None else tuple(fields.split() if isinstance(fields, str) else fields)
        )

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,  # noqa: ARG002 - Ray cuts by itself
        data_context: object = None,  # noqa: ARG002
    ) -> list[ReadTask]:
        """Return tasks of neighbouring samples or shards."""
        from ray.data.block import BlockMetadata

        return [
            ReadTask(
                partial(_blocks, read, self._fields),
                BlockMetadata(num_rows=rows, size_bytes=size, input_files=files, exec_stats=None),
            )
            for read, rows, size, files in self._parts(parallelism)
        ]

    def _parts(self, parallelism: int) -> Iterator[_Part]:
        """Yield the input of each task, at most so many."""
        raise NotImplementedError


class ShardDatasource(_SampleDatasource):
    """Whole shards, for `ray.data.read_datasource`, one task a shard.

    Each is read to its end, and checked as in training.

    A row is a sample: ``__key__``, ``__url__``, and its fields as bytes; a field that a sample lacks is null.

    Args:
        source: As for `torchdata_ais.AISSourceLister`: ``ais://bucket/prefix``, templates, paths, a list of them.
        cluster: See `torchdata_ais.store.Cluster`; default ``AIS_ENDPOINT`` of this process, also in the tasks.
        fields: Keep these alone: ``"jpg cls"``. Name them where samples have different ones: then every block has all.

    Order: that of the shard within it; blocks come as tasks end, unless Ray keeps the order by configuration.
    Memory: of a task: a block (256 samples or 32 MiB), and the memory of `load_tar`.

    Raises:
        NotFoundError: Nothing is there.
        MissingLibraryError: Ray is not installed.

    Example:
        >>> import ray  # doctest: +SKIP
        >>> ds = ray.data.read_datasource(ShardDatasource("ais://pets/train-", fields="jpg cls"))  # doctest: +SKIP
        >>> ds.count()  # doctest: +SKIP
        2400
    """

    def __init__(self, source: object, *, cluster: Cluster = None, fields: Fields = None) -> None:
        super().__init__(cluster, fields)
        several = [source] if isinstance(source, str) or not isinstance(source, Sequence) else source
        is_remote = any(not isinstance(one, str) or parse_url(one).kind == "object" for one in several)
        self._store = cluster_options(self._options) if is_remote else StoreOptions()
        self._shards = [url for urls in list_each(several, options=self._store) for url in urls]

    def estimate_inmemory_data_size(self) -> int | None:
        """Return the bytes of the shards, where all are known."""
        return _sum(url.size for url in self._shards)

    def _parts(self, parallelism: int) -> Iterator[_Part]:
        for some in _cut(self._shards, parallelism):
            size = _sum(url.size for url in some)
            yield partial(_of_shards, some, self._store), None, size, tuple(map(str, some))


class IndexDatasource(_SampleDatasource):
    """Samples of a `SampleIndex`, for `ray.data.read_datasource`.

    Also of a selection from an index. Only selected samples are read, by ranges, each verified as `.read_samples()`
    does; the number of rows is known before. For rows see `ShardDatasource`.

    Args:
        index: A `SampleIndex`, or the place of a stored one.
        shards_from: Of a place: further places whose shards the index may name, see `SampleIndex.open`.
        cluster: See `torchdata_ais.store.Cluster`; default that of the opened index.
        fields: See `ShardDatasource`.

    Order: that of the index within a task.
    Memory: of a task: a block, 32 MiB under way, and 8 bytes a selected sample.

    Raises:
        SampleIndexError: A shard differs from the index.
        UsageError: Nothing is selected.
        MissingLibraryError: Ray is not installed.

    Example:
        >>> from torchdata_ais import SampleIndex
        >>> large = SampleIndex.open("ais://pets/train-")  # doctest: +SKIP
        >>> ds = ray.data.read_datasource(IndexDatasource(large[:100_000]))  # doctest: +SKIP
    """

    def __init__(
        self,
        index: IndexedSamples | str,
        *,
        shards_from: ShardsFrom = None,
        cluster: Cluster = None,
        fields: Fields = None,
    ) -> None:
        super().__init__(cluster, fields)
        self._index = opened_index(index, shards_from, cluster)
        if not len(self._index):
            raise UsageError.at("the index has no sample", todo="select some")

    def estimate_inmemory_data_size(self) -> int | None:
        """Return the bytes of the samples, by their mean."""
        return int(len(self._index) * self._index.mean_bytes())

    def _parts(self, parallelism: int) -> Iterator[_Part]:
        mean = self._index.mean_bytes()
        for some in _cut(range(len(self._index)), parallelism):
            yield partial(_of_index, self._index, some, self._options), len(some), int(len(some) * mean), ()


def check_ray() -> None:
    """Raise `MissingLibraryError` if Ray is not installed."""
    if ReadTask is None:
        raise MissingLibraryError.at("Ray Data is not installed", todo='install it: pip install "ray[data]"')


def _cut(items: Sequence[object], parts: int) -> Iterator[Any]:
    """Yield runs of consecutive items, at most so many, none of them empty."""
    count = max(1, min(parts, len(items)))
    return (items[len(items) * part // count : len(items) * (part + 1) // count] for part in range(count))


def _sum(sizes: Iterable[int | None]) -> int | None:
    known = list(sizes)
    return None if None in known else sum(size or 0 for size in known)


def _of_shards(shards: Sequence[ObjectURL], options: StoreOptions) -> Iterator[object]:
    from torchdata_ais.pipes import AISFileLoader

    samples: Any = AISFileLoader(list(shards), cluster=options).group_samples()
    return iter(samples)


def _of_index(index: IndexedSamples, numbers: range, options: StoreOptions | None) -> Iterator[object]:
    from torchdata_ais.pipes import AISSampleReader

    return iter(AISSampleReader(index, positions=list(numbers), cluster=options))


def _blocks(read: Callable[[], Iterator[Any]], fields: tuple[str, ...] | None) -> Iterator[pa.Table]:
    """Yield the samples as tables, bounded in rows and bytes."""
    rows: list[dict[str, Any]] = []
    size = 0
    for sample in read():
        rows.append(dict(sample))
        size += sum(len(value) for value in sample.values() if isinstance(value, bytes))
        if len(rows) == _ROWS or size >= _BYTES:
            yield _table(rows, fields)
            rows, size = [], 0
    if rows:
        yield _table(rows, fields)


def _table(rows: list[dict[str, Any]], fields: tuple[str, ...] | None) -> pa.Table:
    names = fields or sorted({name for row in rows for name in row if name[:2] != "__"})
    columns = {name: pa.array([row[name] for row in rows], pa.string()) for name in ("__key__", "__url__")}
    columns |= {name: pa.array([row.get(name) for row in rows], pa.binary()) for name in names}
    return pa.table(columns)


_OF_A_TASK = 1000  # numbers of shards; a task has a few blocks

Written = tuple[list[ShardInfo], list[tuple[ShardEntry, ShardSamples]]]


class ShardDatasink(Datasink):
    """Shards, for `Dataset.write_datasink`.

    Each task writes its own shards, and each appears when it is whole.

    A row is a sample: its columns are the fields, those that are null are left out, and so are ``__url__`` and other
    columns that begin with ``_``. Values are encoded by the names of the fields, as `ShardWriter` does.

    Args:
        pattern: ``ais://bucket/train-%06d.tar``, or a folder that all nodes see. Task k writes the numbers from
            ``1000 * k`` on.
        key: The column that has the keys; a row without one gets the number of its task and its own.
        maxcount: Most samples in a shard.
        maxsize: Most bytes of a shard; also the least that Ray brings to a task at once, so that shards are full.
        index: Whether, and where, to store the sample index, once all tasks have ended.
        overwrite: Write even if there are shards of this pattern.
        cluster: See `torchdata_ais.store.Cluster`; default ``AIS_ENDPOINT`` of this process, also in the tasks.
        user, group, mode, mtime, encoder, keep_meta, allow_pickle, quality, allow_nan: As in `TarWriter`.

    Attributes:
        shards: The written shards, at the end; by name.

    Order: of a task, that of its rows.
    Memory: of a task: a sample, and its blocks; with an index about 300 bytes a sample in the process that began it.

    Raises:
        UsageError: No pattern, or there are shards of it already.
        SampleError: A row cannot be a sample. Shards of other tasks stay: write again with ``overwrite=True``.
        MissingLibraryError: Ray is not installed.

    Example:
        >>> ds.write_datasink(ShardDatasink("ais://small/train-%06d.tar", index=True))  # doctest: +SKIP
    """

    def __init__(
        self,
        pattern: str,
        *,
        key: str = "__key__",
        maxcount: int = 100_000,
        maxsize: int = 512_000_000,
        index: bool | str = False,
        overwrite: bool = False,
        cluster: Cluster = None,
        user: str = "bigdata",
        group: str = "bigdata",
        mode: int = 0o0444,
        mtime: float | None = None,
        encoder: EncoderSpec = True,
        keep_meta: bool = False,
        allow_pickle: bool = False,
        quality: int = 100,
        allow_nan: bool = False,
    ) -> None:
        check_ray()
        super().__init__()
        is_remote = parse_url(pattern).kind == "object"
        self._options = (
            cluster_options(given_options(cluster)) if is_remote or cluster is not None else StoreOptions()
        )
        self._pattern, self._key, self._maxcount, self._maxsize = pattern, key, maxcount, maxsize
        self._where = (
            index if isinstance(index, str) else index_place(f"{pattern.partition('%')[0]}*") if index else ""
        )
        self._overwrite = overwrite
        self._named: dict[str, Any] = {
            "user": user,
            "group": group,
            "mode": mode,
            "mtime": mtime,
            "encoder": encoder,
            "keep_meta": keep_meta,
            "allow_pickle": allow_pickle,
            "quality": quality,
            "allow_nan": allow_nan,
        }
        self.shards: list[ShardInfo] = []
        self._writer(0, None)  # whether the arguments can work

    @property
    def min_bytes_per_write(self) -> int | None:
        """Least data that Ray brings to a task at once."""
        return self._maxsize

    def on_write_start(self, *_: object) -> None:
        """Look whether the names are free."""
        prepare(self._pattern, lambda: self._options, new=not self._overwrite)

    def write(self, blocks: Iterable[object], ctx: Any) -> Written:
        """Write the rows of some blocks, and return data of the shards."""
        made = CollectedIndex() if self._where else None
        with self._writer(ctx.task_idx, made) as shards:
            for row in _rows(blocks):
                if shards.shard >= (ctx.task_idx + 1) * _OF_A_TASK:
                    raise UsageError.at(
                        f"a task writes more than {_OF_A_TASK} shards", todo="raise maxsize= or maxcount="
                    )
                shards.write(self._sample(row, f"{ctx.task_idx:06d}{shards.total:09d}"))
        return shards.shards, made.entries if made else []

    def on_write_complete(self, write_result: Any) -> None:
        """Store the index."""
        returned: list[Written] = write_result.write_returns
        self.shards = sorted(
            (shard for shards, _ in returned for shard in shards), key=lambda shard: shard.name
        )
        if not self._where:
            return
        is_remote = parse_url(self._where).kind == "object"
        writer = IndexWriter(folder_at(self._where, self._options if is_remote else StoreOptions()))
        for entry, samples in sorted(
            (one for _, entries in returned for one in entries), key=lambda one: one[0].name
        ):
            writer.add(entry, samples)
        writer.finish(source=self._pattern)

    def _writer(self, task: int, index: CollectedIndex | None) -> ShardWriter:
        return ShardWriter(
            self._pattern,
            maxcount=self._maxcount,
            maxsize=self._maxsize,
            start_shard=task * _OF_A_TASK,
            cluster=self._options,
            overwrite=None,  # write() has looked, and other tasks write at the same time
            **({"index": index} if index is not None else {}),  # type: ignore[arg-type]
            **self._named,
        )

    def _sample(self, row: Mapping[str, object], number: str) -> dict[str, Any]:
        key = row.get(self._key)
        sample = {
            name: value
            for name, value in row.items()
            if value is not None and name not in (self._key, "__url__")
        }
        sample["__key__"] = number if key is None else str(key)
        return sample


class CollectedIndex:
    """Takes the arguments of an `IndexWriter`, and records them."""

    def __init__(self) -> None:
        self.entries: list[tuple[ShardEntry, ShardSamples]] = []

    def add(self, shard: ShardEntry, samples: ShardSamples) -> None:
        """Take the next shard."""
        self.entries.append((shard, samples))

    def finish(self, *, source: str = "") -> None:
        """Do nothing: the process that began the writing stores all at once."""


def _rows(blocks: Iterable[object]) -> Iterator[Mapping[str, object]]:
    from ray.data.block import BlockAccessor

    for block in blocks:
        yield from BlockAccessor.for_block(block).iter_rows(public_row_format=True)
