"""Hashes for the checksums that AIStore stores, as far as they can be computed here."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Protocol

import xxhash

_log = logging.getLogger("torchdata_ais")

INSTALL_CRC32C = "pip install google-crc32c"
"""Advice where a CRC32C cannot be computed."""


class Hash(Protocol):
    """A running hash, as `hashlib` and `xxhash` have it."""

    def update(self, data: bytes, /) -> None:
        """Add bytes."""

    def hexdigest(self) -> str:
        """Return the digest of the bytes so far."""


@functools.cache
def _crc32c_library() -> ModuleType | None:
    """Return the library with the hardware instruction; None if it is missing, or would compute in Python."""
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
    """Return a constructor of hashes of AIStore's name `kind`, or of those whose digests look like `checksum`.

    None if they cannot be computed here: crc32c without a library for it, and kinds that are not known.
    """
    kind = kind or _kind_of(checksum)
    if kind == "crc32c":
        library = _crc32c_library()
        return None if library is None else lambda: _Crc32c(library)
    return _HASHES.get(kind)


def hash_like(checksum: str | None) -> Hash | None:
    """Return a new hash whose digests look like `checksum`; None if there is none."""
    make = hash_maker(checksum or "")
    return make() if make else None


def unverifiable(checksum: str | None, kind: str = "") -> str:
    """Return the kind of a checksum that cannot be computed here; empty if it can, or there is no checksum.

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
