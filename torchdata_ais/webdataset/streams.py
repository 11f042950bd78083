"""Shards that are open already: the members of any file-like object, with the checks of shards that are read by URL."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

from torchdata_ais.errors import AISError, ReadError, UsageError
from torchdata_ais.reading.open_shard import ShardOptions
from torchdata_ais.reading.runs import Run
from torchdata_ais.stage.policy import ErrorPolicy
from torchdata_ais.stage.stats import StageStats
from torchdata_ais.webdataset.gopen import gopen
from torchdata_ais.webdataset.handlers import Handler

_BLOCK_BYTES = 256 << 10


class ShardStream(io.RawIOBase):
    """A shard that is opened by the first read; until then, who knows its URL can read it in a better way.

    Attributes:
        url: The shard.
        opened: Whether somebody has begun to read here.
    """

    def __init__(self, url: str, **named: Any) -> None:
        super().__init__()
        self.url = url
        self.opened = False
        self._named = named
        self._stream: Any = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer`; return how many bytes, 0 at the end."""
        if self._stream is None:
            self.opened = True
            self._stream = gopen(self.url, **self._named)
        return int(self._stream.readinto(buffer))

    def close(self) -> None:
        """Let go of the shard."""
        if self._stream is not None:
            self._stream.close()
        super().close()


def stream_in(item: Any) -> Any:
    """Return the open stream of ``{"url", "stream"}``; None where there is none, or a `ShardStream` not yet read."""
    stream = item.get("stream") if isinstance(item, Mapping) else None
    return None if isinstance(stream, ShardStream) and not stream.opened else stream


def readable_runs(stream: Any, url: str, handler: Handler, options: ShardOptions) -> Iterator[Run]:
    """Yield the whole runs of members that a stream holds, from where it stands; it may be compressed, and stays open.

    What is wrong with it is the handler's.

    Args:
        stream: Any object with ``read(size)`` that returns bytes.
        url: What the shard is called.
        handler: True goes on without a sample that is wrong in itself; the rest of a damaged shard is given up.
        options: How to read it.

    Memory:
        One sample, one member and some blocks; samples are bounded by 1 GiB.

    Raises:
        UsageError: It is no stream of bytes.
    """
    policy, stats = ErrorPolicy(handler), StageStats()
    try:
        for run in options.runs(_blocks(stream, url), url):
            if run.error is None:
                yield run
            elif not policy.goes_on(run.error, stats, "tar_file_expander"):
                return
    except Exception as error:  # noqa: BLE001 - the policy decides
        policy.goes_on(error, stats, "tar_file_expander")


def _blocks(stream: Any, url: str) -> Iterator[bytes]:
    read = getattr(stream, "read", None)
    if not callable(read):
        raise _no_stream(f"an object of type {type(stream).__name__}", url)
    while True:
        try:
            block = read(_BLOCK_BYTES)
        except AISError:
            raise
        except Exception as error:  # a stream of any kind raises errors of any kind
            raise ReadError.at(
                f"the stream that was passed for the shard failed ({type(error).__name__}: {error})", url=url
            ) from error
        if not isinstance(block, bytes | bytearray | memoryview):
            raise _no_stream(f"a stream whose read() gives {type(block).__name__}", url)
        if not block:
            return
        yield bytes(block)


def _no_stream(what: str, url: str) -> UsageError:
    return UsageError.at(
        f"{what} is no shard", todo='pass {"url": name, "stream": a file opened with "rb"}', url=url
    )
