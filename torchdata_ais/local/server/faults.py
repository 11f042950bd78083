"""Faults by rule.

A rule counts the requests it matches and fires on some of them; several rules may fire on one request, and
their actions add up.

Body actions count bytes of the body of that answer, from 0; a negative `at` counts from its end. So do actions on the
entries of a GetBatch count entries. Actions on objects and batches happen at the target, `DeadRedirect` and `DropEntry`
at the proxy.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Any, ClassVar, TypeVar, Union

import msgspec


class Action(msgspec.Struct, frozen=True, tag=True):
    """Base of the actions of a rule."""

    at_proxy: ClassVar[bool] = False
    """True if it happens at the redirect of a request, not at its answer."""


class Status(Action, frozen=True):
    """Answer with an error status, optionally with a `Retry-After` in seconds."""

    code: int
    retry_after: float | None = None


class Busy(Action, frozen=True):
    """Answer 429 above so many requests at a node, with a `Retry-After`.

    The header is optional.
    """

    above: int
    retry_after: float | None = None


class Delay(Action, frozen=True):
    """Wait so many seconds before the answer."""

    seconds: float


class Bandwidth(Action, frozen=True):
    """Limit each connection to so many bytes of body a second."""

    bytes_per_s: float


class Cut(Action, frozen=True):
    """Promise the whole body, send `at` bytes of it, and close regularly."""

    at: int


class CutSlow(Action, frozen=True):
    """Reset the connection of a client that takes no byte for some seconds.

    Targets do so after 30 s.

    Bytes in the buffers of both systems count as taken: `buffer` bytes at this one.
    """

    seconds: float
    buffer: int = 16_384


class Reset(Action, frozen=True):
    """Send `at` bytes of the body, then reset the connection."""

    at: int = 0


class Stall(Action, frozen=True):
    """Send `at` bytes of the body, then nothing.

    It lasts `seconds`, or until the client gives up if 0.
    """

    at: int = 0
    seconds: float = 0.0


class FlipBit(Action, frozen=True):
    """Flip bit number `bit` (0 is the lowest) of byte `at` of the body."""

    at: int
    bit: int = 0


class WrongChecksum(Action, frozen=True):
    """Send the right body with a wrong `Ais-Checksum-Value`."""


class NewVersion(Action, frozen=True):
    """Replace the object during this answer: the next request gets a new one.

    The new version appears as soon as this answer has its bytes. It is as long as the old one with every bit inverted,
    or the same bytes with `same_bytes`.
    """

    same_bytes: bool = False


class DeadRedirect(Action, frozen=True):
    """Redirect to a target that refuses connections."""

    at_proxy: ClassVar[bool] = True


class DropEntry(Action, frozen=True):
    """Omit the first entry that matches the glob `name` from a listing page."""

    name: str = "*"


class EndBatch(Action, frozen=True):
    """End the archive of a GetBatch regularly after so many entries.

    It looks as if that were all.
    """

    after: int


class WholeObject(Action, frozen=True):
    """Answer a range entry of a GetBatch with the whole object."""

    entry: int


class Placeholder(Action, frozen=True):
    """Answer an entry of a GetBatch as if its object did not exist.

    The entry has a name that marks it as missing, and no bytes.
    """

    entry: int


class EmptyEntry(Action, frozen=True):
    """Send an entry of a GetBatch under its name, without a byte."""

    entry: int


class SwapEntries(Action, frozen=True):
    """Send two entries of a GetBatch in each other's place."""

    first: int = 0
    second: int = 1


ANY_ACTION = Union[tuple(Action.__subclasses__())]  # type: ignore[valid-type]  # noqa: UP007 - a value
"""Fields of a fault in JSON."""


A = TypeVar("A", bound=Action)


class Plan(tuple[Action, ...]):
    """Actions of all rules that fired on one request, in rule order."""

    __slots__ = ()

    def all(self, kind: type[A]) -> list[A]:
        """Those of a kind."""
        return [action for action in self if isinstance(action, kind)]

    def last(self, kind: type[A]) -> A | None:
        """The last one of a kind, if there is one."""
        return next(reversed(self.all(kind)), None)


class Fault(msgspec.Struct, frozen=True):
    """One rule: an action, and the requests that it applies to.

    Args:
        action: The action, e.g. ``Cut(1000)``.
        verb: An HTTP method, ``"LIST"`` for pages of a listing, ``"BATCH"`` for GetBatch, or ``"*"``.
        object: Glob over object names. A request without an object (a listing) has the empty name.
        bucket: Glob over bucket names.
        nth: Fire on the n-th matching request only (from 1), or on each of several numbers. None: on every.
        times: Fire at most so often.
        probability: Fire with this chance, drawn from a generator seeded with `seed`.
        seed: See `probability`. The draws depend on the order of arrival only.
        at_proxy: Act where requests of objects are redirected instead of where they are answered.
    """

    action: Action
    verb: str = "GET"
    object: str = "*"
    bucket: str = "*"
    nth: int | Collection[int] | None = None
    times: int | None = None
    probability: float = 1.0
    seed: int = 0
    at_proxy: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """The rule in the form that goes to the cluster's process."""
        nth = [self.nth] if isinstance(self.nth, int) else self.nth
        return {
            **msgspec.structs.asdict(self),
            "action": msgspec.to_builtins(self.action),
            "verb": self.verb.upper(),
            "nth": None if nth is None else sorted(nth),
            "at_proxy": self.action.at_proxy if self.at_proxy is None else self.at_proxy,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Fault:
        """The inverse of `to_json`."""
        return cls(msgspec.convert(value.pop("action"), ANY_ACTION), **value)


class _Rule:
    """A `Fault` with its counters."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.matched = self.fired = 0
        self.random = random.Random(fault.seed)

    def fires(self) -> bool:
        """Count one matching request and return whether the rule fires on it."""
        self.matched += 1
        fault = self.fault
        fires = (
            (fault.nth is None or self.matched in fault.nth)  # type: ignore[operator]  # a list, as it was sent
            and (fault.probability >= 1.0 or self.random.random() < fault.probability)
            and (fault.times is None or self.fired < fault.times)
        )
        self.fired += fires
        return fires


class FaultTable:
    """The rules in force. Cheap to check when there are none."""

    def __init__(self) -> None:
        self._rules: dict[int, _Rule] = {}
        self._lock = threading.Lock()
        self._last = 0

    def __bool__(self) -> bool:
        return bool(self._rules)

    def add(self, fault: Fault) -> int:
        """Put a rule in force and return its number."""
        with self._lock:
            self._last += 1
            self._rules[self._last] = _Rule(fault)
            return self._last

    def clear(self, number: int | None = None) -> None:
        """Take one rule, or all of them, out of force."""
        with self._lock:
            for key in [key for key in self._rules if number in (None, key)]:
                del self._rules[key]

    def fired(self, number: int | None = None) -> int:
        """On how many requests one rule, or all of them, have fired."""
        with self._lock:
            return sum(rule.fired for key, rule in self._rules.items() if number in (None, key))

    def plan(self, *, at_proxy: bool, verb: str, bucket: str, name: str) -> Plan:
        """Return the action for a request."""
        with self._lock:
            return Plan(
                rule.fault.action
                for rule in self._rules.values()
                if rule.fault.at_proxy == at_proxy
                and rule.fault.verb in (verb, "*")
                and fnmatchcase(name, rule.fault.object)
                and fnmatchcase(bucket, rule.fault.bucket)
                and rule.fires()
            )
