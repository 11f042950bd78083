"""Errors speak of arguments of functions; a command speaks of its options and of ``ais://``.

An argument is written ``name=`` or ``name=value`` in every message. A way out with one that is no option here is left
out: nobody can type it at a shell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import get_type_hints

from typer.models import OptionInfo

from torchdata_ais.error_text import Remedy, joined, sentence_case
from torchdata_ais.errors import UsageError
from torchdata_ais.urls import parse_url

_URL = re.compile(r"https?://[^\s/'\"]+/v1/objects/[^\s'\"<>]+")
_END = ".,;:)"
_ARGUMENT = re.compile(r"(?<![-\w?&/\"'])[a-z_]{2,}=(?=$|[\s,.;)\"'{\[]|True|False|None|\d)")
_EVERYWHERE = {"cluster": "--endpoint"}
"""Arguments that every command has as an option of another name."""


@cache
def names_of(command: Callable[..., object]) -> Mapping[str, str]:
    """Return the options of a command, by the names that the functions below it have for them.

    Example:
        >>> from torchdata_ais.cli.convert import convert
        >>> names_of(convert)["map"], names_of(convert)["max_pixels"]
        ('--map', '--max-pixels')
    """
    found = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        for info in getattr(hint, "__metadata__", ()):
            if isinstance(info, OptionInfo):
                words = (info.default, *(info.param_decls or ()))
                declared = [word for word in words if isinstance(word, str) and word.startswith("--")]
                option = declared[0] if declared else f"--{name.replace('_', '-')}"
                found[name] = found[option[2:].replace("-", "_")] = option
    return found


def as_typed(text: str, options: Mapping[str, str]) -> str:
    """Return a sentence with arguments that are options named as such, and objects by their short names.

    Example:
        >>> as_typed("regex='x' matches nothing; pass overwrite=True", {"regex": "--regex", "overwrite": "--overwrite"})
        '--regex=x matches nothing; pass --overwrite'
        >>> as_typed("reading http://h:51080/v1/objects/pets/a%20b.tar?provider=aws failed", {})
        'reading s3://pets/a b.tar failed'
    """
    text = _URL.sub(lambda found: _short(found[0]), text)
    for name, option in {**_EVERYWHERE, **options}.items():
        text = re.sub(rf"(?<![-\w]){name}=(['\"])([\w./:;-]+)\1", rf"{option}=\2", text)
        text = re.sub(rf"(?<![-\w]){name}=(True\b|(?![\w'\"\[{{-]))", option, text)
        text = re.sub(rf"(?<![-\w]){name}=", f"{option}=", text)
    return text


def remedy_as_typed(todo: str, options: Mapping[str, str]) -> str:
    """Return what to do, in words of the command line; what cannot be said in them is left out.

    Example:
        >>> remedy_as_typed(Remedy("use on_error='skip'", "name the fields with only="), {"only": "--only"})
        'Name the fields with --only'
        >>> remedy_as_typed("Pass require_end=False", {})
        ''
    """
    ways = (as_typed(way.text, options) for way in Remedy.of(todo).ways if way.commands)
    return sentence_case(joined([way for way in ways if not _ARGUMENT.search(way)]))


def place_as_typed(value: object) -> str:
    """Return a part of an error's place: objects by their short names."""
    return _URL.sub(lambda found: _short(found[0]), str(value))


def _short(url: str) -> str:
    cut = len(url.rstrip(_END))
    try:
        return parse_url(url[:cut]).uri + url[cut:]
    except UsageError:
        return url
