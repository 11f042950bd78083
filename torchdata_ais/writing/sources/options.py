"""`SourceOptions`: what a conversion reads, which part of it, and in which order."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from torchdata_ais.arguments import checked_options
from torchdata_ais.codecs.fields import FIELD_KINDS
from torchdata_ais.error_text import Remedy
from torchdata_ais.errors import UsageError
from torchdata_ais.writing.sources.column_names import by_columns

Kind = Literal["auto", "images", "audio", "table", "shards"]
_NAMES = {2: ("train", "val"), 3: ("train", "val", "test")}
_FRACTION = re.compile(r"(?:(?P<name>[\w.-]+)=)?(?P<part>\d*\.?\d+)")


class SourceNames(TypedDict, total=False):
    """The single names of `SourceOptions`."""

    kind: Kind
    columns: Mapping[str, str] | None
    root: str | os.PathLike[str] | None
    shuffle: bool
    image_field: str | None
    part: str | None
    split: str | None
    allow_outside: bool


@checked_options
@dataclass(frozen=True)
class SourceOptions:
    """What `torchdata_ais.writing.convert` reads, which part of it, and in which order.

    Attributes:
        kind: ``"images"``, ``"audio"`` (folders of either), ``"table"`` or ``"shards"``; ``"auto"`` goes by the names.
        columns: What to call the columns of a table: ``{"image_path": "jpg"}``.
        root: What the paths in a table are relative to; default its folder.
        shuffle: Put files or rows into a random order first, so that each shard holds some of every class.
        image_field: The field of all pictures, whatever their files end in; ``"ending"`` keeps each one's own. Default:
            their ending if all have one, else ``jpg`` (decoders look at the bytes).
        part: ``"3/16"``: the third of sixteen parts, for as many processes anywhere. Together they are the whole, each
            item once; part 3 writes the shards number 2, 18, 34, ...
        split: ``"0.9/0.1"``: two series, for whose names the pattern has a place: ``{split}`` becomes ``train`` and
            ``val`` (with three ``test``, too). ``"fit=0.8/held=0.2"`` says other names. Drawn by the seed.

        allow_outside: Follow links that lead out of the folder, and cells of a table that name URLs or files outside
            of `root`. By default these are left out, counted and named: their author would choose which files of this
            machine are published.

    Raises:
        UsageError: A value that cannot work.

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
        if self.columns is not None and not isinstance(self.columns, Mapping):
            raise UsageError.at(
                f"columns={self.columns!r} says no names", todo='pass columns={"image_path": "jpg"}'
            )
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
        if kind := next((kind for kind, names in FIELD_KINDS.items() if ending in names), ""):
            raise UsageError.at(
                f"image_field={self.image_field!r} would be read as {kind}, and stand in the way of that field",
                todo='use one such as "jpg" or "photo.jpg"',
            )
        _ = self.part_of, self.splits

    @property
    def part_of(self) -> tuple[int, int]:
        """Which part of how many, counted from one."""
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
        """The part of the whole that each series has: from, to; empty without `split`."""
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
    """Return which of `total` items to take, in their order: shuffled, of one split, of one part.

    Args:
        total: How many there are.
        options: See `SourceOptions`.
        seed: For the two draws, which do not depend on each other.
        between: Which split, as fractions of the whole.

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
