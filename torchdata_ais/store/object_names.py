"""Which names objects can have: one rule for what is listed and for what is stored."""

from __future__ import annotations

import re

from torchdata_ais.errors import UsageError
from torchdata_ais.urls import Location

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NOT_UTF8 = re.compile(r"[\ud800-\udfff]")  # how Python reads such bytes in the name of a file
_LONGEST = 4096


def name_fault(name: str) -> str:
    r"""Return why no object can have this name, or "".

    Example:
        >>> name_fault("a/b.tar"), name_fault("a\tb"), name_fault("a/../b")
        ('', 'it has a control character', 'in a URL that is the name of another object')
    """
    if _CONTROL.search(name):
        return "it has a control character"
    if _NOT_UTF8.search(name):
        return "it is not UTF-8"
    if len(name) > _LONGEST:
        return f"it has more than {_LONGEST} characters"
    if not {".", ".."}.isdisjoint(name.split("/")):
        return "in a URL that is the name of another object"
    return ""


def check_name(place: Location, todo: str = "choose another name") -> None:
    """Raise `UsageError` if nothing can be stored under this name: it could be neither listed nor fetched again."""
    if place.kind == "object" and (why := name_fault(place.name)):
        raise UsageError.at(f"no object can be called {place.name!r}: {why}", todo=todo, url=place.uri)
