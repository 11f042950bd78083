"""Faults by rule: which requests are met (`Fault`) and what happens to them (the actions).

A rule counts the requests it matches and fires on some of them; several rules may fire on one request, and
their actions add up.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import msgspec

from .actions import ANY_ACTION, Action

A = TypeVar("A", bound=Action)


class Plan(tuple[Action, ...]):
    """The actions of all the rules that fired on one request, in the order of the rules."""

    __slots__ = ()

    def all(self, kind: type[A]) -> list[A]:
        """Those of a kind."""
        return [action for action in self if isinstance(action, kind)]

    def last(self, kind: type[A]) -> A | None:
        """The last one of a kind, if there is one."""
        return next(reversed(self.all(kind)), None)


class Fault(msgspec.Struct, frozen=True):
    """One rule: what to do with which requests.

    Args:
        action: What happens, e.g. ``Cut(1000)``.
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
        """Count one matching request and say whether the rule fires on it."""
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
    """The rules in force. Cheap to ask when there are none."""

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
        """Return what is to be done with a request."""
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
