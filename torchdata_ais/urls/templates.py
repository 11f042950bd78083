"""Brace templates: many names in one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from braceexpand import UnbalancedBracesError, braceexpand  # type: ignore[attr-defined]

from torchdata_ais.errors import UsageError

_NUMBERS = re.compile(r"\d+")
_SLIP = re.compile(r"\{\s*\d+(?:\s*(?:\.|\.{3,}|\u2026|-|:|,\s*\.+\s*,|to)\s*|\s+\.\.\s*|\.\.\s+)\d+\s*\}")
"""A range of numbers as it is written elsewhere: ``{0...9}``, ``{0-9}``, ``{0:9}``, ``{0,...,9}``, ``{0 .. 9}``."""


def expand_template(template: str) -> Iterator[str]:
    """Yield the names of a brace template, in the order of a shell.

    Args:
        template: ``train-{000000..000146}.tar``, ``{a,b}-{0..3}.tar``; a text without braces yields itself.

    Raises:
        UsageError: The braces do not match, or enclose numbers and yet no range.

    Example:
        >>> list(expand_template("s-{008..010}.tar"))
        ['s-008.tar', 's-009.tar', 's-010.tar']
    """
    if not isinstance(template, str):
        raise UsageError.at(f"{template!r:.40} is no template", todo='pass text such as "s-{000..099}.tar"')
    slip = _SLIP.search(template)
    if slip:
        begin, end = _NUMBERS.findall(slip[0])
        raise UsageError.at(
            f"{slip[0]} in the template {template!r} is no range",
            todo=f"write {{{begin}..{end}}}, with two dots, and no other sign or blank",
        )
    try:
        yield from braceexpand(template, escape=False)
        return
    except UnbalancedBracesError:
        pass  # its own text says no more than the template, with all that stands in it
    raise UsageError.at(
        f"the braces of the template {template!r} do not match", todo="write name-{000..099}.tar"
    )
