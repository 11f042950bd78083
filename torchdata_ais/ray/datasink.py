"""A Ray data set as shards, with their sample index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from torchdata_ais.errors import UsageError
from torchdata_ais.index import IndexWriter, ShardEntry, ShardSamples, folder_at, index_place
from torchdata_ais.ray.datasource import check_ray
from torchdata_ais.store import Cluster, StoreOptions, cluster_options, given_options
from torchdata_ais.urls import parse_url
from torchdata_ais.writing.manifest import ShardInfo
from torchdata_ais.writing.packing import PackingNames
from torchdata_ais.writing.prepare import prepare
from torchdata_ais.writing.shard_writer import ShardWriter

if TYPE_CHECKING:
    from ray.data import Datasink
else:
    try:
        from ray.data import Datasink
    except ImportError:
        Datasink = object

_OF_A_TASK = 1000  # numbers of shards; a task has a few blocks

Written = tuple[list[ShardInfo], list[tuple[ShardEntry, ShardSamples]]]


class ShardDatasink(Datasink):
    """Shards, for `Dataset.write_datasink`; each task writes its own, and each appears when it is whole.

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
        cluster: See `torchdata_ais.store.Cluster`; default ``AIS_ENDPOINT`` of this process; the tasks are told.
        **named: ``encoder mtime quality ...`` as in `TarWriter`.

    Attributes:
        shards: What was written, once it was; by name.

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
        **named: Unpack[PackingNames],
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
        self._named: dict[str, Any] = {**named}
        self.shards: list[ShardInfo] = []
        self._writer(0, None)  # whether the arguments can work

    @property
    def min_bytes_per_write(self) -> int | None:
        """How much Ray brings to a task at least."""
        return self._maxsize

    def on_write_start(self, *_: Any) -> None:
        """Look whether the names are free."""
        prepare(self._pattern, lambda: self._options, new=not self._overwrite)

    def write(self, blocks: Iterable[Any], ctx: Any) -> Written:
        """Write the rows of some blocks, and return what is known of the shards."""
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
            **({"index": index} if index is not None else {}),  # type: ignore[arg-type]
            **self._named,
        )

    def _sample(self, row: Mapping[str, Any], number: str) -> dict[str, Any]:
        key = row.get(self._key)
        sample = {
            name: value
            for name, value in row.items()
            if value is not None and name not in (self._key, "__url__")
        }
        sample["__key__"] = number if key is None else str(key)
        return sample


class CollectedIndex:
    """Takes what an `IndexWriter` takes, to hand it on."""

    def __init__(self) -> None:
        self.entries: list[tuple[ShardEntry, ShardSamples]] = []

    def add(self, shard: ShardEntry, samples: ShardSamples) -> None:
        """Take the next shard."""
        self.entries.append((shard, samples))

    def finish(self, *, source: str = "") -> None:
        """Do nothing: the process that began the writing stores all at once."""


def _rows(blocks: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    from ray.data.block import BlockAccessor

    for block in blocks:
        yield from BlockAccessor.for_block(block).iter_rows(public_row_format=True)
