"""What is known about an object: from the listing, from a checkpoint, from the response."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import xxhash
from urllib3.response import BaseHTTPResponse

from torchdata_ais.errors import ReadError
from torchdata_ais.store.attempts import Failed

__all__ = ["Facts", "Hash", "hash_named", "hash_of_length", "length_of"]


class Hash(Protocol):
    """A running hash, as `hashlib` and `xxhash` have it."""

    def update(self, data: bytes, /) -> None:
        """Add bytes."""

    def hexdigest(self) -> str:
        """Return the digest of the bytes so far."""


def _sha512() -> Hash:
    return hashlib.sha512()


_HASHES: dict[str, Callable[[], Hash]] = {
    "xxhash2": xxhash.xxh64,
    "xxhash": xxhash.xxh64,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "sha256": hashlib.sha256,
    "sha512": _sha512,
}
_BY_LENGTH = {16: "xxhash2", 32: "md5", 64: "sha256", 128: "sha512"}


def hash_named(kind: str) -> Hash | None:
    """Return a new hash of AIStore's name for it; None if it cannot be computed here (crc32c, none)."""
    make = _HASHES.get(kind)
    return make() if make else None


def hash_of_length(checksum: str) -> str:
    """Return the name of the hash whose digests look like `checksum`; ``""`` if there is none."""
    return _BY_LENGTH.get(len(checksum), "")


@dataclass
class Facts:
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
        """Whether two responses with these facts have the same bytes."""
        return bool(self.version or self.checksum)

    def difference(self, other: Facts) -> str:
        """Return in words what `other` has differently, or ``""``. Unknown values differ from nothing."""
        if self.version and other.version and self.version != other.version:
            return f"version {self.version} became {other.version}"
        # Digests of different lengths are of different hashes: the store behind a bucket has its own.
        comparable = self.checksum and other.checksum and len(self.checksum) == len(other.checksum)
        if comparable and self.checksum != other.checksum:
            return f"checksum {self.checksum} became {other.checksum}"
        if self.size is not None and other.size is not None and self.size != other.size:
            return f"size {self.size} became {other.size}"
        return ""

    def adopt(self, other: Facts) -> None:
        """Fill in what is not known yet."""
        self.size = other.size if self.size is None else self.size
        self.version = self.version or other.version
        if other.checksum:
            self.checksum, self.hash_name = other.checksum, other.hash_name


def length_of(response: BaseHTTPResponse) -> int | None:
    """Return the ``Content-Length``; None if there is none.

    Raises:
        Failed: It is no number. (Libraries take that for "until the connection closes".)
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
