"""Name templates of AIStore: ``s-{000..999..2}.tar``, several ranges, and plain prefixes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from .problem import ReplyError, not_implemented

_RANGE = re.compile(r"\{([^{}]*)\}")
_NUMBERS = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})(?:\.\.([0-9]{1,18}))?")
MAX_NAMES = 10_000_000  # as AIStore
MAX_RANGES = 16


def is_range(template: str) -> bool:
    """Whether the template is a range; one without braces is a prefix."""
    if "{" in template and "}" in template:
        return True
    if "@" in template or "%" in template:
        raise not_implemented(f"template {template!r:.200} (only ranges in braces)")
    return False


_FORMAT = re.compile(r"([^%]*)%(?:0([0-9]{1,3}))?d([^%]*)")


def endless(template: str) -> Iterator[str]:
    """Yield the names of a range template, or without end those of ``shard-%06d``: for names to be given."""
    match = _FORMAT.fullmatch(template)
    if match is None:
        if not is_range(template):
            raise ReplyError(400, f'prefix-only template not supported (prefix: "{template:.200}")')
        yield from expand(template)
        return
    head, width, tail = match.groups()
    for number in itertools.count():
        yield f"{head}{number:0{int(width or 1)}d}{tail}"


def expand(template: str) -> Iterator[str]:
    """Return the names of a range template in their order, one by one: there may be millions."""
    texts, ranges = [], []
    total = 1
    for index, piece in enumerate(_RANGE.split(template)):
        if index % 2 == 0:
            texts.append(piece)
            continue
        ranges.append(_numbers(piece, template))
        total *= len(ranges[-1][0])
        if total > MAX_NAMES:
            raise ReplyError(400, f"parsed-template: too many values (more than {MAX_NAMES} max)")
    if len(ranges) > MAX_RANGES:
        raise _invalid(template, f"more than {MAX_RANGES} ranges")
    return _names(texts, ranges)


def _names(texts: list[str], ranges: list[tuple[range, int]]) -> Iterator[str]:
    if not ranges:
        yield texts[0]
        return
    numbers, width = ranges[0]
    for number in numbers:
        begin = f"{texts[0]}{number:0{width}d}"
        for rest in _names(texts[1:], ranges[1:]):
            yield begin + rest


def _numbers(text: str, template: str) -> tuple[range, int]:
    match = _NUMBERS.fullmatch(text)
    if match is None:
        raise _invalid(template, "expecting e.g. 'prefix-{0001..0010..1}-suffix'")
    first, last, step = match.groups()
    if int(first) > int(last):
        raise _invalid(template, "'start' cannot be greater than 'end'")
    if step is not None and not int(step):
        raise _invalid(template, "'step' is non-positive")
    return range(int(first), int(last) + 1, int(step or 1)), min(len(first), len(last))


def _invalid(template: str, why: str) -> ReplyError:
    return ReplyError(400, f"invalid 'bash' template \"{template:.200}\" ({why})")
