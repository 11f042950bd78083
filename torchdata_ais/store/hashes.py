"""The hashes that objects are compared by: those whose digests AIStore stores, as far as they can be computed here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol

import xxhash


class Hash(Protocol):
    """A running hash, as `hashlib` and `xxhash` have it."""

    def update(self, data: bytes, /) -> None:
        """Add bytes."""

    def hexdigest(self) -> str:
        """Return the digest of the bytes so far."""


_HASHES: dict[str, Callable[[], Hash]] = {
    "xxhash2": xxhash.xxh64,
    "xxhash": xxhash.xxh64,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
}
_BY_LENGTH = {16: "xxhash2", 32: "md5", 64: "sha256", 128: "sha512"}


def hash_maker(checksum: str, kind: str = "") -> Callable[[], Hash] | None:
    """Return what makes hashes of AIStore's name `kind`, or such whose digests look like `checksum`.

    None if they cannot be computed here (crc32c, none).
    """
    return _HASHES.get(kind or _BY_LENGTH.get(len(checksum), ""))


def hash_like(checksum: str | None) -> Hash | None:
    """Return a new hash whose digests look like `checksum`; None if there is none."""
    make = hash_maker(checksum or "")
    return make() if make else None
