"""Errors speak of arguments of functions; a command speaks of its options and of ``ais://``.

A remedy, or a part of one, that remains Python is left out: nobody can type it at a shell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import get_type_hints

from typer.models import OptionInfo

from torchdata_ais.error_text import sentence_case
from torchdata_ais.errors import UsageError
from torchdata_ais.urls import parse_url

# Where more than the name of an argument differs.
_PHRASES = [
    (r", or (in a program )?pass cluster=StoreOptions\(endpoint, token\)", ""),
    (r", cluster= or --endpoint", " or --endpoint"),
    (r"\bcluster= or --endpoint", "--endpoint"),
    (r"\bcluster=", "--endpoint"),
    (
        r"leave it out with decode\(only=\.\.\.\) or to_tuple\(\)",
        "name what each sample must have, and alternatives, by --require 'jpg;png cls'",
    ),
    (
        r"or leave such samples out with group_samples\(require=\.\.\.\)",
        "or name alternatives: --require 'jpg;png cls'",
    ),
    (r"--no-decode, decode=False", "--no-decode"),
    (r"allow it with none_is_error=False", ""),
    (
        r"keep names that are not tar archives out of the listing with regex=",
        "name the shards alone, such as ais://bucket/train-",
    ),
    (
        r"shuffle on the cluster with dSort, or while reading with \.shuffled\(\)",
        "shuffle shards with torchdata-ais dsort",
    ),
    (r"leave out compress= and opener=", "leave out --compress"),
    (r"\bindex= needs", "--index needs"),
    (r"\bcolumns= and root= are", "--column and --root are"),
    (r"name the field with columns=\{(['\"])([^'\"]+)\1: (['\"])([^'\"]+)\3\}", r"pass --column \2=\4"),
    (r"\bcolumns=", "--column "),
    (r"list it first \(\.list_ais\(\), or: (.*)\)", r"list it first: \1"),
    (r"\boutput_shard_size=", "--size="),
    (r"\bmethod=(['\"])(\w+)\1", r"--method=\2"),
    (r"\breplace_other=True", "--replace"),
    (r"\bca_cert= \((\w+)\)", r"\1"),
]
_URL = re.compile(r"https?://[^\s/'\"]+/v1/objects/[^\s'\"<>]+")
_END = re.compile(r"[.,;:)]*$")
_PYTHON = re.compile(
    r"(?<![-\w?&/])[a-z_]{2,}=(?=$|[\s,.;)\"'{\[]|True|False|None|\d)"  # an argument
    r"|\.?\b[A-Za-z_]\w*\([^()]*\)"  # a call
)
_CLAUSES = re.compile(r"(, or |; )")


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
    for pattern, words in _PHRASES:
        text = re.sub(pattern, words, text, flags=re.IGNORECASE)
    for name, option in options.items():
        text = re.sub(rf"(?<![-\w]){name}=(['\"])([\w./:;-]+)\1", rf"{option}=\2", text)
        text = re.sub(rf"(?<![-\w]){name}=(True\b|(?![\w'\"\[{{-]))", option, text)
        text = re.sub(rf"(?<![-\w]){name}=", f"{option}=", text)
    return text


def remedy_as_typed(text: str, options: Mapping[str, str]) -> str:
    """Return what to do, in words of the command line; what cannot be said in them is left out.

    Example:
        >>> remedy_as_typed("Use on_error='skip', or name the fields with only=", {"only": "--only"})
        'Name the fields with --only'
        >>> remedy_as_typed("Pass require_end=False", {})
        ''
    """
    first, *rest = _CLAUSES.split(as_typed(text, options))
    clauses = [("", first), *zip(rest[::2], rest[1::2], strict=True)]
    kept = [(before, clause) for before, clause in clauses if not _PYTHON.search(clause)]
    joined = "".join(before * (number > 0) + clause for number, (before, clause) in enumerate(kept))
    return sentence_case(joined.removeprefix("or "))


def sentences_as_typed(text: str, options: Mapping[str, str]) -> str:
    """Return a text of what happened and, after the first full stop, what to do.

    Example:
        >>> sentences_as_typed("the member has no end. Pass require_end=False", {})
        'the member has no end'
    """
    what, _, todo = text.partition(". ")
    parts = [as_typed(what, options), remedy_as_typed(todo, options)]
    return ". ".join(filter(None, parts))


def place_as_typed(value: object) -> str:
    """Return a part of an error's place: objects by their short names."""
    return _URL.sub(lambda found: _short(found[0]), str(value))


def _short(url: str) -> str:
    end = _END.search(url)
    cut = end.start() if end else len(url)
    try:
        return parse_url(url[:cut]).uri + url[cut:]
    except UsageError:
        return url
