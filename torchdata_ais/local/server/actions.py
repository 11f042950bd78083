"""What a fault does to a request.

Body actions count bytes of the body of that answer, from 0; a negative `at` counts from its end. So do actions on the
entries of a GetBatch count entries. Actions on objects and batches happen at the target, `DeadRedirect` and `DropEntry`
at the proxy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "ACTIONS",
    "Action",
    "Bandwidth",
    "Cut",
    "DeadRedirect",
    "Delay",
    "DropEntry",
    "EmptyEntry",
    "EndBatch",
    "FlipBit",
    "NewVersion",
    "Placeholder",
    "Reset",
    "Stall",
    "Status",
    "SwapEntries",
    "WholeObject",
    "WrongChecksum",
]


@dataclass(frozen=True)
class Action:
    """Base of what a rule can do."""

    at_proxy: ClassVar[bool] = False
    """Whether it happens where the request of an object is redirected, not where it is answered."""


@dataclass(frozen=True)
class Status(Action):
    """Answer with an error status, optionally with a `Retry-After` of so many seconds."""

    code: int
    retry_after: float | None = None


@dataclass(frozen=True)
class Delay(Action):
    """Wait so many seconds before the answer."""

    seconds: float


@dataclass(frozen=True)
class Bandwidth(Action):
    """Send the body no faster than so many bytes a second, on each connection by itself."""

    bytes_per_s: float


@dataclass(frozen=True)
class Cut(Action):
    """Promise the whole body, send `at` bytes of it, close the connection in good order."""

    at: int


@dataclass(frozen=True)
class Reset(Action):
    """Send `at` bytes of the body, then reset the connection."""

    at: int = 0


@dataclass(frozen=True)
class Stall(Action):
    """Send `at` bytes of the body, then nothing: for `seconds`, or until the client gives up if 0."""

    at: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class FlipBit(Action):
    """Flip bit number `bit` (0 is the lowest) of byte `at` of the body."""

    at: int
    bit: int = 0


@dataclass(frozen=True)
class WrongChecksum(Action):
    """Send the right body with a wrong `Ais-Checksum-Value`."""


@dataclass(frozen=True)
class NewVersion(Action):
    """Replace the object as soon as this answer has its bytes: the next request meets a new version.

    The new object is as long as the old one with every bit inverted, or the same bytes with `same_bytes`.
    """

    same_bytes: bool = False


@dataclass(frozen=True)
class DeadRedirect(Action):
    """Redirect to a target that refuses connections."""

    at_proxy: ClassVar[bool] = True


@dataclass(frozen=True)
class DropEntry(Action):
    """Leave the first entry whose name matches the glob `name` out of a page of a listing."""

    name: str = "*"


@dataclass(frozen=True)
class EndBatch(Action):
    """End the archive of a GetBatch in good order after so many entries, as if that were all."""

    after: int


@dataclass(frozen=True)
class WholeObject(Action):
    """Answer an entry of a GetBatch that asks for a range with the whole object."""

    entry: int


@dataclass(frozen=True)
class Placeholder(Action):
    """Answer an entry of a GetBatch as if its object were not there: a name that says so, and no bytes."""

    entry: int


@dataclass(frozen=True)
class EmptyEntry(Action):
    """Send an entry of a GetBatch under its name, without a byte."""

    entry: int


@dataclass(frozen=True)
class SwapEntries(Action):
    """Send two entries of a GetBatch in each other's place."""

    first: int = 0
    second: int = 1


ACTIONS: dict[str, type[Action]] = {kind.__name__: kind for kind in Action.__subclasses__()}
