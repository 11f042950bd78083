"""One file or object as a stream, and what a ``pipe:`` URL stands for."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable
from typing import Any, BinaryIO, cast

from torchdata_ais.errors import UsageError
from torchdata_ais.store import BlockSource, StoreOptions, open_blocks, resolve_options

__all__ = ["direct_url", "gopen"]

_EXPLANATION = (
    "a command of a shell is not run: a list of shards is data, and what stands in it could be anything;"
    " nor does a command say whether it got all the bytes"
)


def direct_url(url: str) -> str:
    """Return `url`, and for a ``pipe:`` URL the file, web page or object that its command would print.

    Nothing is run. Understood are ``cat``, ``curl``, ``wget -O-``, ``gsutil cat``, ``aws s3 cp``, ``ais get`` with one
    source and without credentials. An ``|| true`` behind them, which hides errors, is left out.

    Raises:
        UsageError: Another command.

    Example:
        >>> direct_url("pipe:curl -s -L http://host/s.tar || true")
        'http://host/s.tar'
        >>> direct_url("ais://bucket/s.tar")
        'ais://bucket/s.tar'
    """
    if not url.startswith("pipe:"):
        return url
    try:
        words = shlex.split(url[len("pipe:") :])
    except ValueError:
        words = []
    if words[-2:] == ["||", "true"]:
        words = words[:-2]
    for command, (flags, scheme) in _COMMANDS.items():
        size = len(command.split())
        if " ".join(words[:size]) == command:
            rest = [word for word in words[size:] if word not in flags]
            if len(rest) == 1 and _is_source(rest[0], scheme):
                return rest[0]
    raise UsageError.at(
        _EXPLANATION,
        todo="name the file, web page or object itself, or copy it to a file first",
        url=url[:200],
    )


_WEB = "http:// https://"
_OBJECTS = "ais:// s3:// gs:// gcp:// az:// azure:// oci:// aws://"
_COMMANDS: dict[str, tuple[list[str], str]] = {
    "cat": (["--"], ""),
    "curl": (["-s", "-S", "-L", "-f", "-sL", "-Ls", "-sSL", "-fsL", "-fsSL", "--silent", "--location", "--fail"], _WEB),
    "wget": (["-q", "-O", "-", "-O-", "-qO-", "--quiet"], _WEB),
    "gsutil cat": ([], "gs://"),
    "aws s3 cp": (["-", "--quiet", "--only-show-errors"], "s3://"),
    "ais get": (["-"], _OBJECTS),
    "ais object cat": ([], _OBJECTS),
}  # fmt: skip


def _is_source(word: str, schemes: str) -> bool:
    if set(word) & set("|&;<>$`*?\"'\\\n") and "://" not in word:
        return False
    return word.startswith(tuple(schemes.split())) if schemes else not word.startswith("-")


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
    """Writes through to a file or object that appears when this is closed, and not if the ``with`` body raises."""

    def __init__(self, name: str, options: Callable[[], StoreOptions]) -> None:
        from torchdata_ais.writing.targets import open_target

        self._target = open_target(name, options)

    def writable(self) -> bool:
        return True

    def write(self, block: Any) -> int:
        self._target.write(block)
        return len(block)

    def __exit__(self, kind: Any, *details: Any) -> None:
        if kind is not None and not self.closed:
            self._target.discard()
            super().close()
        self.close()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._target.publish()


def gopen(
    url: str, mode: str = "rb", bufsize: int = 8192, *, options: StoreOptions | None = None
) -> BinaryIO:
    """Open a file, object, web page or ``-`` as a binary stream.

    Args:
        url: What to open; see `direct_url` for ``pipe:``.
        mode: ``"rb"``, or ``"wb"``: what is written appears when the stream is closed.
        bufsize: Bytes read at once.
        options: Transport settings.

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
    store = resolve_options() if options is None else options
    if mode == "wb":
        if url.startswith("pipe:"):
            raise UsageError.at(_EXPLANATION, todo="write to a file or to ais://bucket/name", url=url[:200])
        return cast(BinaryIO, _Target(url, lambda: store))
    if mode not in ("rb", "r"):
        raise UsageError.at(f"mode={mode!r}", todo='use "rb" or "wb"')
    return cast(BinaryIO, io.BufferedReader(_Blocks(open_blocks(direct_url(url), store)), bufsize))
