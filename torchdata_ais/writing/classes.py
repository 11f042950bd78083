"""Names of the classes of written shards."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from torchdata_ais._util.files import naming, whole_file
from torchdata_ais.errors import TransportError, UsageError
from torchdata_ais.errors.text import Remedy
from torchdata_ais.index.classes import classes_place, read_classes
from torchdata_ais.store import StoreOptions, put_object
from torchdata_ais.urls import parse_url, redact
from torchdata_ais.urls.parsing import CLASSES_FILE

_APART = "write to a folder or prefix of its own"
_TODO = Remedy(_APART, "pass overwrite=True")


def names_for_people(shards: str | os.PathLike[str], options: Callable[[], StoreOptions]) -> list[str]:
    """Return the class names stored with shards, or none on an error."""
    try:
        return read_classes(shards, options) or []
    except (UsageError, TransportError):
        return []


def agreed_classes(
    pattern: str,
    classes: Sequence[str],
    options: Callable[[], StoreOptions],
    *,
    overwrite: bool,
    todo: str = _TODO,
) -> list[str]:
    """Return the classes to number by: stored ones, if they contain these.

    So a validation set that lacks some classes has the numbers of the training set next to it.
    """
    there = None if overwrite else read_classes(pattern, options)
    if there is None:
        return list(classes)
    more = [name for name in classes if name not in there]
    if more:
        raise UsageError.at(
            f"{CLASSES_FILE} beside the shards does not have {', '.join(map(repr, more[:3]))}"
            f"{' and others' if len(more) > 3 else ''}: their numbers would be those of other classes",
            todo=todo,
            url=redact(classes_place(pattern) or pattern),
        )
    return there


def carried_classes(shards: Sequence[str], pattern: str, options: Callable[[], StoreOptions]) -> list[str]:
    """Return the class names of shards that are copied to new ones, if any."""
    own = read_classes(shards[0], options) if shards else None
    if own and agreed_classes(pattern, own, options, overwrite=False, todo=_APART) != own:
        raise other_numbers(_APART)
    return own or []


def other_numbers(todo: str = _TODO) -> UsageError:
    """Return the error for numbers that mean other classes than stored ones."""
    return UsageError.at(
        "the classes beside the shards have other numbers than those of the source", todo=todo
    )


def write_classes(pattern: str, classes: Sequence[str], options: Callable[[], StoreOptions]) -> str | None:
    """Store the names with the shards, also concurrently; return the path."""
    place = classes_place(pattern)
    if place is None:
        return None
    content = json.dumps(list(classes), indent=1).encode()
    if parse_url(place).kind == "object":
        put_object(place, content, options())
        return place
    path = Path(parse_url(place).name)
    with naming(str(path)), whole_file(path) as file:
        file.write(content)
    return place
