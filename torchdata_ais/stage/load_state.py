"""What `load_tar` is in the middle of: the shards open, those to come, and samples to be read again."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from torchdata_ais.errors import UsageError
from torchdata_ais.reading.held import held_runs
from torchdata_ais.reading.open_shard import OpenShard, ShardOptions
from torchdata_ais.reading.runs import Run
from torchdata_ais.samples import SHARD_SHIFT
from torchdata_ais.stage.core import gives_at_once
from torchdata_ais.stage.listed_order import EpochURLs
from torchdata_ais.stage.pipe import IterDataPipe
from torchdata_ais.stage.rest import check_data, rest_of, url_hash
from torchdata_ais.stage.shard_order import ShardOrder, epoch_items, listed_behind
from torchdata_ais.state import OpenPosition, Part, ReaderState, SeenShard, ShardVersion
from torchdata_ais.store import StoreOptions
from torchdata_ais.urls import Location, parse_url

Resume = tuple[Part, tuple[str, str]]
"""What is to be resumed, and the digests of the shards then and now."""


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


def place_of(item: Any) -> Location:
    """Return where the shard or object is that an item names; see `url_of`."""
    return parse_url(url_of(item))


_SEEN = 64  # shards begun last whose names a checkpoint keeps, to notice that the listing has changed
# Shards read last whose versions are remembered: samples of theirs may still be held for shuffling.
_KNOWN = 4096


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
        rest = rest_of(part, len(items))
        self._known.update((shard.position, (shard.version, shard.checksum)) for shard in rest.versions)
        self._set_order(ShardOrder(source, None, items, rest.left), True)
        self.held.extend(rest.held)
        for shard in rest.open:
            item = items[shard.position]
            how = {"start": shard.offset, "version": shard.version, "checksum": shard.checksum}
            self._begin(self._opened(item, shard.position, **how))

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
        shard = self.ahead or self._following()
        self.ahead = None
        if shard is None:
            return False
        self._begin(shard)
        return True

    def look_ahead(self) -> None:
        """Let the next shard answer while the ones before it are read to their end."""
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

    def _opened(self, item: Any, position: int, **how: Any) -> OpenShard:
        return OpenShard(place_of(item), position, self._store, self._options, **how)

    def _begin(self, shard: OpenShard) -> None:
        """Read a shard, behind those already open."""
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
        """Return what is left to read, and which objects the samples `held` by the stages below came from."""
        places = array("Q", (*held, *self.held))
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
        """Keep in mind which version of a shard was read: stages may hold samples of it for long."""
        self._known.pop(shard.position, None)
        self._known[shard.position] = shard.version, shard.checksum
        if len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]

    def _versions(self, positions: set[int]) -> list[ShardVersion]:
        now = {shard.position: (shard.version, shard.checksum) for shard in self.queue}
        found = ((position, now.get(position) or self._known.get(position)) for position in sorted(positions))
        return [ShardVersion(position, *known) for position, known in found if known is not None]
