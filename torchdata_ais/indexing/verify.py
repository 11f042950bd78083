"""An index compared with itself and with the stored shards, every byte of both."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from torchdata_ais.errors import AISError, NotFoundError, SampleIndexError, TransportError
from torchdata_ais.index import (
    IndexedSamples,
    IndexedShard,
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
Difference = tuple[str, str | None]
"""What is otherwise, and the key of the sample that it is otherwise for."""


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
    """Return what an index would hold of a shard today, or why it cannot be indexed."""
    try:
        return index_shard(name, options)
    except NotFoundError as error:
        return error
    except TransportError:
        raise  # it is the cluster that cannot be asked
    except AISError as error:
        return error


def _difference(stored: StoredIndex, number: int, rows: Any, found: Found) -> Difference | None:
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
    """Compare the samples: all of those indexed must be there; all of those there must be indexed, if all were."""
    proven = stored.shard(number).proven
    _, then = entry_of(stored, number, rows)
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
