"""Interface and options of sources."""

from __future__ import annotations

import copy
import os
import random
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from torchdata_ais._util.arguments import checked_options
from torchdata_ais.codecs.handlers import FIELD_KINDS, MEDIA_KINDS
from torchdata_ais.errors import UsageError
from torchdata_ais.errors.text import Remedy, Way, in_commands, in_programs
from torchdata_ais.samples import Fields
from torchdata_ais.writing.classes import other_numbers

_K = TypeVar("_K", bound=Hashable)


class Tally(dict[_K, tuple[int, str]]):
    """Counts of items by kind, with the name of the first of each.

    Example:
        >>> tally = Tally()
        >>> tally.add("hidden by its name", ".git"), tally.add("hidden by its name", ".cache"), tally
        (1, 2, {'hidden by its name': (2, '.git')})
    """

    def add(self, kind: _K, what: str, more: int = 1) -> int:
        """Count one or more, and return how many there are of their kind."""
        count, first = self.get(kind, (0, ""))
        self[kind] = count + more, first or what
        return count + more

    def __add__(self, later: Tally[_K]) -> Tally[_K]:
        total = Tally(self)
        for kind, (more, what) in later.items():
            total.add(kind, what, more)
        return total


class LeftOut(NamedTuple):
    """Items that a conversion left out for one reason.

    Attributes:
        reason: Why, in a few words.
        number: How many.
        first: The first of them: a path, a row, or the text of an error.

    Example:
        >>> LeftOut("no picture by its name", 3, "notes.txt").number
        3
    """

    reason: str
    number: int
    first: str


def left_out(tally: Tally[str]) -> list[LeftOut]:
    """Return the counts by reason, in the order of the first of each."""
    return [LeftOut(reason, count, first) for reason, (count, first) in tally.items()]


class Source(ABC):
    """Items in a fixed order.

    Attributes:
        unit: The unit of progress.
        total: How many of them.
        digest: Changes when the source does: a resumed conversion must meet the same.
        notes: Its values for the manifest.
        left_out: Contents that are not items.
        load: Turns an item into a sample; a picklable function, for other processes to call.
        by_class: Whether the items come class after class.
    """

    def __init__(self, unit: str, total: int, digest: str, load: Callable[[Any], Fields]) -> None:
        self.unit, self.total, self.digest, self.load = unit, total, digest, load
        self.notes: dict[str, Any] = {}
        self.left_out: list[LeftOut] = []
        self.by_class = False

    @abstractmethod
    def items(self, cursor: object = None) -> Iterator[tuple[Any, Any]]:
        """Yield ``(cursor, item)``; a cursor is the JSON position after its item."""

    @abstractmethod
    def done(self, cursor: object) -> int:
        """Return how many units are over at a cursor."""

    @abstractmethod
    def chosen(self, positions: Callable[[int], Sequence[int]]) -> Source:
        """Return a source of some items: of so many, `positions` returns which."""

    def number_by(self, classes: Sequence[str]) -> None:
        """Make `load` number the classes as in `classes`, or raise if it cannot."""
        numbered = getattr(self.load, "numbered", None)
        if numbered is None:
            raise other_numbers()
        self.load = numbered(classes)

    def check_files(self) -> None:  # noqa: B027 - most have looked at theirs
        """Raise if a file that an item names is not there."""


class ListSource(Source):
    """Items that are few enough to be listed; the cursor is a position."""

    def __init__(self, unit: str, items: Sequence[Any], digest: str, load: Callable[[Any], Fields]) -> None:
        super().__init__(unit, len(items), digest, load)
        self._items = items
        self._positions: Sequence[int] = range(len(items))

    def items(self, cursor: Any = None) -> Iterator[tuple[Any, Any]]:
        """Yield ``(position after it, item)``."""
        begin = cursor or 0
        yield from enumerate(self._take(self._positions[begin:]), begin + 1)

    def _take(self, positions: Sequence[int]) -> Iterator[object]:
        return (self._items[position] for position in positions)

    def done(self, cursor: Any) -> int:
        """Return the position."""
        return int(cursor or 0)

    def chosen(self, positions: Callable[[int], Sequence[int]]) -> ListSource:
        """Return some of the items."""
        found = copy.copy(self)
        found._positions = positions(len(self._items))
        found.total = len(found._positions)
        return found


def by_columns(text: str, columns: Mapping[str, str]) -> tuple[Way, Way]:
    """Return a remedy by ``columns=``, in place of ``{}``, in both interfaces.

    Example:
        >>> [way.text for way in by_columns("name it with {}", {"my file": "jpg"})]
        ['name it with columns={"my file": "jpg"}', "name it with --column 'my file=jpg'"]
    """
    pairs = ", ".join(f'"{name}": "{field}"' for name, field in columns.items())
    options = " ".join(f"--column {shlex.quote(f'{name}={field}')}" for name, field in columns.items())
    return in_programs(text.format(f"columns={{{pairs}}}")), in_commands(text.format(options))


Kind = Literal["auto", "images", "audio", "table", "shards"]
_NAMES = {2: ("train", "val"), 3: ("train", "val", "test")}
_FRACTION = re.compile(r"(?:(?P<name>[\w.-]+)=)?(?P<part>\d*\.?\d+)")


