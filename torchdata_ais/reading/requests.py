"""Requests for samples: adjacent ones of a shard as one range."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from torchdata_ais.index import SampleReference, ShardRow

# Bytes between two wanted samples that cost less than another request, if no more than those wanted.
_GAP = 16 << 10
# Bytes of adjacent samples that are requested at once: the first of them should not wait for all. A chunk of the
# default window has no more, so a run of the default size is one request.
_MOST_AT_ONCE = 10 << 20
_FEW = 8  # ranges for which a batch of them does not pay
_LARGE = 1 << 20  # bytes of a range that is worth a separate request
_PART = 512 << 10  # bytes of a range that are looked at together, while the processor has them in its cache
_MOST_SAMPLES = 512  # in a chunk
_CHUNKS = 4  # of a window, under way at the same time; samples of a request share its cost
_SMALLER = 8  # times, the first chunk: the first sample should not wait for all requested with it
THREADS = 16
"""Requests of a process that are under way at the same time, at most."""


class Wanted(NamedTuple):
    """A requested sample, with its partners from joined indexes.

    `draw` samples of the source were drawn before it; `slot` is the batch that it is for.
    """

    reference: SampleReference
    source: int = 0
    draw: int = 0
    slot: int = 0
    partners: tuple[Wanted, ...] = ()


class Request(NamedTuple):
    """A range of a shard, and the places in the chunk of the samples in it."""

    source: int
    shard: ShardRow
    start: int
    length: int
    wanted: list[int]


def requests_for(chunk: Sequence[Wanted]) -> list[Request]:
    """Return the requests for the samples of `chunk`, in the order of need.

    Example:
        >>> from torchdata_ais import SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> index = SampleIndex.build(example_shards(counts=(3, 2)))
        >>> [(one.start, one.length, one.wanted) for one in requests_for(list(map(Wanted, index.take([4, 0, 1]))))]
        [(2048, 2048, [0]), (0, 3584, [1, 2])]
    """
    found: list[Request] = []
    ends: list[int] = []
    places = [(one.source, one.reference.number, one.reference.start) for one in chunk]
    shard: tuple[int, int] | None = None
    useful = 0  # bytes of the last request that are wanted
    for place in sorted(range(len(chunk)), key=places.__getitem__):
        reference = chunk[place].reference
        start, size = reference.start, reference.size
        if shard == places[place][:2]:
            end = max(ends[-1], start + size)
            if start - ends[-1] <= min(_GAP, useful) and end - found[-1].start <= _MOST_AT_ONCE:
                found[-1].wanted.append(place)
                ends[-1] = end
                useful += size
                continue
        shard, useful = places[place][:2], size
        found.append(Request(shard[0], reference.shard, start, size, [place]))
        ends.append(start + size)
    whole = [
        one._replace(length=end - one.start) if len(one.wanted) > 1 else one
        for one, end in zip(found, ends, strict=True)
    ]
    return sorted(whole, key=lambda request: min(request.wanted))


def parts_of(request: Request, chunk: Sequence[Wanted]) -> list[Request]:
    """Return a range in parts of whole samples of `chunk`.

    A part has at most 512 KiB and the gap after it, unless one sample, or several that overlap, are larger.

    Example:
        >>> from torchdata_ais import SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> index = SampleIndex.build(example_shards(counts=(3, 2)))
        >>> chunk = list(map(Wanted, index.take([0, 1])))
        >>> [(one.start, one.length, one.wanted) for one in parts_of(requests_for(chunk)[0], chunk)]
        [(0, 3584, [0, 1])]
    """
    source, shard, begin, length, wanted = request
    parts: list[Request] = []
    places: list[int] = []
    end = begin
    for place in wanted:
        _, start, size, *_ = chunk[place].reference
        if places and start >= end and start + size - begin > _PART:
            parts.append(Request(source, shard, begin, start - begin, places))
            begin, places = start, []
        places.append(place)
        end = max(end, start + size)
    parts.append(Request(source, shard, begin, request.start + length - begin, places))
    return parts


def chunks_in(wanted: Iterable[Sequence[Wanted]], window_bytes: int) -> Iterator[list[Wanted]]:
    """Yield requested samples in chunks for a window of so many bytes.

    A chunk has at least one sample. Its limit is twice that of the one before, from an eighth of the largest on.
    A long run of adjacent samples ends its chunk, which may be a quarter larger for that, and a run that does not fit
    begins the next chunk: then a run is one request.

    Example:
        >>> from torchdata_ais import SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> index = SampleIndex.build(example_shards(counts=(3, 2)))
        >>> [len(chunk) for chunk in chunks_in([list(map(Wanted, index))], 4 * 8 * 2048)]
        [1, 2, 2]
    """
    chunk: list[Wanted] = []
    size = before = count = 0  # bytes of the chunk, and before the run at its end; samples in that run
    end: tuple[int, int, int] | None = None
    most_bytes = max(1, window_bytes // _CHUNKS)
    limit = max(1, most_bytes // _SMALLER)
    for one in chain.from_iterable(wanted):
        reference = one.reference
        adjacent = end == (one.source, reference.number, reference.start)
        most = limit + limit // 4 if adjacent and not before else limit
        full = size + reference.size > most or len(chunk) >= _MOST_SAMPLES
        if chunk and (full or (not adjacent and count > 1 and 2 * (size - before) >= limit)):
            limit = min(most_bytes, 2 * limit)
            fits = size - before + reference.size <= limit + limit // 4
            kept = count if adjacent and before and fits else 0
            yield chunk[: len(chunk) - kept]
            chunk = chunk[len(chunk) - kept :]
            size, before, count = size - before if kept else 0, 0, kept
        elif not adjacent:
            before, count = size, 0
        chunk.append(one)
        size += reference.size
        count += 1
        end = one.source, reference.number, reference.start + reference.size
    if chunk:
        yield chunk


def window_at_first(window_bytes: int) -> int:
    """Return the part of a window requested at first; each chunk doubles it."""
    return window_bytes // _CHUNKS


def together(
    requests: Sequence[Request], group_of: Callable[[Request], Hashable | None]
) -> Iterator[list[Request]]:
    """Yield requests sent as one: batches of small ranges, and the rest.

    `group_of` returns the cluster that accepts a request together with others; None: it is sent alone.
    """
    groups: dict[Hashable, list[Request]] = defaultdict(list)
    for request in requests:
        group = group_of(request) if request.length <= _LARGE else None
        if group is None:
            yield [request]
        else:
            groups[group].append(request)
    for same in groups.values():
        if len(same) >= _FEW:
            yield same
        else:
            yield from ([request] for request in same)
