"""``.load_objects()``: whole objects that are not shards."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from torchdata_ais._util.arguments import check_number
from torchdata_ais.errors import AISError, SampleError
from torchdata_ais.pipes.base.contract import Effect, MemoryBound, mib
from torchdata_ais.pipes.base.meter import StageStats
from torchdata_ais.pipes.base.pipe import Pipe
from torchdata_ais.pipes.base.policy import ErrorPolicy, OnError
from torchdata_ais.pipes.base.registry import stage
from torchdata_ais.pipes.base.sources import StageTransport, held_stats
from torchdata_ais.pipes.base.upstream import ensure_sharded
from torchdata_ais.pipes.checkpoint.load_state import place_of
from torchdata_ais.store import BlockSource, Cluster, Retry, given_options, open_blocks


@stage("load_objects")
class AISObjectLoader(Pipe[tuple[str, bytes]]):
    """Read whole objects (``.load_objects()``).

    Each is checked against its length and checksum.
    A sharding filter is put in front of every path that has none, as for `load_tar`.

    Args:
        source: Pipe of URLs, as `load_tar` takes them.
        cluster: As for `load_tar`; so are `prefetch_bytes`, `retry`, `verify` and `pin`.
        open_objects: Objects requested at the same time; order is kept.
        max_object_bytes: A larger object is a `SampleError`.
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler; the object is skipped.
        max_errors: How many objects to give up: a count, or a share of all.

    Yields:
        ``(url, bytes)``; the URL without passwords and signatures.

    Order:
        That of the source.

    Memory:
        ``prefetch_bytes + open_objects * block_bytes + 2 * max(object)``: its blocks, and the whole they make.

        >>> AISObjectLoader(["a.jpg"], open_objects=8).memory_bound().text
        '32 MiB + 8 x 1 MiB + 2 objects'

    Raises:
        TransportError: As for `load_tar`.
        ChecksumError: The body is not the one stored.
        SampleError: An object larger than `max_object_bytes`.

    Example:
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
        >>> _ = file.write_bytes(b"hello")
        >>> [data for url, data in AISObjectLoader([str(file)])]
        [b'hello']
    """

    transport: StageTransport
    reads = 1

    def __init__(
        self,
        source: object,
        *,
        cluster: Cluster = None,
        open_objects: int = 4,
        max_object_bytes: int | None = 1 << 30,
        prefetch_bytes: int | None = None,
        retry: Retry | None = None,
        verify: bool | None = None,
        pin: bool | None = None,
        on_error: OnError = "raise",
        max_errors: float | None = None,
    ) -> None:
        super().__init__(source)
        check_number(open_objects, 1, "open_objects")
        check_number(max_object_bytes, 0, "max_object_bytes", optional=True)
        self._source = ensure_sharded(self._source)
        self._open_objects = open_objects
        self._max_object_bytes = max_object_bytes
        self.transport = StageTransport(
            given_options(cluster),
            prefetch_bytes=prefetch_bytes,
            retry=retry,
            verify=verify,
            pin=pin,
        )
        self._policy = ErrorPolicy(on_error, max_errors)

    def effect(self) -> Effect:
        return Effect("each" if self._policy.on_error == "raise" else "fewer", holds=True, keeps_place=False)

    def memory_bound(self) -> MemoryBound:
        prefetch, block = self.transport.sizes(self)
        each = f"{self._open_objects} x {mib(block)}"
        return MemoryBound(f"{mib(prefetch)} + {each} + 2 objects", prefetch + self._open_objects * block)

    def _items(self) -> Iterator[tuple[str, bytes]]:
        store = self.transport.resolve(self)
        places = map(place_of, self._source)
        queue: deque[tuple[str, BlockSource]] = deque()
        self._live = queue
        try:
            while True:
                while len(queue) < self._open_objects and (place := next(places, None)) is not None:
                    queue.append((place.shown, open_blocks(place, store)))
                if not queue:
                    self._policy.at_end(self.stats, "load_objects")
                    return
                url, blocks = queue[0]
                self.stats.items += 1
                try:
                    data = self._read(url, blocks)
                except AISError as error:
                    if not self._policy.goes_on(error, self.stats, "load_objects"):
                        return
                    continue
                finally:
                    blocks.close()
                    queue.popleft()
                    done = blocks.stats
                    self.stats.add_object(
                        done.bytes, done.retries, done.first_byte_s, done.wait_s, done.unverified
                    )
                yield url, data
        finally:
            for _, blocks in queue:
                blocks.close()

    def busy_with(self) -> dict[str, Any]:
        return {"url": self._live[0][0]} if self._live else {}

    def counts(self) -> StageStats:
        return held_stats().add(self.stats)

    def _read(self, url: str, blocks: BlockSource) -> bytes:
        parts: list[bytes] = []
        size = 0
        for block in blocks:
            size += len(block)
            if self._max_object_bytes is not None and size > self._max_object_bytes:
                raise SampleError.at(
                    f"the object holds more than {self._max_object_bytes} bytes",
                    todo="raise max_object_bytes, or read shards with .load_tar()", url=url, offset=size,
                )  # fmt: skip
            parts.append(block)
        return b"".join(parts)
