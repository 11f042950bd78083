"""What shows only when shards are compared: fields that differ, sizes that are uneven."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from torchdata_ais.checking.findings import Problem, ShardReport
from torchdata_ais.error_text import Remedy, Sentences, in_commands, in_programs

_NAME_FIELDS = Remedy(
    in_programs("leave it out with decode(only=...) or to_tuple()"),
    in_commands("name what each sample must have, and alternatives, by --require 'jpg;png cls'"),
)
_LEAVE_OUT = Remedy(
    "write it again",
    in_programs("leave such samples out with group_samples(require=...)"),
    in_commands("name alternatives: --require 'jpg;png cls'"),
)
_UNEVEN = 4  # times as many samples in the largest shard as in the median one, or as few in the smallest


def compared(
    shards: Sequence[ShardReport], require: tuple[str, ...]
) -> tuple[list[Problem], tuple[str, ...]]:
    """Return the problems, and the fields that each sample should have.

    Args:
        shards: All of them.
        require: Fields that were required; these were checked sample by sample.
    """
    if require:
        return list(_uneven(shards)), require
    counts: Counter[str] = Counter()
    total = 0
    for shard in shards:
        for fields, (count, _, _) in shard.shapes.items():
            total += count
            counts.update(dict.fromkeys(fields, count))
    common = tuple(field for field, count in counts.items() if 2 * count >= total)
    found = [problem for shard in shards for problem in _lacks(shard, common)]
    rare = {field: count for field, count in counts.items() if field not in common}
    for field, count in sorted(rare.items()):
        what = f"{count} of {total} samples have the field {field!r}"
        text = Sentences(what, _NAME_FIELDS)
        found.append(Problem("RareField", text, "note", field=field))
    return [*found, *_uneven(shards)], common


def lacking(fields: tuple[str, ...] | dict[str, object], required: tuple[str, ...]) -> list[str]:
    """Return the required fields that are not there; alternatives are joined by ``;``."""
    return [names for names in required if not any(name in fields for name in names.split(";"))]


def unmatched(shards: Sequence[ShardReport], only: tuple[str, ...]) -> Iterator[Problem]:
    """Yield an error for each field that was to be decoded and that no sample has: nothing was checked for it."""
    there = sorted({field for shard in shards for shape in shard.shapes for field in shape})
    for field in only:
        if there and field not in there:
            what = f"no sample has the field {field!r}, which only= names"
            text = Sentences(what, f"the fields are {' '.join(there)}")
            yield Problem("NoSuchField", text, "error", field=field)


def _lacks(shard: ShardReport, common: tuple[str, ...]) -> Iterator[Problem]:
    """Yield an error for each common field that some samples of a shard lack."""
    for field in common:
        without = [met for fields, met in shard.shapes.items() if field not in fields]
        if without:
            count = sum(met[0] for met in without)
            _, key, offset = min(without, key=lambda met: met[2])
            what = (
                f"{count} of {shard.samples} samples have no field {field!r}, which most others have; this is the"
                " first"
            )
            text = Sentences(what, _LEAVE_OUT)
            yield Problem("FieldsDiffer", text, "error", shard.url, key=key, field=field, offset=offset)


def _uneven(shards: Sequence[ShardReport]) -> Iterator[Problem]:
    """Yield a note if some shards hold several times what others do."""
    sizes = sorted((shard.samples, shard.url) for shard in shards if shard.whole)
    if len(sizes) < 2:
        return
    median = sizes[len(sizes) // 2][0]
    # The last shard of a series is short as a rule: the smallest of all is no surprise.
    if sizes[-1][0] > _UNEVEN * median or (len(sizes) > 2 and sizes[1][0] * _UNEVEN < median):
        text = (
            f"shards hold {sizes[0][0]} ({sizes[0][1]}) to {sizes[-1][0]} samples ({sizes[-1][1]}), {median} in the"
            " middle: workers end at different times. --fix or torchdata-ais convert makes them even"
        )
        yield Problem("UnevenShards", text, "note")
