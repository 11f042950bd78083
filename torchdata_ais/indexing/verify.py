"""An index compared with itself and with the stored shards, every byte of both."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from torchdata_ais.errors import AISError, NotFoundError, SampleIndexError, TransportError
from torchdata_ais.index import (
    IndexedSamples,
    IndexedShard,
    ShardRow,
    ShardSamples,
    StoredIndex,
    entry_of,
    stored_text,
)
from torchdata_ais.indexing.reading import in_processes
from torchdata_ais.indexing.shard import index_shard
from torchdata_ais.jobs import OnProgress, SizedProgress
from torchdata_ais.store import StoreOptions

_TODO = "index it again: torchdata-ais index"

Found = IndexedShard | AISError


def problems_of(
    index: IndexedSamples, *, processes: int = 0, progress: OnProgress | None = None
) -> Iterator[SampleIndexError]:
    """Yield what is wrong with an index: its own bytes, then its shards, each read to its end.

    Args:
        index: The index. Of a selection the samples selected are compared.
        processes: Read in so many processes; 0 reads in this one.
        progress: Called with each new `Progress`.

    Yields:
        Errors that name index, shard and key; of each shard the first difference.

    Order: that of the index.

    Raises:
        TransportError: The cluster cannot be asked.

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
        problem = _difference(stored, number, rows, found)
        if problem is not None:
            yield problem
        if progress is not None:
            size += stored.shard(number).size or 0
            progress(SizedProgress("check", done + 1, len(chosen), size))


def _looked_at(name: str, options: StoreOptions) -> Found:
    """Return what an index would hold of a shard today, or why it cannot be indexed."""
    try:
        return index_shard(name, options)
    except NotFoundError as error:
        return error
    except TransportError:
        raise  # it is the cluster that cannot be asked
    except AISError as error:
        return error


def _difference(stored: StoredIndex, number: int, rows: Any, found: Found) -> SampleIndexError | None:
    row = stored.shard(number)
    if isinstance(found, NotFoundError):
        return _problem(stored, row, "it is not there any more")
    if isinstance(found, AISError):
        return _problem(stored, row, f"it cannot be indexed any more ({found.what})")
    entry, now = found
    other = [
        f"{name} {old} became {new}"
        for name, old, new in (("checksum", row.checksum, entry.checksum), ("size", row.size, entry.size))
        if old is not None and new is not None and old != new
    ]
    if other:
        return _problem(stored, row, f"it is another one than was indexed: {other[0]}")
    return _sample_difference(stored, row, number, rows, now)


def _sample_difference(
    stored: StoredIndex, row: ShardRow, number: int, rows: Any, now: ShardSamples
) -> SampleIndexError | None:
    """Compare the samples: all of those indexed must be there; all of those there must be indexed, if all were."""
    _, then = entry_of(stored, number, rows)
    by_key = {stored_text(key): place for place, key in enumerate(now.keys)}
    for place, key in enumerate(then.keys):
        there = by_key.get(key)
        if there is None:
            return _problem(stored, row, f"the sample {key!r} is not in it any more", key)
        fields = tuple(map(stored_text, now.fields[there]))
        if (fields, now.sizes[there]) != (then.fields[place], then.sizes[place]):
            return _problem(
                stored, row, f"the sample {key!r} has other fields, or fields of other sizes", key
            )
        begin, end = then.starts[place], then.ends[place]
        if not begin <= now.starts[there] < end:
            return _problem(
                stored, row, f"the sample {key!r} stands at byte {now.starts[there]}, not {begin}", key
            )
        if row.proven and (begin, end) != (now.starts[there], now.ends[there]):
            return _problem(stored, row, f"the sample {key!r} does not reach as far as it did", key)
        if then.xxh64 and now.xxh64 and now.xxh64[there] != then.xxh64[place]:
            return _problem(stored, row, f"the bytes of the sample {key!r} are others", key)
    if stored.head.selection or rows is not None:
        return None
    known = set(then.keys)
    for key, fields in zip(map(stored_text, now.keys), now.fields, strict=True):
        # Samples of nothing but links, which no stream accepts, are not seen by the cluster.
        if key not in known and (fields or row.proven):
            return _problem(stored, row, f"the sample {key!r} in it is not in the index", key)
    return None


def _problem(stored: StoredIndex, row: ShardRow, what: str, key: str | None = None) -> SampleIndexError:
    return SampleIndexError.at(
        f"{stored.folder.where}: the shard {row.name}: {what}", todo=_TODO, url=row.name, key=key
    )
