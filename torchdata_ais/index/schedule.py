"""Schedules: changes of a run by step."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from numbers import Integral
from typing import Any, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from torchdata_ais._util.arguments import checked, whole_number
from torchdata_ais.errors import UsageError
from torchdata_ais.plan.changes import Changes, Skip, ramp, rounded

RAMP_PIECES = 8
"""Pieces of a ramp of weights, each with constant weights."""

_MOST = 1 << 31
_EXACT = 1e-6  # how far weights may be from a sum of 1: they are written with few digits
_NAMES = ("global_batch", "weights", "skip", "exclude", "max_repeats")


class Schedule:
    """Changes of a run by index, by step.

    Steps are counted over the whole run, from 0. The schedule is equal on all ranks, and the order of the samples
    stays a function of data, seed and schedule.

    Args:
        global_batch: ``{step: samples}``: the samples of all ranks in a step, from that step on.
        weights: ``{step: weights}``: a weight for each source of the `Mixture`, from that step on, as fractions that
            sum to 1 or as whole numbers; 0 leaves a source out. ``{(begin, end): weights}`` is a linear ramp from the
            weights before to these, in 8 pieces of constant weights.
        skip: ``{(begin, end): how}``: steps from `begin` to before `end` that do not come. ``"drop"`` leaves out their
            samples, too; with ``"defer"`` these come in the steps after.
        exclude: ``{source: samples}``: keys of samples of a source, or their numbers, that are left out. The other
            samples keep their places, and batches become smaller.
        max_repeats: ``{source: times}``: how often each sample of a source comes at most. After that its weight goes to
            the other sources in proportion.

    Raises:
        UsageError: An entry that is not as above, or contradicts another; it names the entry.

    Source:
        Names as in Megatron-LM (``iterations-to-skip``) and Levanter (stages of a mixture).

    Example:
        >>> schedule = Schedule(
        ...     global_batch={0: 256, 1000: 512},
        ...     weights={0: [3, 1], (2000, 4000): [1, 1]},
        ...     skip={(500, 520): "drop"},
        ... )
        >>> schedule.to_json()["skip"]
        [[500, 520, 'drop']]
        >>> Schedule.from_json(schedule.to_json()) == schedule
        True
    """

    @checked
    def __init__(
        self,
        *,
        global_batch: Mapping[int, int] | None = None,
        weights: Mapping[int | tuple[int, int], Sequence[float]] | None = None,
        skip: Mapping[tuple[int, int], Skip] | None = None,
        exclude: Mapping[int, Iterable[str | int]] | None = None,
        max_repeats: Mapping[int, int] | None = None,
    ) -> None:
        self.batches = tuple(
            sorted(
                (_step(step, "global_batch"), whole_number(count, "global_batch", 1, _MOST))
                for step, count in _entries(global_batch, "global_batch")
            )
        )
        self.weights = _checked_weights(_entries(weights, "weights"))
        self.skips = _checked_skips(_entries(skip, "skip"))
        self.exclude = tuple(
            sorted(
                (whole_number(source, "a source of exclude"), _samples(source, samples))
                for source, samples in _entries(exclude, "exclude")
            )
        )
        self.max_repeats = tuple(
            sorted(
                (
                    whole_number(source, "a source of max_repeats"),
                    whole_number(times, "max_repeats", 1, _MOST),
                )
                for source, times in _entries(max_repeats, "max_repeats")
            )
        )

    @classmethod
    def of(cls, given: Schedule | Mapping[str, object] | None) -> Schedule:
        """Return `given` as a schedule, if it is one, its JSON value, or None."""
        if given is None:
            return cls()
        return given if isinstance(given, Schedule) else cls.from_json(given)

    @classmethod
    def from_json(cls, value: Mapping[str, object] | str | bytes) -> Schedule:
        """Return the schedule of a result of `to_json`, or of its text.

        Raises:
            UsageError: It is something else.
        """
        try:
            found: Any = msgspec.json.decode(value) if isinstance(value, str | bytes) else value
            unknown = sorted(set(found) - set(_NAMES))
            named: dict[str, Any] = {
                name: dict(found.get(name, ())) for name in ("global_batch", "exclude", "max_repeats")
            }
            named["weights"] = {
                begin if begin == end else (begin, end): given
                for begin, end, given in found.get("weights", ())
            }
            named["skip"] = {(begin, end): how for begin, end, how in found.get("skip", ())}
        except (msgspec.DecodeError, AttributeError, TypeError, ValueError) as error:
            raise UsageError.at(
                f"this is no schedule as JSON: {error}", todo="write it with Schedule(...).to_json()"
            ) from None
        if unknown:
            raise UsageError.at(
                f"a schedule has no entries {', '.join(unknown)}", todo=f"use {', '.join(_NAMES)}"
            )
        return cls(**named)

    def to_json(self) -> dict[str, list[list[Any]]]:
        """Return the schedule as values for ``json.dumps``.

        Lists of entries: ``global_batch`` (step, samples), ``weights`` (begin, end, weights), ``skip`` (begin, end,
        how), ``exclude`` (source, samples), ``max_repeats`` (source, times). Empty ones are left out.
        """
        fields = (self.batches, self.weights, self.skips, self.exclude, self.max_repeats)
        lists: dict[str, Any] = {
            name: msgspec.to_builtins(field) for name, field in zip(_NAMES, fields, strict=True)
        }
        return {name: [list(entry) for entry in entries] for name, entries in lists.items() if entries}

    def digest(self) -> str:
        """Return the identity of the schedule, as 16 hexadecimal digits."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return xxhash.xxh64_hexdigest(msgspec.json.encode(self.to_json()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.digest())

    def __bool__(self) -> bool:
        """Return whether there is any entry."""
        return any((self.batches, self.weights, self.skips, self.exclude, self.max_repeats))

    def __repr__(self) -> str:
        counts = [f"{len(entries)} of {name}" for name, entries in self.to_json().items()]
        return f"Schedule({', '.join(counts)})"

    # What plans ask

    def check(self, sources: int, epoch_steps: int | None, stop: str) -> None:
        """Raise `UsageError` for entries that do not fit the sources or epochs.

        Args:
            sources: How many there are.
            epoch_steps: Steps of an epoch, or None.
            stop: The end of an epoch without `epoch_steps`.
        """
        for begin, _, given in self.weights:
            if len(given) != sources:
                raise UsageError.at(
                    f"the weights of step {begin} are {len(given)}, and there are {sources} sources",
                    todo="give one weight for each index of the Mixture, in its order; 0 leaves one out",
                )
        for name, entries in (("exclude", self.exclude), ("max_repeats", self.max_repeats)):
            unknown = [source for source, _ in entries if source >= sources]
            if unknown:
                raise UsageError.at(
                    f"{name} names source {unknown[0]}, and there are {sources}",
                    todo="sources are numbered from 0, in the order of the Mixture",
                )
        if self.max_repeats and epoch_steps is None:
            raise UsageError.at(
                f"max_repeats= with epochs that end by stop={stop!r}",
                todo="say how many steps an epoch has: epoch_steps=",
            )
        for begin, end, _ in self.skips if epoch_steps else ():
            number = -(-begin // (epoch_steps or 1))
            if (number + 1) * (epoch_steps or 1) <= end:
                raise UsageError.at(
                    f"skip of steps {begin} to {end} leaves epoch {number} without a step",
                    todo="skip fewer steps, or begin behind them: start_step=",
                )

    def skipping(self, begin: int, end: int, how: Skip) -> Schedule:
        """Return the schedule with a further entry of `skip`.

        Raises:
            UsageError: Some of these steps are skipped already.
        """
        value = self.to_json()
        return Schedule.from_json({**value, "skip": [*value.get("skip", ()), [begin, end, how]]})

    @property
    def names_sources(self) -> bool:
        """True if an entry is for some sources."""
        return bool(self.weights or self.exclude or self.max_repeats)

    def since(self, step: int, epoch_step: int) -> Schedule:
        """Return the schedule without the entries that no longer matter.

        Args:
            step: The first step of interest.
            epoch_step: The first step of its epoch.
        """
        other = Schedule()
        other.exclude, other.max_repeats = self.exclude, self.max_repeats
        other.batches = self.batches[max(0, bisect_right(self.batches, (step, _MOST)) - 1) :]
        held = [number for number, (_, end, _) in enumerate(self.weights) if end <= step]
        other.weights = self.weights[held[-1] if held else 0 :]
        other.skips = tuple(skip for skip in self.skips if skip[1] > epoch_step)
        return other

    def changes(self, weights: tuple[int, ...], places: Sequence[int | None] | None = None) -> Changes:
        """Return the schedule for a plan.

        Args:
            weights: Those before the first entry, as multiples of 1/65,536.
            places: For each source of the plan its number here, or None; default as they are.
        """
        places = range(len(weights)) if places is None else places
        stages: dict[int, npt.NDArray[np.int32]] = {}
        before = np.array(weights, dtype=np.int32)
        for begin, end, given in self.weights:
            row = np.array(
                rounded([0 if place is None else given[place] for place in places]), dtype=np.int32
            )
            if begin < end:
                count = min(RAMP_PIECES, end - begin)
                starts = (begin + (end - begin) * piece // count for piece in range(count))
                stages.update(zip(starts, ramp(before, row, count), strict=True))
            stages[end] = before = row
        most = dict(self.max_repeats)
        return Changes(
            self.batches,
            tuple(stages.items()),
            self.skips,
            tuple(None if place is None else most.get(place) for place in places) if most else (),
        )


def _entries(given: Mapping[Any, object] | None, name: str) -> list[tuple[Any, Any]]:
    if given is None:
        return []
    if not isinstance(given, Mapping):
        raise UsageError.at(f"{name}={given!r:.60} is no mapping", todo=f"pass {name}={{step: ...}}, a dict")
    return list(given.items())


def _step(step: object, name: str) -> int:
    return whole_number(step, f"a step of {name}", most=_MOST)


def _span(given: object, name: str) -> tuple[int, int]:
    """Return the two steps of a range, the second above the first."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise UsageError.at(
            f"{name} has an entry {given!r:.60}", todo=f"pass {name}={{(begin, end): ...}}, steps"
        )
    begin, end = _step(given[0], name), _step(given[1], name)
    if begin >= end:
        raise UsageError.at(f"{name} has an entry from step {begin} to {end}", todo="end after its begin")
    return begin, end


def _checked_weights(entries: list[tuple[Any, Any]]) -> tuple[tuple[int, int, tuple[float, ...]], ...]:
    found = []
    for where, given in entries:
        ramp = isinstance(where, tuple | list)
        begin, end = _span(where, "weights") if ramp else (_step(where, "weights"),) * 2
        found.append((begin, end, _checked_row(begin, given)))
    found.sort(key=lambda entry: entry[:2])
    for (begin, end, _), (later, _, _) in pairwise(found):
        if later < end or later == begin:
            raise UsageError.at(
                f"the weights of steps {begin} and {later} contradict each other",
                todo="let one ramp end before the next entry begins",
            )
    return tuple(found)


def _checked_row(begin: int, given: object) -> tuple[float, ...]:
    """Return the weights of an entry."""
    what = f"the weights of step {begin}"
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise UsageError.at(f"{what} are {given!r:.60}", todo="pass a list: one weight for each source")
    try:
        row = tuple(
            value if type(value) is int else int(value) if isinstance(value, Integral) else float(value)
            for value in given
        )
    except (TypeError, ValueError):
        raise UsageError.at(f"{what} are {given!r:.60}", todo="pass numbers of at least 0") from None
    if (
        not row
        or not 0 <= min(row) <= max(row) < math.inf
        or not math.isfinite(sum(row))
        or bool in map(type, given)
    ):
        raise UsageError.at(f"{what} are {given!r:.60}", todo="pass numbers of at least 0")
    if not any(row):
        raise UsageError.at(f"{what} are all 0", todo="give one source a weight above 0")
    if not all(isinstance(value, int) for value in row) and abs(sum(row) - 1) > _EXACT:
        raise UsageError.at(
            f"{what} sum to {sum(row):g}", todo="make them sum to 1, or pass whole numbers (3 and 1)"
        )
    return row


def _checked_skips(entries: list[tuple[Any, Any]]) -> tuple[tuple[int, int, Skip], ...]:
    found: list[tuple[int, int, Skip]] = []
    for where, how in entries:
        begin, end = _span(where, "skip")
        if how not in get_args(Skip):
            raise UsageError.at(
                f"skip of steps {begin} to {end} is {how!r:.60}", todo='use "drop" or "defer"'
            )
        found.append((begin, end, how))
    found.sort()
    for (begin, end, _), (later, _, _) in pairwise(found):
        if later < end:
            raise UsageError.at(
                f"skip has two entries with step {later}, from {begin} and from {later} on",
                todo="let one end before the next begins",
            )
    return tuple(found)


def _samples(source: int, given: object) -> tuple[str | int, ...]:
    what = f"exclude of source {source}"
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise UsageError.at(
            f"{what} is {given!r:.60}", todo="pass a list of keys, or of numbers in the index"
        )
    return tuple(one if isinstance(one, str) else whole_number(one, f"a sample of {what}") for one in given)
