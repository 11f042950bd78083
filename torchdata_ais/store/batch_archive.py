"""The archive that answers a request for several ranges, compared with what was asked for before it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torchdata_ais.store.whole_body import WholeBody
from torchdata_ais.tar.header import NUL, pax_records, read_header

_BLOCK = 512
_FILES = (0, ord("0"))
_PAX = ord("x")
_PAX_BYTES = 64 << 10
_EXTENSION_BYTES = 1 << 20  # of all extension headers before one entry: `deadline` counts silence only
_PLACEHOLDER = "__404__/"
_REST = 64 << 10  # zeros that may follow the end


class NotAsAskedError(Exception):
    """The server said that all is well, and sent something else than what was asked for."""


class Asked(NamedTuple):
    """A range that was asked for.

    Attributes:
        number: Which of all.
        name: What its entry must be called.
        start: Its first byte.
        length: How many bytes.
    """

    number: int
    name: str
    start: int
    length: int


def entries_of(body: WholeBody, asked: Iterable[Asked]) -> Iterator[tuple[int, bytes | None]]:
    """Yield number and bytes of each entry that came as asked, in that order; None for one that the cluster lacks.

    An entry is read only if its header has the name and the size that were asked for.

    Args:
        body: The archive.
        asked: What was asked for, in this order.

    Memory: one entry.

    Raises:
        NotAsAskedError: The archive has something else, ends before, or goes on.
        Failed: The body broke off.
    """
    archive = _Archive(body)
    for one in asked:
        found = archive.header()
        if found is None:
            raise NotAsAskedError(f"the archive ended where {_shown(one)} was to come")
        if found == (_PLACEHOLDER + one.name, 0):
            yield one.number, None
            continue
        name, size = found
        if name != one.name:
            raise NotAsAskedError(f"{name[:200]!r} came in the place of {_shown(one)}")
        if size != one.length:
            raise NotAsAskedError(f"an entry of {size} bytes came in the place of {_shown(one)}")
        yield one.number, archive.data(one)
    more = archive.header()
    if more is not None or archive.rest().strip(NUL):
        raise NotAsAskedError("the archive goes on after the last entry that was asked for")


def _shown(one: Asked) -> str:
    return f"the {one.length} bytes from {one.start} of {one.name}"


class _Archive:
    def __init__(self, body: WholeBody) -> None:
        self._take = body.take
        self._padding = 0  # after the entry before

    def header(self) -> tuple[str, int] | None:
        """Return name and size of the next entry; None where the archive ends."""
        said: dict[str, str] = {}
        extension = 0
        while True:
            before, self._padding = self._padding, 0
            block = self._take(before + _BLOCK)[before:]
            if len(block) < _BLOCK:
                raise NotAsAskedError("the answer ended before its archive did")
            if not (block[0] or block.strip(NUL)):
                return None
            try:
                kind, size, name = read_header(block)
                if kind == _PAX and size <= _PAX_BYTES:
                    extension += _BLOCK + size
                    if extension > _EXTENSION_BYTES:
                        raise NotAsAskedError(
                            f"more than {_EXTENSION_BYTES} bytes of extension headers came before one entry"
                        )
                    said = pax_records(self._take(size))
                    self._padding = -size % _BLOCK
                    continue
                size = int(said.get("size", size))
            except ValueError as error:
                raise NotAsAskedError(f"what came is no tar header: {error}") from None
            if kind not in _FILES:
                raise NotAsAskedError(f"a tar header of the kind {chr(kind)!r} came")
            return said.get("path", name), size

    def data(self, one: Asked) -> bytes:
        """Return the bytes of the entry."""
        data = self._take(one.length)
        if len(data) < one.length:
            raise NotAsAskedError(f"the answer ended within {_shown(one)}")
        self._padding = -one.length % _BLOCK
        return data

    def rest(self) -> bytes:
        """Return what follows the first block of the end; it is read so that the connection can be used again."""
        return self._take(_REST)
