"""Patterns of shards to write, such as ``out/train-%06d.tar``: what they may be, and which names they give."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from torchdata_ais.errors import UsageError
from torchdata_ais.store import StoreOptions, list_objects
from torchdata_ais.store.naming import naming
from torchdata_ais.urls import parse_url, redact

NUMBER = re.compile(r"%[-+ 0]*\d*[di]")
"""The place of the number."""


def check_pattern(pattern: str) -> None:
    """Raise `UsageError` if `pattern` names no series of shards."""
    if not NUMBER.search(pattern) or parse_url(pattern).kind not in ("file", "object"):
        raise UsageError.at(
            f"the target {redact(pattern)!r} is no pattern of shards",
            todo="write out/train-%06d.tar or ais://bucket/train-%06d.tar",
        )


def shards_there(pattern: str, store: Callable[[], StoreOptions]) -> list[tuple[int, str]]:
    """Return the numbers and names of the shards of this pattern that are there; none if only folders have numbers."""
    place = parse_url(pattern)
    if place.kind == "file":
        folder = Path(place.name).parent
        if NUMBER.search(str(folder)):
            return []
        with naming(str(folder)):
            names = [path.name for path in folder.iterdir()]
        wanted = numbered(Path(place.name).name)
    elif is_web(pattern):
        return []
    else:
        wanted = numbered(place.name)
        head = pattern[: NUMBER.search(pattern).start()]  # type: ignore[union-attr]  # searched by check_pattern
        names = [parse_url(url).name for url in list_objects(head, options=store(), allow_empty=True)]
    matches = ((name, wanted.fullmatch(name)) for name in names)
    return [(int(found[1]), name) for name, found in matches if found]


def numbered(pattern: str) -> re.Pattern[str]:
    """Return what finds the number in a name of the pattern."""
    return re.compile(r"(\d+)".join(re.escape(part) for part in NUMBER.split(pattern.replace("%%", "%"))))


def gives(pattern: str, name: str, first: int) -> bool:
    """Return whether a number from `first` on makes `name` of the pattern."""
    found = numbered(pattern).fullmatch(name)
    return found is not None and int(found[1]) >= first and pattern % int(found[1]) == name


def is_web(pattern: str) -> bool:
    """Return whether ``%`` in the pattern may be a part of an encoded character, not of the number."""
    return pattern.lower().startswith(("http://", "https://"))