@checked_options
@dataclass(frozen=True)
class SourceOptions:
    """Source options of `convert`, which describes those left out here.

    Attributes:
        shuffle: Put files or rows into a random order first, so that each shard holds some of every class.
        image_field: The field of all pictures, with any ending; ``"ending"`` keeps each one's own. Default: their
            ending if all have one, else ``jpg`` (decoders look at the bytes).
        part: ``"3/16"``: the third of sixteen parts, for as many processes anywhere. Together they are the whole, each
            item once; part 3 writes the shards number 2, 18, 34, ...
        split: ``"0.9/0.1"``: two series, for whose names the pattern has a place: ``{split}`` becomes ``train`` and
            ``val`` (with three ``test``, too). ``"fit=0.8/held=0.2"`` gives other names. Drawn by the seed.
        allow_outside: Follow links that lead out of the folder, and cells of a table that name URLs or files outside
            of `root`. By default these are left out, counted and named: their author would choose which files of this
            machine are published.

    Example:
        >>> options = SourceOptions("table", columns={"image_path": "jpg"}, part="3/16", split="0.9/0.1")
        >>> options.part_of, options.splits
        ((3, 16), {'train': (0.0, 0.9), 'val': (0.9, 1.0)})
    """

    kind: Kind = "auto"
    columns: Mapping[str, str] | None = None
    root: str | os.PathLike[str] | None = None
    shuffle: bool = False
    image_field: str | None = None
    part: str | None = None
    split: str | None = None
    allow_outside: bool = False

    def __post_init__(self) -> None:
        for column, field in (self.columns or {}).items():
            if str(field).startswith("."):
                raise UsageError.at(
                    f"the field {field!r} begins with a dot",
                    todo=Remedy(*by_columns("leave it out: {}", {column: str(field).lstrip(".")})),
                )
        if self.image_field is not None and not re.fullmatch(r"\w[\w.-]*", str(self.image_field)):
            raise UsageError.at(
                f"image_field={self.image_field!r} is no name of a field", todo='use one such as "jpg"'
            )
        ending = str(self.image_field or "").rpartition(".")[2].lower()
        kind = next((kind for kind, names in FIELD_KINDS.items() if ending in names), "")
        if kind and kind not in MEDIA_KINDS:
            raise UsageError.at(
                f"image_field={self.image_field!r} would be read as {kind}, and stand in the way of that field",
                todo='use one such as "jpg" or "photo.jpg"',
            )
        _ = self.part_of, self.splits

    @property
    def part_of(self) -> tuple[int, int]:
        """The number of the part and of all parts, counted from one."""
        if self.part is None:
            return 1, 1
        found = re.fullmatch(r"(\d+)/(\d+)", str(self.part))
        number, count = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= number <= count:
            raise UsageError.at(
                f"part={self.part!r} is no part", todo='write "3/16": the parts of 16 are 1/16 to 16/16'
            )
        return number, count

    @property
    def splits(self) -> dict[str, tuple[float, float]]:
        """The range of the whole that each series has; empty without `split`."""
        if self.split is None:
            return {}
        texts = str(self.split).split("/")
        found = [_FRACTION.fullmatch(text.strip()) for text in texts]
        parts = [float(one["part"]) for one in found if one]
        if len(parts) != len(texts) or len(parts) < 2 or min(parts) <= 0 or abs(sum(parts) - 1) > 1e-6:
            raise UsageError.at(
                f"split={self.split!r} does not cut the whole",
                todo='write fractions that make 1: "0.9/0.1", "0.8/0.1/0.1" or "fit=0.7/held=0.3"',
            )
        named = [one["name"] for one in found if one and one["name"]]
        names = named if len(named) == len(parts) else list(_NAMES.get(len(parts), ()))
        if (named and len(named) != len(parts)) or len(set(names)) != len(parts):
            raise UsageError.at(
                f"split={self.split!r} does not name each of its {len(parts)} series",
                todo='write "fit=0.7/held=0.3"',
            )
        ends = [round(sum(parts[: index + 1]), 9) for index in range(len(parts))]
        return dict(zip(names, zip([0.0, *ends], ends, strict=False), strict=True))


def positions_of(
    total: int, options: SourceOptions, seed: int, between: tuple[float, float]
) -> Sequence[int]:
    """Return which of `total` items to take: shuffled, of a split, of a part.

    The split is `between` two fractions of the whole. The two draws do not depend on each other.

    Example:
        >>> [list(positions_of(7, SourceOptions(part=f"{part}/3"), 0, (0, 1))) for part in (1, 2, 3)]
        [[0, 1], [2, 3], [4, 5, 6]]
        >>> parts = [positions_of(10, SourceOptions(split="0.8/0.2"), 0, cut) for cut in ((0, 0.8), (0.8, 1))]
        >>> [len(part) for part in parts], sorted([*parts[0], *parts[1]]) == list(range(10))
        ([8, 2], True)
    """
    order: Sequence[int] = range(total)
    if options.shuffle:
        order = list(order)
        random.Random(f"{seed}/shuffle").shuffle(order)
    if between != (0, 1):
        drawn = list(range(total))
        random.Random(f"{seed}/split").shuffle(drawn)
        inside = set(drawn[round(total * between[0]) : round(total * between[1])])
        order = [position for position in order if position in inside]
    number, count = options.part_of
    return order[len(order) * (number - 1) // count : len(order) * number // count]
