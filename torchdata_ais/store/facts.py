"""What is known about an object: from the listing, from a checkpoint, from the response."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from urllib3.response import BaseHTTPResponse

from torchdata_ais.errors import ReadError
from torchdata_ais.store.attempts import Failed
from torchdata_ais.urls import Location

_DERIVING = ("etl_name", "etl_args", "etl_pipeline", "archpath", "archregx")
_CONTENT_RANGE = re.compile(r"bytes (\d{1,20})-(\d{1,20})/(\d{1,20}|\*)")


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


class ContentRange(NamedTuple):
    """The bytes that an answer says it has, from `first` to `last`; and those of the whole object, if it tells them."""

    first: int
    last: int
    total: int | None


def range_of(response: BaseHTTPResponse) -> ContentRange | None:
    """Return what the ``Content-Range`` says; None if there is none."""
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if found is None:
        return None
    first, last, total = found.groups()
    return ContentRange(int(first), int(last), None if total == "*" else int(total))


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


def is_derived(location: Location) -> bool:
    """Whether the body is a transform's output or a part of the object: not what has the checksum."""
    return any(name in location.params for name in _DERIVING)


def facts_of(response: BaseHTTPResponse, location: Location) -> Facts:
    """Return what the headers of a response say about the whole object."""
    headers = response.headers
    found = Facts()
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
