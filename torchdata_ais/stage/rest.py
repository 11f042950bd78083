"""What saved instances had left, dealt out; and whether the data are still those the checkpoint was taken over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from torchdata_ais.errors import ObjectChangedError, StateError
from torchdata_ais.samples import SHARD_SHIFT
from torchdata_ais.stage.shard_order import left_of
from torchdata_ais.state import (
    InstanceState,
    OpenPosition,
    Part,
    ReaderState,
    ShardVersion,
    SharedState,
    damaged,
)
from torchdata_ais.store.facts import Facts
from torchdata_ais.urls import Location, ObjectURL, parse_url


class Rest(NamedTuple):
    """What one instance has to read.

    Attributes:
        left: Bitmap of the positions of the shards to begin.
        open: The shards to go on with.
        held: Places of the samples to read again.
        versions: The shards those came from.
    """

    left: bytes
    open: list[OpenPosition]
    held: list[int]
    versions: list[ShardVersion]


def rest_of(part: Part, total: int) -> Rest:
    """Return what `part` has to read, of `total` shards in the epoch."""
    left = np.packbits(_times_left(part, total) > 0, bitorder="little").tobytes()
    return Rest(left, *_begun(part))


def _begun(part: Part) -> tuple[list[OpenPosition], list[int], list[ShardVersion]]:
    """Return the shards that `part` is to go on with, the samples to read again, and the shards those came from."""
    if isinstance(part, InstanceState):
        return part.reader.open, part.reader.places(), part.reader.versions
    begun = [_begun(other) for other in part.of]
    dealt = slice(part.share, None, part.shares)
    return (
        list(chain.from_iterable(shards for shards, _, _ in begun))[dealt],
        list(chain.from_iterable(held for _, held, _ in begun))[dealt],
        list(chain.from_iterable(versions for _, _, versions in begun)),
    )


def _times_left(part: Part, total: int) -> NDArray[np.uint32]:
    """Return how often `part` has the shard at each position to begin: once at most, if its states do not overlap."""
    times = np.zeros(total, np.uint32)
    for other in [part] if isinstance(part, InstanceState) else part.of:
        if isinstance(other, InstanceState):
            times[left_of(other.reader, total)] += 1
        else:
            times += _times_left(other, total)
    if isinstance(part, SharedState) and part.shares > 1:
        dealt = np.flatnonzero(times)[part.share :: part.shares]
        times[:] = 0
        times[dealt] = 1
    return times


def check_data(part: Part, digests: tuple[str, str], urls: Sequence[str]) -> None:
    """Raise an error if the shards are not the ones a checkpoint was taken over.

    Args:
        part: What is to be resumed.
        digests: Those of all shards when it was taken, and now; empty where that is not known.
        urls: The shards of the epoch.

    Raises:
        StateError: Other shards; or a state that names more than there are, or one twice.
        ObjectChangedError: A shard that samples are still to be read of was written anew.
    """
    for leaf in part.leaves():
        _check_seen(leaf.reader, urls)
        _check_positions(leaf.reader, urls)
        _check_unchanged(leaf.reader, urls)
    whole = SharedState(part.of, 0, 1) if isinstance(part, SharedState) else part
    times = _times_left(whole, len(urls))
    for shard in _begun(whole)[0]:
        times[shard.position] += 1
    if times.max(initial=0) > 1:
        raise StateError.at(
            "the states overlap: a shard is left in two of them",
            todo="pass states that were taken at the same step by the ranks of one loader",
        )
    was, now = digests
    if was and now and was != now:
        raise StateError.at(
            "the shards are not those the checkpoint was taken over: the digest of their names, sizes and "
            f"versions was {was} and is {now}",
            todo="restore the bucket as it was (objects were added, removed or written anew), or begin the epoch "
            "anew",
        )


def _check_seen(reader: ReaderState, urls: Sequence[str]) -> None:
    for shard in reader.seen:
        position = shard.position
        if position >= len(urls):
            raise _too_few(position, urls)
        if url_hash(urls[position]) != shard.name_hash:
            raise StateError.at(
                f"shard {position} of the epoch is another one than when the checkpoint was taken",
                todo="restore the bucket as it was (objects were added or removed), or begin the epoch anew",
                url=urls[position],
            )


def _check_positions(reader: ReaderState, urls: Sequence[str]) -> None:
    """Raise `StateError` if a saved state names more shards than there are."""
    held = reader.places()
    named = [shard.position for shard in reader.open]
    if reader.left is not None:
        named.append(int.from_bytes(reader.left, "little").bit_length() - 1)
    elif reader.begun:
        named.append((reader.begun - 1) * reader.instances + reader.instance)
    if held:
        named.append(max(held) >> SHARD_SHIFT)
    if max(named, default=-1) >= len(urls):
        raise _too_few(max(named), urls)
    if len(set(held)) != len(held):
        raise damaged("it names a held sample twice")


def _check_unchanged(reader: ReaderState, urls: Sequence[str]) -> None:
    """Raise `ObjectChangedError` for a shard that samples are still to be read of, if the listing has another one."""
    begun: Iterable[OpenPosition | ShardVersion] = chain(reader.open, reader.versions)
    for shard in begun:
        url = urls[shard.position] if shard.position < len(urls) else None
        if not isinstance(url, ObjectURL):
            continue
        now = Facts(version=url.version, checksum=url.checksum)
        difference = Facts(version=shard.version, checksum=shard.checksum).difference(now)
        if difference:
            raise ObjectChangedError.at(
                f"{parse_url(url).uri} was written anew since the checkpoint was taken: {difference}",
                todo="restore the object as it was, or begin the epoch anew",
                url=url,
            )


def _too_few(position: int, urls: Sequence[str]) -> StateError:
    return StateError.at(
        f"the epoch had at least {position + 1} shards when the checkpoint was taken, now {len(urls)}",
        todo="restore the bucket as it was, or begin the epoch anew",
        url=urls[-1] if urls else None,
    )


def url_hash(url: str | Location) -> int:
    """Return 32 bits that tell one shard from another; host and port do not count, a cluster may have moved."""
    return xxhash.xxh32_intdigest(parse_url(url).uri.encode())
