"""One file or object as a stream."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from torchdata_ais.errors import UsageError
from torchdata_ais.store import BlockSource, Cluster, cluster_options, open_blocks
from torchdata_ais.urls import file_fault, parse_url, redact
from torchdata_ais.webdataset.commands import Command, refuse_local_file, with_command
from torchdata_ais.webdataset.left_out import explaining

if TYPE_CHECKING:
    from torchdata_ais.writing.targets import Target


class _Blocks(io.RawIOBase):
    def __init__(self, source: BlockSource) -> None:
        self._source = source
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._source, b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def close(self) -> None:
        self._source.close()
        super().close()


class _Target(io.RawIOBase):
    """Writes to a file or object that appears if the ``with`` body succeeds."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def writable(self) -> bool:
        return True

    def write(self, block: Any) -> int:
        self._target.write(block)
        return len(block)

    def __exit__(self, kind: object, *details: object) -> None:
        if kind is not None and not self.closed:
            self._target.discard()
            super().close()
        self.close()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._target.publish()


class _Output(io.BufferedReader):
    """The output of a command, closed without a warning if stages did not."""

    def __del__(self) -> None:
        self.close()


def _output(command: Command) -> BinaryIO:
    output = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with the reader
    try:
        command.run(output)
    except BaseException:
        output.close()
        raise
    output.seek(0)
    return cast(BinaryIO, _Output(cast(io.RawIOBase, output)))


def rewrite_url(url: str) -> str:
    """Return `url` as it is: no variable (``GOPEN_REWRITE``) changes it."""
    return url


def gopen(
    url: str,
    mode: str = "rb",
    bufsize: int = 8192,
    *,
    cluster: Cluster = None,
) -> BinaryIO:
    """Open a file, object, web page or ``-`` as a binary stream.

    Args:
        url: What to open, a `Command`, or a ``pipe:`` URL that becomes one (`Command.from_text`). A path and
            ``file://`` open any file that the process may read, unless `utils.enforce_security` (``WDS_SECURE=1``) is
            set.
        mode: ``"rb"``, or ``"wb"``: the output appears when the stream is closed.
        bufsize: Bytes read at once.
        cluster: See `torchdata_ais.store.Cluster`.

    Raises:
        UsageError: Another mode, or nothing that can be opened. Other errors come with the first read.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp(), "x")
        >>> with gopen(str(path), "wb") as stream:
        ...     _ = stream.write(b"abc")
        >>> with gopen(str(path)) as stream:
        ...     stream.read()
        b'abc'
    """
    return open_stream(url if mode == "wb" else with_command(url), mode, bufsize, cluster=cluster)


def open_stream(url: str, mode: str = "rb", bufsize: int = 8192, *, cluster: Cluster = None) -> BinaryIO:
    """Open the same as `gopen`, except for a command as text, from data."""
    store = cluster_options(cluster)
    if mode == "wb":
        from torchdata_ais.writing.targets import open_target

        return cast(BinaryIO, _Target(open_target(url, lambda: store)))
    if mode not in ("rb", "r"):
        raise UsageError.at(f"mode={mode!r}", todo='use "rb" or "wb"')
    if isinstance(url, Command):
        return _output(url)
    refuse_local_file(url)
    return cast(BinaryIO, io.BufferedReader(_Blocks(open_blocks(url, store)), bufsize))


def gopen_file(url: str, mode: str = "rb", bufsize: int = 8192) -> IO[Any]:
    """Open a local file as Python does, by its path or ``file:`` URL."""
    place = parse_url(url)
    if place.kind != "file":
        raise UsageError.at("this is no local file", todo="open it with wds.gopen(url)", url=redact(url))
    refuse_local_file(url)
    if mode.startswith("r") and Path(place.name).exists() and (why := file_fault(place.name)):
        raise UsageError.at(
            f"{url}: {why}", todo="open it with wds.gopen(url), which has a deadline", url=url
        )
    return Path(place.name).open(mode, bufsize)


__getattr__ = explaining(__name__)
