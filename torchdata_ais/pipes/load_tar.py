"""``.load_tar()``: shards to members, whole samples only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from typing_extensions import Self

from torchdata_ais._util.arguments import check_function, check_number
from torchdata_ais.errors import NotFoundError
from torchdata_ais.pipes.base.contract import MemoryBound, Reader, mib
from torchdata_ais.pipes.base.meter import StageStats, meter_of, metered
from torchdata_ais.pipes.base.pipe import Pipe
from torchdata_ais.pipes.base.policy import ErrorPolicy, OnError, note_place
from torchdata_ais.pipes.base.registry import stage
from torchdata_ais.pipes.base.seed import EpochSeed, seed_shufflers
from torchdata_ais.pipes.base.sources import StageTransport, held_stats
from torchdata_ais.pipes.base.torch_stages import stage_of
from torchdata_ais.pipes.base.upstream import ensure_sharded, upstream
from torchdata_ais.pipes.checkpoint.load_state import LoadState, Resume
from torchdata_ais.reading.open_shard import OpenShard, Safety, ShardOptions, Watch
from torchdata_ais.reading.runs import Run
from torchdata_ais.state import Part, ReaderState
from torchdata_ais.store import Cluster, ObjectCache, Retry, given_options, with_neighbours
from torchdata_ais.urls import MemberPath

_UNKEYED_BYTES = 3 << 20  # members without a key, and extension headers


@stage("load_tar")
class AISFileLoader(Pipe[tuple[MemberPath, bytes]], Reader):
    """Stream tar shards and yield their members (``.load_tar()``).

    Only members of whole samples are yielded.
    A sharding filter is put in front of every path that has none, so that ranks and workers read different
    shards. A shard is fetched, checked and parsed while it arrives; none is held whole. The members of a key are
    yielded when a member with another key follows or when the shard has ended well (end blocks there, length and
    checksum right): of a shard that breaks off, no incomplete sample is passed on. The checksum covers the object as
    a whole: a flipped bit inside a member is certain at the end of its shard, and the `ChecksumError` says how many
    samples of it had been passed on by then.

    Args:
        source: Pipe of URLs: object URLs, ``ais://`` and other providers' URIs, ``file://`` and local paths, or
            mappings ``{"url": ...}``.
        cluster: See `torchdata_ais.store.Cluster`. Default: the lister's, then that of ``AIS_ENDPOINT``.
        open_shards: Shards read at the same time, one sample from each in turn: mixes shards, and fills a link
            that one connection cannot.
        rename_files: Function applied to member names before anything else looks at them.
        select_files: Function that says, by (renamed) name, which members to read; the rest is passed over.
        safety: `Safety`: what is asked of the bytes before their samples are believed.
        prefetch_bytes: Bytes fetched ahead, for all open shards of the process together.
        retry: `Retry` for broken requests.
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler; skipping gives up the rest of the
            shard (the one sample, for an error of a sample).
        max_errors: How many errors to go on after: a count, or a share of the shards.
        seed: Seed of torch's ``.shuffle()`` above this stage, where no loader sends one.
        cache: `torchdata_ais.store.ObjectCache`, to keep whole shards in a folder, for a cluster far away.

    Yields:
        ``(path, bytes)``: `MemberPath` and the member's content, for every regular member (also key-less ones
        such as ``README``; macOS's ``._`` files are left out). Links are resolved within their sample. The shard's
        URL in the path has no password and no signature in it: so has none in ``sample["__url__"]``.

    Order:
        That of the shards, and within a shard of its members. With `open_shards` > 1 samples of the open shards
        alternate, in an order that depends on nothing but the order of the shards.

    Memory:
        ``prefetch_bytes + open_shards * (max(sample) + max(member) + 2 * block_bytes + 3 MiB)``, whatever the shard's
        size. A sample is its data, and 512 bytes a member and 8 a character of its name; the 3 MiB are members
        without a key and extension headers. A compressed shard takes 2 MiB more and the window of its format (gz
        32 KiB, bz2 4 MiB, xz up to 256 MiB, zst up to 128 MiB).

        >>> AISFileLoader(["s.tar"], open_shards=4).memory_bound().text
        '32 MiB + 4 x (sample + member + 5 MiB)'

    Raises:
        TransportError: `ConnectError`, `ReadError`, `StallError`, `ObjectChangedError`, `NotFoundError`, `AuthError`.
        ShardError: `TruncatedShardError`, `BadHeaderError`, `ChecksumError`, `NotATarError`.
        SampleError: A sample larger than ``Safety.max_sample_bytes``.
        UsageError: An item that is not a URL; an argument that cannot work, when the pipe is made.

    Example:
        >>> from torchdata_ais.testing import write_shard
        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> shard = write_shard(folder / "s.tar", {"a.cls": b"1", "a.txt": b"cat"})
        >>> for path, data in AISFileLoader([shard]):
        ...     print(path.member, data)
        a.cls b'1'
        a.txt b'cat'
    """

    resumable = True
    gives = "more"
    loop = "_whole_runs"

    epoch_seed: EpochSeed
    transport: StageTransport

    def __init__(
        self,
        source: object,
        *,
        cluster: Cluster = None,
        open_shards: int = 1,
        rename_files: Callable[[str], str] | None = None,
        select_files: Callable[[str], bool] | None = None,
        safety: Safety | None = None,
        prefetch_bytes: int | None = None,
        retry: Retry | None = None,
        on_error: OnError = "raise",
        max_errors: float | None = None,
        seed: int = 0,
        cache: ObjectCache | None = None,
    ) -> None:
        super().__init__(source)
        check_number(open_shards, 1, "open_shards")
        for name, function in (("rename_files", rename_files), ("select_files", select_files)):
            if function is not None:
                check_function(function, 1, f"load_tar({name}=)")
        self._source = ensure_sharded(self._source)
        self.reads = open_shards
        safety = safety or Safety()
        self._shard_options = ShardOptions(safety, rename_files, select_files, cache)
        self.transport = StageTransport(
            given_options(cluster),
            prefetch_bytes=prefetch_bytes,
            retry=retry,
            verify=safety.verify,
            pin=safety.pin,
        )
        self._policy = ErrorPolicy(on_error, max_errors)
        self.epoch_seed = EpochSeed(seed)
        self._resume: Resume | None = None

    def watched_by(self, watch: Watch) -> Self:
        """Pass the bytes and members of one shard, read once, to an observer."""
        self._shard_options = replace(self._shard_options, watch=watch)
        return self

    def memory_bound(self) -> MemoryBound:
        prefetch, block = self.transport.sizes(self)
        each = 2 * block  # the one in hand, and one that an object without any may always fetch
        ahead = prefetch + self.reads * each
        return MemoryBound(
            f"{mib(prefetch)} + {self.reads} x (sample + member + {mib(each + _UNKEYED_BYTES)})", ahead
        )

    def arguments(self) -> str:
        return ", ".join(filter(None, [self.identity(), *self._policy.shown()]))

    def identity(self) -> str:
        return f"open_shards={self.reads}" if self.reads > 1 else ""

    def _items(self) -> Iterator[tuple[MemberPath, bytes]]:
        for url, run in self._whole_runs():
            last = len(run.members) - 1
            for index, member in enumerate(run.members):
                ends = "" if index < last else "shard" if run.last else "run"
                yield MemberPath.of(url, member.name, member.offset, ends, run.shard), member.data

    def busy_with(self) -> dict[str, Any]:
        queue = () if self._live is None else self._live.queue
        return {"url": queue[0].name} if queue else {}

    def whole_runs(self) -> Iterator[tuple[str, Run]]:
        """Yield ``(url, run)`` instead of single members, for `group_samples`.

        This is the short way.
        """
        return metered(self._whole_runs(), meter_of(self))

    def _whole_runs(self) -> Iterator[tuple[str, Run]]:
        store = self.transport.resolve(self)
        seed_shufflers(self._source, self.epoch_seed.next_epoch(), always=self.epoch_seed.was_sent)
        live = self._live = LoadState(self._source, store, self._shard_options, self._resume)
        self._resume = None
        queue = live.queue
        try:
            yield from live.replay()
            while True:
                while len(queue) < self.reads and live.open_next():
                    self.stats.items += 1
                if not queue:
                    self._policy.at_end(self.stats, "load_tar")
                    return
                shard = queue[0]
                try:
                    run = shard.next_run()
                except Exception as failure:  # noqa: BLE001 - also what the user's functions raise
                    error = failure
                    self._close(queue.popleft())
                    if isinstance(error, NotFoundError) and self._policy.on_error == "raise":
                        named = sum(stage_of(above).count_named() for above in upstream(self._source))
                        error = with_neighbours(error, shard.name, store, named)
                    note_place(error, {"__url__": shard.name}, self, {})
                    if not self._policy.goes_on(error, self.stats, "load_tar"):
                        return
                    continue
                if run is None:
                    self._close(queue.popleft())
                    continue
                queue.rotate(-1)
                if run.end > shard.near_end:
                    live.look_ahead()
                if run.error is None:
                    yield shard.name, run
                elif not self._policy.goes_on(run.error, self.stats, "load_tar"):
                    return
        finally:
            for shard in (*queue, *filter(None, [live.ahead])):
                self._close(shard)

    def save_position(self, held: Iterable[int]) -> ReaderState | None:
        return None if self._live is None else self._live.save(held)

    def load_part(self, part: Part, digests: tuple[str, str]) -> None:
        self._resume = part, digests

    def _close(self, shard: OpenShard) -> None:
        if self._live is not None:
            self._live.remember(shard)
        shard.close()
        self.stats.add_object(shard.bytes, shard.retries, shard.first_byte_s, shard.wait_s, shard.unverified)
        self.stats.refetched += shard.refetched
        shard.refetched = 0

    def counts(self) -> StageStats:
        # What is read of the open shards is added when they close; until then it is only shown.
        total = held_stats().add(self.stats)
        for shard in list(self._live.queue) if self._live is not None else ():
            total.refetched += shard.refetched
            if shard.blocks is not None and not shard.closed:
                now = shard.blocks.stats
                total.add_object(now.bytes, now.retries, now.first_byte_s, now.wait_s)
        return total
