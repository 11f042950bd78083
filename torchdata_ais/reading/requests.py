"""Which bytes are asked for to get some samples: neighbours in a shard as one range."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from torchdata_ais.index import SampleReference, ShardRow

__all__ = ["Request", "chunks_of", "requests_for"]

_GAP = 16 << 10  # bytes between two wanted samples that cost less than another request
_MOST_AT_ONCE = (
    4 << 20
)  # bytes of neighbours that are asked for at once: the first of them should not wait for all


class Request(NamedTuple):
    """A range of a shard, and the samples in it.

    Attributes:
        shard: The shard.
        start: The first byte.
        length: How many bytes.
        wanted: The places in the chunk of the samples that lie in it.
    """

    shard: ShardRow
    start: int
    length: int
    wanted: list[int]


def requests_for(chunk: Sequence[SampleReference]) -> list[Request]:
    """Return what to ask for to get the samples of `chunk`, those that are needed first first.

    Example:
        >>> from torchdata_ais import SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> index = SampleIndex.build(example_shards(counts=(3, 2)))
        >>> [(one.start, one.length, one.wanted) for one in requests_for(index.take([4, 0, 1]))]
        [(2048, 2048, [0]), (0, 3584, [1, 2])]
    """
    found: list[Request] = []
    order = sorted(range(len(chunk)), key=lambda place: (chunk[place].shard.name, chunk[place].start))
    for place in order:
        reference = chunk[place]
        last = found[-1] if found else None
        if last is not None and last.shard.name == reference.shard.name:
            length = max(last.length, reference.start + reference.size - last.start)
            gap = reference.start - (last.start + last.length)
            if gap <= _GAP and length <= _MOST_AT_ONCE:
                last.wanted.append(place)
                found[-1] = last._replace(length=length)
                continue
        found.append(Request(reference.shard, reference.start, reference.size, [place]))
    return sorted(found, key=lambda request: min(request.wanted))


def chunks_of(
    references: Iterable[Sequence[SampleReference]], most_bytes: int, most: int
) -> Iterator[list[SampleReference]]:
    """Yield `references` in chunks of at most `most_bytes`, or one sample, and `most` samples.

    Example:
        >>> from torchdata_ais import SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> index = SampleIndex.build(example_shards(counts=(3, 2)))
        >>> [len(chunk) for chunk in chunks_of([list(index)], 4096, 100)]
        [2, 2, 1]
    """
    chunk: list[SampleReference] = []
    size = 0
    for reference in chain.from_iterable(references):
        if chunk and (size + reference.size > most_bytes or len(chunk) >= most):
            yield chunk
            chunk, size = [], 0
        chunk.append(reference)
        size += reference.size
    if chunk:
        yield chunk
