"""Name templates of AIStore: ``s-{000..999..2}.tar``, several ranges, and plain prefixes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from .problem import ReplyError, not_implemented

__all__ = ["endless", "expand", "is_range"]

_RANGE = re.compile(r"\{([^{}]*)\}")
_NUMBERS = re.compile(r"(\d+)\.\.(\d+)(?:\.\.(\d+))?")
MAX_NAMES = 10_000_000


def is_range(template: str) -> bool:
    """Whether the template is a range; one without braces is a prefix."""
    if "{" in template and "}" in template:
        return True
    if "@" in template or "%" in template:
        raise not_implemented(f"template {template!r} (only ranges in braces)")
    return False


_FORMAT = re.compile(r"([^%]*)%(?:0(\d+))?d([^%]*)")


def endless(template: str) -> Iterator[str]:
    """Yield the names of a range template, or without end those of ``shard-%06d``: for names to be given."""
    match = _FORMAT.fullmatch(template)
    if match is None:
        if not is_range(template):
            raise ReplyError(400, f'prefix-only template not supported (prefix: "{template}")')
        yield from expand(template)
        return
    head, width, tail = match.groups()
    for number in itertools.count():
        yield f"{head}{number:0{int(width or 1)}d}{tail}"


def expand(template: str) -> Iterator[str]:
    """Yield the names of a range template in their order."""
    pieces = _RANGE.split(template)
    choices: list[list[str]] = []
    total = 1
    for index, piece in enumerate(pieces):
        choices.append([piece] if index % 2 == 0 else _numbers(piece, template))
        total *= len(choices[-1])
    if total > MAX_NAMES:
        raise ReplyError(400, f"parsed-template: too many values (more than {MAX_NAMES} max)")
    for parts in itertools.product(*choices):
        yield "".join(parts)


def _numbers(text: str, template: str) -> list[str]:
    match = _NUMBERS.fullmatch(text)
    if match is None:
        raise ReplyError(
            400, f"invalid 'bash' template \"{template}\" (expecting e.g. 'prefix-{{0001..0010..1}}-suffix')"
        )
    first, last, step = match.groups()
    if int(first) > int(last):
        raise ReplyError(400, f"invalid 'bash' template \"{template}\": 'start' cannot be greater than 'end'")
    if step is not None and not int(step):
        raise ReplyError(400, f"invalid 'bash' template \"{template}\": 'step' is non-positive")
    width = min(len(first), len(last))
    return [str(number).zfill(width) for number in range(int(first), int(last) + 1, int(step or 1))]
