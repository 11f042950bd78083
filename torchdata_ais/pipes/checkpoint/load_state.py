"""State of load_tar."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from torchdata_ais.errors import ObjectChangedError, StateError, UsageError
from torchdata_ais.pipes.base.pipe import IterDataPipe
from torchdata_ais.pipes.base.torch_stages import gives_at_once
from torchdata_ais.pipes.checkpoint.shard_order import (
    EpochURLs,
    ShardOrder,
    epoch_items,
    left_of,
    listed_behind,
)
from torchdata_ais.reading.open_shard import OpenShard, ShardOptions, held_runs
from torchdata_ais.reading.runs import Run
from torchdata_ais.samples import SHARD_SHIFT
from torchdata_ais.state import (
    InstanceState,
    OpenPosition,
    Part,
    ReaderState,
    SeenShard,
    ShardVersion,
    SharedState,
    damaged,
)
from torchdata_ais.store import StoreOptions
from torchdata_ais.store.transport.metadata import ObjectMetadata
from torchdata_ais.urls import Location, ObjectURL, parse_url


def _begun(part: Part) -> tuple[list[OpenPosition], list[int], list[ShardVersion]]:
    """Return the rest of `part`: shards, samples to read again, their shards."""
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
    """Return how often each shard is left to `part`: once at most, if valid."""
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
    """Raise an error if the shards differ from those of the checkpoint.

    `digests` are those of all shards when it was taken, and now; empty where that is not known.

    Raises:
        StateError: Other shards; or a state that names more than there are, or one twice.
        ObjectChangedError: A shard that samples are still to be read of was replaced.
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
    """Raise `ObjectChangedError` if a shard with unread samples has changed."""
    begun: Iterable[OpenPosition | ShardVersion] = chain(reader.open, reader.versions)
    for shard in begun:
        url = urls[shard.position] if shard.position < len(urls) else None
        if not isinstance(url, ObjectURL):
            continue
        now = ObjectMetadata(version=url.version, checksum=url.checksum)
        difference = ObjectMetadata(version=shard.version, checksum=shard.checksum).difference(now)
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
    """Return 32 bits that distinguish shards, whatever host they are on."""
    return xxhash.xxh32_intdigest(parse_url(url).uri.encode())


Resume = tuple[Part, tuple[str, str]]
"""What is to be resumed, and the digests of the shards then and now."""


def url_of(item: object) -> str:
    """Return the URL that an item is, or that it has as ``"url"``."""
    if isinstance(item, str):
        return item
    if isinstance(item, Mapping) and isinstance(item.get("url"), str):
        url: str = item["url"]
        return url
    raise UsageError.at(
        f"an item of type {type(item).__name__} is no URL",
        todo='pass strings, or mappings {"url": string}: the stages that read stand right behind .list_ais()',
    )


def place_of(item: object) -> Location:
    """Return where the shard or object is that an item names; see `url_of`."""
    return parse_url(url_of(item))


_SEEN = 64  # shards begun last whose names a checkpoint keeps, to notice that the listing has changed
# Shards read last whose versions are remembered: samples of theirs may still be held for shuffling.
_KNOWN = 4096


class LoadState:
    """The running state of `load_tar` in one process.

    Attributes:
        queue: The open shards; the first is read next.
        ahead: The shard after them if it was opened before its turn, to avoid a wait for its node's answer.
        held: Places still to be read again for the stages below.
    """

    def __init__(
        self, source: IterDataPipe[object], store: StoreOptions, options: ShardOptions, resume: Resume | None
    ) -> None:
        self._store = store
        self._options = options
        self._urls: Sequence[str] = ()
        self._seen: deque[SeenShard] = deque(maxlen=_SEEN)
        self._known: dict[int, tuple[str | None, str | None]] = {}
        self.queue: deque[OpenShard] = deque()
        self.ahead: OpenShard | None = None
        self.held: deque[int] = deque()
        listed = listed_behind(source)
        if resume is None:
            self._set_order(ShardOrder(source, listed), gives_at_once(source))
            return
        items = epoch_items(source, listed)
        self._urls = (
            cast("Sequence[str]", items) if isinstance(items, EpochURLs) else [url_of(item) for item in items]
        )
        part, digests = resume
        check_data(part, digests, self._urls)
        left = np.packbits(_times_left(part, len(items)) > 0, bitorder="little").tobytes()
        opened, held, versions = _begun(part)
        self._known.update((shard.position, (shard.version, shard.checksum)) for shard in versions)
        self._set_order(ShardOrder(source, None, items, left), True)
        self.held.extend(held)
        for shard in opened:
            item = items[shard.position]
            how = {"start": shard.offset, "version": shard.version, "checksum": shard.checksum}
            self._begin(self._opened(item, shard.position, **how))

    def _set_order(self, order: ShardOrder, at_once: bool) -> None:
        self._order = order
        self._to_come = iter(order)
        self._looks_ahead = at_once
        self._failure: Exception | None = None

    def open_next(self) -> bool:
        """Begin to read the next shard of the order; return False at the end."""
        # An error of a shard that was opened early is raised at the turn of that shard.
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        shard = self.ahead or self._following()
        self.ahead = None
        if shard is None:
            return False
        self._begin(shard)
        return True

    def look_ahead(self) -> None:
        """Request the next shard while the ones before it are read to their end."""
        if not self._looks_ahead or self.ahead is not None:
            return
        try:
            self.ahead = self._following(before_its_turn=True)
            self._looks_ahead = self.ahead is not None
        except Exception as error:  # noqa: BLE001 - raised when it is the shard's turn
            self._looks_ahead, self._failure = False, error

    def _following(self, *, before_its_turn: bool = False) -> OpenShard | None:
        """Return the next shard of the order, opened; None if there is none."""
        following = next(self._to_come, None)
        if following is None:
            return None
        position, item = following
        return self._opened(item, position, before_its_turn=before_its_turn)

    def _opened(self, item: object, position: int, **how: Any) -> OpenShard:
        return OpenShard(place_of(item), position, self._store, self._options, **how)

    def _begin(self, shard: OpenShard) -> None:
        """Read a shard, after those already open."""
        self._seen.append(SeenShard(shard.position, url_hash(shard.place)))
        self.queue.append(shard)

    def replay(self) -> Iterator[tuple[str, Run]]:
        """Yield the held samples again, in order."""
        if not self.held:
            return
        runs = held_runs(list(self.held), self._urls, self._known, self._store, self._options)
        for url, run in runs:
            self.held.popleft()
            yield url, run

    def save(self, held: Iterable[int]) -> ReaderState:
        """Return the rest to read, and the origins of the `held` samples."""
        places = array("Q", (*held, *self.held))
        # The shard opened ahead was taken from the order, but no sample of it was yielded: it counts as left.
        return ReaderState(
            *self._order.save(last_is_left=self.ahead is not None),
            [
                OpenPosition(shard.position, shard.next_offset, shard.version, shard.checksum)
                for shard in self.queue
            ],
            list(self._seen),
            places.tobytes(),
            self._versions({place >> SHARD_SHIFT for place in places}),
        )

    def remember(self, shard: OpenShard) -> None:
        """Keep a shard's version: stages may hold samples of it for long."""
        self._known.pop(shard.position, None)
        self._known[shard.position] = shard.version, shard.checksum
        if len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]

    def _versions(self, positions: set[int]) -> list[ShardVersion]:
        now = {shard.position: (shard.version, shard.checksum) for shard in self.queue}
        found = ((position, now.get(position) or self._known.get(position)) for position in sorted(positions))
        return [ShardVersion(position, *known) for position, known in found if known is not None]
