"""What `load_tar` is in the middle of: the shards open, those to come, and samples to be read again."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import xxhash

from torchdata_ais.errors import ObjectChangedError, StateError, UsageError
from torchdata_ais.reading.held import held_runs
from torchdata_ais.reading.open_shard import OpenShard, ShardOptions
from torchdata_ais.samples import SHARD_SHIFT, Run
from torchdata_ais.stage.core import gives_at_once
from torchdata_ais.stage.pipe import IterDataPipe
from torchdata_ais.stage.shard_order import (
    ShardOrder,
    bitmap,
    find_sharder,
    left_of,
    unsharded,
)
from torchdata_ais.store import StoreOptions
from torchdata_ais.store.facts import Facts
from torchdata_ais.urls import ObjectURL, parse_url

__all__ = ["LoadState", "Resume", "url_of"]


def url_of(item: Any) -> str:
    """Return the URL in an item: the string itself, or the ``"url"`` of a mapping.

    Raises:
        UsageError: It is neither.
    """
    if isinstance(item, str):
        return item
    if isinstance(item, Mapping) and isinstance(item.get("url"), str):
        url: str = item["url"]
        return url
    raise UsageError.at(
        f"an item of type {type(item).__name__} is no URL",
        todo='pass strings, or mappings {"url": string}: the stages that read stand right behind .list_ais()',
    )


T = TypeVar("T")

_SEEN = 64  # shards begun last whose names a checkpoint keeps, to notice that the listing has changed
_KNOWN = (
    4096  # shards read last whose versions are remembered: samples of theirs may still be held for shuffling
)


class LoadState:
    """The running state of `load_tar` in one process.

    Args:
        source: The pipe of shards, sharding filter included.
        store: Transport settings.
        options: How shards are parsed.
        resume: What is to be resumed, or None to begin the epoch.

    Attributes:
        queue: The open shards; the first is read next.
        ahead: The shard after them if it was opened before its turn, so that nobody waits for its node to answer.
        held: Places still to be read again for the stages below.
    """

    def __init__(
        self, source: IterDataPipe[Any], store: StoreOptions, options: ShardOptions, resume: Resume | None
    ) -> None:
        self._store = store
        self._options = options
        self._urls: list[str] = []
        self._seen: deque[tuple[int, int]] = deque(maxlen=_SEEN)
        self._known: dict[int, tuple[str | None, str | None]] = {}
        self.queue: deque[OpenShard] = deque()
        self.ahead: OpenShard | None = None
        self.held: deque[int] = deque()
        if resume is None:
            self._set_order(ShardOrder(source), gives_at_once(source))
            return
        items = list(unsharded(source, find_sharder(source)))
        self._urls = [url_of(item) for item in items]
        resume.check(self._urls)
        self._known.update(resume.versions())
        self._set_order(ShardOrder(source, items, bitmap(resume.left(len(items)))), True)
        self.held.extend(resume.held())
        for position, offset, version, checksum in resume.open():
            self.open(items[position], position, offset, version, checksum)

    def _set_order(self, order: ShardOrder, at_once: bool) -> None:
        self._order = order
        self._to_come = iter(order)
        self._looks_ahead = at_once
        self._failure: Exception | None = None

    def open_next(self) -> bool:
        """Begin to read the next shard of the order; return False if there is none."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        shard, self.ahead = self.ahead, None
        if shard is not None:
            self._note(shard.position, shard.url)
            self.queue.append(shard)
            return True
        following = next(self._to_come, None)
        if following is None:
            return False
        self.open(following[1], following[0])
        return True

    def look_ahead(self) -> None:
        """Let the next shard answer while the ones before it are read to their end."""
        if not self._looks_ahead or self.ahead is not None:
            return
        try:
            following = next(self._to_come, None)
            if following is None:
                self._looks_ahead = False
                return
            position, item = following
            self.ahead = OpenShard(url_of(item), position, self._store, self._options, before_its_turn=True)
        except Exception as error:  # noqa: BLE001 - raised when it is the shard's turn
            self._looks_ahead, self._failure = False, error

    def _note(self, position: int, url: str) -> None:
        self._seen.append((position, url_hash(url)))

    def open(
        self,
        item: Any,
        position: int,
        start: int = 0,
        version: str | None = None,
        checksum: str | None = None,
    ) -> None:
        """Begin to read a shard, behind those already open."""
        url = url_of(item)
        self._note(position, url)
        self.queue.append(
            OpenShard(
                url, position, self._store, self._options, start=start, version=version, checksum=checksum
            )
        )

    def replay(self) -> Iterator[tuple[str, Run]]:
        """Yield the held samples again, in order."""
        if not self.held:
            return
        runs = held_runs(list(self.held), self._urls, self._known, self._store, self._options)
        for url, run in runs:
            self.held.popleft()
            yield url, run

    def save(self) -> dict[str, Any]:
        """Return what is left to read, as plain values."""
        return {
            **self._order.state(last_is_left=self.ahead is not None),
            "open": [
                [shard.position, shard.next_offset, shard.version, shard.checksum] for shard in self.queue
            ],
            "seen": [list(pair) for pair in self._seen],
            "held": array("Q", self.held).tobytes(),
        }

    def remember(self, shard: OpenShard) -> None:
        """Keep in mind which version of a shard was read: stages may hold samples of it for long."""
        self._known.pop(shard.position, None)
        self._known[shard.position] = shard.version, shard.checksum
        if len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]

    def versions(self, positions: set[int]) -> list[list[Any]]:
        """Return position, version and checksum of those of the shards at `positions` that are known."""
        now = {shard.position: (shard.version, shard.checksum) for shard in self.queue}
        found = ((position, now.get(position) or self._known.get(position)) for position in sorted(positions))
        return [[position, *known] for position, known in found if known is not None]


