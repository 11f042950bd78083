"""Metadata and checksums of objects."""

from __future__ import annotations

import functools
import hashlib
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import NamedTuple, Protocol

import xxhash
from urllib3.response import BaseHTTPResponse

from torchdata_ais.errors import ReadError
from torchdata_ais.store.transport.attempts import Failed
from torchdata_ais.urls import Location

_DERIVING = ("etl_name", "etl_args", "etl_pipeline", "archpath", "archregx")
_CONTENT_RANGE = re.compile(r"bytes (\d{1,20})-(\d{1,20})/(\d{1,20}|\*)")


@dataclass
class ObjectMetadata:
    """Size, version and checksum of a whole object; None is unknown.

    Attributes:
        size: Bytes.
        version: AIStore's version; ``ETag`` or ``Last-Modified`` of a web file; time and size of a local one.
        checksum: Hexadecimal digest.
        hash_name: Which hash that is, by AIStore's name.
    """

    size: int | None = None
    version: str | None = None
    checksum: str | None = None
    hash_name: str = field(default="", compare=False)

    @property
    def identifying(self) -> bool:
        """Return whether these facts prove that two responses have equal bytes."""
        return bool(self.version or self.checksum)

    def difference(self, other: ObjectMetadata) -> str:
        """Return the difference in words, or ""; unknown values have none."""
        if self.version and other.version and self.version != other.version:
            return f"version {self.version} became {other.version}"
        # Digests of different lengths are of different hashes: a cloud store uses another one than AIStore.
        comparable = self.checksum and other.checksum and len(self.checksum) == len(other.checksum)
        if comparable and self.checksum != other.checksum:
            return f"checksum {self.checksum} became {other.checksum}"
        if self.size is not None and other.size is not None and self.size != other.size:
            return f"size {self.size} became {other.size}"
        return ""

    def adopt(self, other: ObjectMetadata) -> None:
        """Fill in unknown values."""
        self.size = other.size if self.size is None else self.size
        self.version = self.version or other.version
        if other.checksum:
            self.checksum, self.hash_name = other.checksum, other.hash_name


class ContentRange(NamedTuple):
    """First and last byte of an answer, and the object's size, if stated."""

    first: int
    last: int
    total: int | None


def range_of(response: BaseHTTPResponse) -> ContentRange | None:
    """Return the parsed ``Content-Range``; None if there is none."""
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if found is None:
        return None
    first, last, total = found.groups()
    return ContentRange(int(first), int(last), None if total == "*" else int(total))


def length_of(response: BaseHTTPResponse) -> int | None:
    """Return the ``Content-Length``; None if there is none.

    If it is not a number, which libraries take for "until the connection closes", it is `Failed`.
    """
    if response.headers.get("Transfer-Encoding", "").lower().find("chunked") >= 0:
        return None
    text = response.headers.get("Content-Length")
    if text is None:
        return None
    # Repeated equal headers are joined with commas.
    numbers = {part.strip() for part in text.split(",")}
    if len(numbers) != 1 or not (number := numbers.pop()).isdecimal() or not number.isascii():
        raise Failed(ReadError, f"the server sent the length {text[:40]!r}", "look at that node")
    return int(number)


def is_derived(location: Location) -> bool:
    """Return whether the body is a transform's output or a part of the object.

    Such a body does not have the stored checksum.
    """
    return any(name in location.params for name in _DERIVING)


def response_metadata(response: BaseHTTPResponse, location: Location) -> ObjectMetadata:
    """Return the facts about the whole object in the headers of a response."""
    headers = response.headers
    found = ObjectMetadata()
    if response.status == 200:
        found.size = length_of(response)
    elif (part := range_of(response)) is not None:
        found.size = part.total
    if location.kind == "http":
        found.version = headers.get("ETag") or headers.get("Last-Modified")
    elif not is_derived(location):
        found.version = headers.get("Ais-Version")
        kind, value = headers.get("Ais-Checksum-Type", ""), headers.get("Ais-Checksum-Value")
        if value and kind != "none":
            found.checksum, found.hash_name = value.lower(), kind
    return found


_log = logging.getLogger("torchdata_ais")

INSTALL_CRC32C = "pip install google-crc32c"


class Hash(Protocol):
    """A running hash, as `hashlib` and `xxhash` have it."""

    def update(self, data: bytes, /) -> None:
        """Add bytes."""

    def hexdigest(self) -> str:
        """Return the digest of the bytes so far."""


@functools.cache
def _crc32c_library() -> ModuleType | None:
    """Return the library with the hardware instruction for CRC32C, if any."""
    try:
        import google_crc32c
    except Exception:  # noqa: BLE001 - a broken installation raises anything
        return None
    return google_crc32c if google_crc32c.implementation == "c" else None


class _Crc32c:
    """CRC32C, as a running hash."""

    def __init__(self, library: ModuleType) -> None:
        self._extend = library.extend
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = self._extend(self._value, data if type(data) is bytes else bytes(data))

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


_HASHES: dict[str, Callable[[], Hash]] = {
    "xxhash2": xxhash.xxh64,
    "xxhash": xxhash.xxh64,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
}
_BY_LENGTH = {8: "crc32c", 16: "xxhash2", 32: "md5", 64: "sha256", 128: "sha512"}
_reported: set[str] = set()  # kinds


def hash_maker(checksum: str, kind: str = "") -> Callable[[], Hash] | None:
    """Return a constructor of hashes of a kind, else of that of `checksum`.

    None if they cannot be computed here: crc32c without a library for it, and kinds that are not known.
    """
    kind = kind or _kind_of(checksum)
    if kind == "crc32c":
        library = _crc32c_library()
        return None if library is None else lambda: _Crc32c(library)
    return _HASHES.get(kind)


def hash_like(checksum: str | None) -> Hash | None:
    """Return a new hash with digests like `checksum`; None without any."""
    make = hash_maker(checksum or "")
    return make() if make else None


def unverifiable(checksum: str | None, kind: str = "") -> str:
    """Return the kind of a checksum that cannot be computed here, or "".

    Example:
        >>> unverifiable("0123456789abcdef"), unverifiable(None), unverifiable("12", "new-hash")
        ('', '', 'new-hash')
    """
    return "" if not checksum or hash_maker(checksum, kind) else kind or _kind_of(checksum) or "unknown"


def report_unverified(kind: str, name: str) -> None:
    """Log once in a process that checksums of a kind are not verified."""
    if kind not in _reported:
        _reported.add(kind)
        advice = f": {INSTALL_CRC32C}" if kind == "crc32c" else ""
        _log.warning("not verified: %s, the checksum of %s and maybe of others%s", kind, name, advice)


def _kind_of(checksum: str) -> str:
    return _BY_LENGTH.get(len(checksum), "")
