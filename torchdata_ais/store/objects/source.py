"""Open objects.

The reading thread refers to the channel, never to the `BlockSource`. So an unreferenced source is collected, and its
finalizer ends the thread.
"""

from __future__ import annotations

import os
import weakref
from io import FileIO

from typing_extensions import Self

from torchdata_ais.errors import UsageError
from torchdata_ais.errors.text import Remedy, in_commands, in_programs
from torchdata_ais.store.objects.files import FileReader
from torchdata_ais.store.transport.body import HTTPReader
from torchdata_ais.store.transport.metadata import ObjectMetadata
from torchdata_ais.store.transport.options import StoreOptions
from torchdata_ais.store.transport.read_ahead import Channel, Reader, Stats, keep_memory
from torchdata_ais.urls import Location, parse_url


class BlockSource:
    """Iterator over the blocks of one object: ``bytes``, in order.

    It is a context manager. Blocks are fetched ahead, as far as the budget of the process allows. An error is raised
    in the place of the first block that is missing, and again at each further call; `ChecksumError` comes where the
    end would be.

    Attributes:
        stats: ``retries``, ``bytes``, ``first_byte_s``, ``wait_s``.

    Memory: this object's part of ``prefetch_bytes``, at least one block, and the block in your hand.
    """

    def __init__(
        self, place: Location, options: StoreOptions, reader: Reader, before_its_turn: bool = False
    ) -> None:
        self._place = place
        self._channel = Channel(place, options, reader, before_its_turn)
        self._finalizer = weakref.finalize(self, Channel.cancel, self._channel)
        self._channel.start()

    @property
    def stats(self) -> Stats:
        """Measurements so far."""
        return self._channel.reader.stats

    @property
    def size(self) -> int | None:
        """Bytes of the whole object; None if unknown before the first block."""
        return self._channel.reader.facts.size

    @property
    def checksum(self) -> str | None:
        """The checksum the cluster stored, in hexadecimal digits; None if unknown."""
        return self._channel.reader.facts.checksum

    @property
    def version(self) -> str | None:
        """The object's version; None if unknown."""
        return self._channel.reader.facts.version

    @property
    def verified(self) -> bool | None:
        """Result of the comparison with the checksum; None before the end."""
        return self._channel.reader.verified

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        if self._channel.pid != os.getpid():
            raise UsageError.at(
                "the source was opened in another process",
                todo="open objects in the process that reads them",
                url=self._place.shown,
            )
        try:
            return self._channel.take()
        except StopIteration:
            raise
        except BaseException:
            if self._channel.over:
                # It holds the channel, which holds the error, which holds the frames it went through, this one among
                # them: an unclosed source would never be collected.
                self._finalizer.detach()
            raise

    def close(self) -> None:
        """End the fetching, with an error for a waiting consumer, within 0.5 s."""
        self._finalizer()
        self._channel.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_blocks(
    url: str | Location,
    options: StoreOptions,
    *,
    start: int = 0,
    before_its_turn: bool = False,
    copy: FileIO | None = None,
) -> BlockSource:
    """Open an object, web file, local file or standard input; start fetching.

    Args:
        url: Any argument of `torchdata_ais.urls.parse_url`, or its result. Size, checksum and version of an
            `ObjectURL` must match.
        options: Where and how.
        start: The first byte wanted. Not verified by checksum, as that is the whole object's.
        before_its_turn: Fetch only the first block until it is requested.
        copy: An open local file with the same bytes, which is read instead; it is closed at the end. Errors name the
            object.

    Returns:
        An iterator of blocks of at most ``options.block_bytes`` bytes. Close it, or exhaust it.

    Raises:
        UsageError: No endpoint, a malformed URL, or a negative `start`. Everything else is raised by the
            iterator: `NotFoundError`, `AuthError`, `ConnectError`, `StallError`, `ReadError`,
            `ObjectChangedError`, `ChecksumError`.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "shard.tar")
        ...     _ = path.write_bytes(b"12345")
        ...     with open_blocks(str(path), StoreOptions(block_bytes=2)) as source:
        ...         list(source)
        [b'12', b'34', b'5']
    """
    place = parse_url(url).at(options.endpoint)
    known = place.written
    if start < 0:
        raise UsageError.at(f"start={start} is no offset", todo="pass 0 or more", url=place.shown)
    if place.kind == "object" and copy is None:
        if not place.name:
            raise UsageError.at(
                f"{place.uri} names a bucket, not an object",
                todo=Remedy(
                    in_programs(f"list it first (.list_ais(), or: torchdata-ais ls {place.uri})"),
                    in_commands(f"list it first: torchdata-ais ls {place.uri}"),
                ),
                url=place.shown,
            )
        place.require_endpoint()
    facts = ObjectMetadata(
        size=known.size,
        version=None if copy is not None else known.version,
        checksum=known.checksum.lower() if known.checksum else None,
    )
    reader: Reader
    if copy is not None:
        reader = FileReader(place.uri, options, start, facts, copy)
    elif place.kind in ("file", "stdin"):
        reader = FileReader(place.name, options, start, facts)
    else:
        reader = HTTPReader(place, options, start, facts)
    keep_memory()
    return BlockSource(place, options, reader, before_its_turn)