class Resume:
    """One instance's part of what saved instances had left.

    Args:
        states: Their saved states: what `LoadState.save` gave under ``"load"``; or, for an instance that was resumed
            and had not begun again, the states it was given under ``"of"`` with its own ``"share"`` of them.
        digests: Those of all shards when the states were taken, and now; empty where that is not known.
        share: ``(instance, instances)``: which part to take; ``(0, 1)`` takes all, in the order saved.
    """

    def __init__(
        self,
        states: Sequence[dict[str, Any]],
        share: tuple[int, int] = (0, 1),
        digests: tuple[str, str] = ("", ""),
    ) -> None:
        self._states = states
        self._share = share
        self._digests = digests

    def left(self, total: int) -> list[int]:
        """Return the positions to begin, of `total` in the epoch."""

        def positions(state: dict[str, Any]) -> list[int]:
            return list(left_of(state, total))

        return self._collect(positions, in_order=True)

    def open(self) -> list[Sequence[Any]]:
        """Return position, offset, version and checksum of the shards to go on with."""

        def entries(state: dict[str, Any]) -> list[Sequence[Any]]:
            found: list[Sequence[Any]] = state["open"]
            return found

        return self._collect(entries)

    def held(self) -> list[int]:
        """Return the places of the samples to read again."""
        return self._collect(_held_of)

    def versions(self) -> dict[int, tuple[str | None, str | None]]:
        """Return position -> version and checksum of the shards that held samples came from."""
        return {
            position: (version, checksum)
            for load in self._loads()
            for position, version, checksum in load["versions"]
        }

    def _collect(self, get: Callable[[dict[str, Any]], list[T]], *, in_order: bool = False) -> list[T]:
        found: list[Any] = []
        for state in self._states:
            if "of" in state:
                found += Resume(state["of"], tuple(state["share"]))._collect(get, in_order=in_order)
            else:
                found += get(state["load"])
        if in_order:
            found.sort()
        instance, instances = self._share
        return found[instance::instances]

    def _loads(self) -> Iterator[dict[str, Any]]:
        """Yield what `load_tar` saved in each of the states."""
        for state in self._states:
            if "of" in state:
                yield from Resume(state["of"])._loads()
            else:
                yield state["load"]

    def check(self, urls: list[str]) -> None:
        """Raise `StateError` if the shards are not the ones the checkpoint was taken over."""
        for load in self._loads():
            for position, known in load["seen"]:
                if position >= len(urls):
                    raise _too_few(position, urls)
                if url_hash(urls[position]) != known:
                    raise StateError.at(
                        f"shard {position} of the epoch is another one than when the checkpoint was taken",
                        todo="restore the bucket as it was (objects were added or removed), or begin the epoch anew",
                        url=urls[position],
                    )
            _check_positions(load, urls)
            _check_unchanged(load, urls)
        whole = Resume(self._states)
        to_read = [*whole.left(len(urls)), *(entry[0] for entry in whole.open())]
        if len(set(to_read)) != len(to_read):
            raise StateError.at(
                "the states overlap: a shard is left in two of them",
                todo="pass states that were taken at the same step by the ranks of one loader",
            )
        was, now = self._digests
        if was and now and was != now:
            raise StateError.at(
                "the shards are not those the checkpoint was taken over: the digest of their names, sizes and "
                f"versions was {was} and is {now}",
                todo="restore the bucket as it was (objects were added, removed or written anew), or begin the epoch "
                "anew",
            )


def _held_of(load: dict[str, Any]) -> list[int]:
    held = array("Q")
    held.frombytes(load["held"])
    return held.tolist()


def _check_positions(load: dict[str, Any], urls: list[str]) -> None:
    """Raise `StateError` if a saved state names more shards than there are."""
    held = _held_of(load)
    named = [entry[0] for entry in load["open"]]
    if load["left"] is not None:
        named.append(int.from_bytes(load["left"], "little").bit_length() - 1)
    elif load["next"]:
        named.append((load["next"] - 1) * load["n"] + load["i"])
    if held:
        named.append(max(held) >> SHARD_SHIFT)
    if max(named, default=-1) >= len(urls):
        raise _too_few(max(named), urls)
    if len(set(held)) != len(held):
        raise StateError.at(
            "the state is damaged: it names a held sample twice",
            todo="pass the checkpoint as it was saved, or another one",
        )


def _check_unchanged(load: dict[str, Any], urls: list[str]) -> None:
    """Raise `ObjectChangedError` for a shard that samples are still to be read of, if the listing has another one."""
    begun = [(entry[0], entry[2], entry[3]) for entry in load["open"]]
    for position, version, checksum in [*begun, *load["versions"]]:
        url = urls[position] if position < len(urls) else None
        if not isinstance(url, ObjectURL):
            continue
        now = Facts(version=url.version, checksum=url.checksum)
        difference = Facts(version=version, checksum=checksum).difference(now)
        if difference:
            raise ObjectChangedError.at(
                f"{parse_url(url).uri} was written anew since the checkpoint was taken: {difference}",
                todo="restore the object as it was, or begin the epoch anew",
                url=url,
            )


def _too_few(position: int, urls: list[str]) -> StateError:
    return StateError.at(
        f"the epoch had at least {position + 1} shards when the checkpoint was taken, now {len(urls)}",
        todo="restore the bucket as it was, or begin the epoch anew",
        url=urls[-1] if urls else None,
    )


def url_hash(url: str) -> int:
    """Return 32 bits that tell one shard from another; host and port do not count, a cluster may have moved."""
    return xxhash.xxh32_intdigest(parse_url(url).uri.encode())
