"""What a fault does to a request.

Body actions count bytes of the body of that answer, from 0; a negative `at` counts from its end. So do actions on the
entries of a GetBatch count entries. Actions on objects and batches happen at the target, `DeadRedirect` and `DropEntry`
at the proxy.
"""

from __future__ import annotations

from typing import ClassVar, Union

import msgspec


class Action(msgspec.Struct, frozen=True, tag=True):
    """Base of what a rule can do."""

    at_proxy: ClassVar[bool] = False
    """Whether it happens where the request of an object is redirected, not where it is answered."""


class Status(Action, frozen=True):
    """Answer with an error status, optionally with a `Retry-After` of so many seconds."""

    code: int
    retry_after: float | None = None


class Busy(Action, frozen=True):
    """Answer 429 while more than so many requests are under way at the node, optionally with a `Retry-After`."""

    above: int
    retry_after: float | None = None


class Delay(Action, frozen=True):
    """Wait so many seconds before the answer."""

    seconds: float


class Bandwidth(Action, frozen=True):
    """Send the body no faster than so many bytes a second, on each connection by itself."""

    bytes_per_s: float


class Cut(Action, frozen=True):
    """Promise the whole body, send `at` bytes of it, close the connection in good order."""

    at: int


class CutSlow(Action, frozen=True):
    """Reset the connection of a client that takes no byte for so many seconds, as targets do after 30.

    What the systems of both sides keep on the way counts as taken: `buffer` bytes at this one.
    """

    seconds: float
    buffer: int = 16_384


class Reset(Action, frozen=True):
    """Send `at` bytes of the body, then reset the connection."""

    at: int = 0


class Stall(Action, frozen=True):
    """Send `at` bytes of the body, then nothing: for `seconds`, or until the client gives up if 0."""

    at: int = 0
    seconds: float = 0.0


class FlipBit(Action, frozen=True):
    """Flip bit number `bit` (0 is the lowest) of byte `at` of the body."""

    at: int
    bit: int = 0


class WrongChecksum(Action, frozen=True):
    """Send the right body with a wrong `Ais-Checksum-Value`."""


class NewVersion(Action, frozen=True):
    """Replace the object as soon as this answer has its bytes: the next request meets a new version.

    The new object is as long as the old one with every bit inverted, or the same bytes with `same_bytes`.
    """

    same_bytes: bool = False


class DeadRedirect(Action, frozen=True):
    """Redirect to a target that refuses connections."""

    at_proxy: ClassVar[bool] = True


class DropEntry(Action, frozen=True):
    """Leave the first entry whose name matches the glob `name` out of a page of a listing."""

    name: str = "*"


class EndBatch(Action, frozen=True):
    """End the archive of a GetBatch in good order after so many entries, as if that were all."""

    after: int


class WholeObject(Action, frozen=True):
    """Answer an entry of a GetBatch that asks for a range with the whole object."""

    entry: int


class Placeholder(Action, frozen=True):
    """Answer an entry of a GetBatch as if its object were not there: a name that says so, and no bytes."""

    entry: int


class EmptyEntry(Action, frozen=True):
    """Send an entry of a GetBatch under its name, without a byte."""

    entry: int


class SwapEntries(Action, frozen=True):
    """Send two entries of a GetBatch in each other's place."""

    first: int = 0
    second: int = 1


ANY_ACTION = Union[tuple(Action.__subclasses__())]  # type: ignore[valid-type]  # noqa: UP007 - a value
"""What the JSON of a fault may hold."""
