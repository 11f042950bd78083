"""Names of the classes, stored with the shards as list ``classes.json``.

A name's position in the list is the number of the class. A file with an object names several fields: each has its list.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torchdata_ais.errors import NotFoundError, TransportError, UsageError
from torchdata_ais.index.location import fixed_beginning
from torchdata_ais.store import StoreOptions, open_blocks
from torchdata_ais.store.transport.options import ONE_TRY
from torchdata_ais.urls import parse_url, redact
from torchdata_ais.urls.parsing import CLASSES_FILE

ClassNames = Mapping[str, tuple[str, ...]]
"""Names of the classes by field; their positions are the labels."""

_log = logging.getLogger("torchdata_ais")
_FIELD = "cls"


def classes_place(shards: str | os.PathLike[str]) -> str | None:
    """Return the path of the class names for a source of shards, or None.

    Example:
        >>> classes_place("ais://pets/v1/train-%06d.tar"), classes_place("out/train-{000..009}.tar")
        ('ais://pets/v1/classes.json', 'out/classes.json')
    """
    text = os.fspath(shards)
    place = parse_url(text)
    if place.kind == "object":
        folder = _folder_of(place.name)
        named = replace(place, name=f"{folder}{CLASSES_FILE}", params={})
        return named.url() if place.endpoint else named.uri
    if place.kind != "file":
        return None
    folder = place.name if Path(place.name).is_dir() else _folder_of(place.name)
    return str(Path(folder, CLASSES_FILE))


def _folder_of(name: str) -> str:
    folder, slash, _ = fixed_beginning(name.partition("%")[0]).rpartition("/")
    return folder + slash


def read_classes(shards: str | os.PathLike[str], options: Callable[[], StoreOptions]) -> list[str] | None:
    """Return the class names of ``cls`` stored with shards; None without any."""
    found = read_class_names(shards, options)
    return list(found[_FIELD]) if _FIELD in found else None


def read_class_names(shards: str | os.PathLike[str], options: Callable[[], StoreOptions]) -> ClassNames:
    """Return the class names stored with shards, by field.

    `options` is called for objects only.

    Raises:
        UsageError: The file has no list of names.
    """
    place = classes_place(shards)
    if place is None:
        return {}
    try:
        is_remote = parse_url(place).kind == "object"
        with open_blocks(place, options() if is_remote else StoreOptions()) as blocks:
            text = b"".join(blocks)
    except NotFoundError:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    by_field = {_FIELD: found} if isinstance(found, list) else found
    if not isinstance(by_field, dict) or not all(map(_are_names, by_field.values())):
        raise UsageError.at(
            f"{CLASSES_FILE} is no list of names",
            todo='it looks like ["cat", "dog"], or {"cls": ["cat", "dog"]}: mend or remove it',
            url=redact(place),
        )
    return {field: tuple(names) for field, names in by_field.items()}


def _are_names(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(name, str) for name in found)


def class_names_of(shards: Iterable[str], options: StoreOptions) -> ClassNames:
    """Return the class names stored next to shards; none if out of reach.

    Raises:
        UsageError: The shards are in folders with other names.
    """
    found: list[tuple[str, ClassNames]] = []
    for place in dict.fromkeys(filter(None, map(classes_place, shards))):
        where = parse_url(place)
        if where.kind == "object" and not (where.endpoint or options.endpoint):
            continue
        try:
            found.append((redact(place), read_class_names(place, lambda: replace(options, retry=ONE_TRY))))
        except TransportError as error:
            _log.warning("the names of the classes are not known: %s", error.what)
    return agreed_names(found)


def agreed_names(found: Sequence[tuple[str, ClassNames]]) -> ClassNames:
    """Return the class names that several data sets, by place, have in common.

    Lists may end early. Those without names are not compared.

    Raises:
        UsageError: One name has two labels, or one label two names.

    Example:
        >>> agreed_names([("a", {"cls": ("cat",)}), ("b", {"cls": ("cat", "dog")}), ("c", {})])
        {'cls': ('cat', 'dog')}
    """
    agreed: dict[str, tuple[str, ...]] = {}
    places: dict[str, str] = {}
    for place, by_field in found:
        for field, names in by_field.items():
            before = agreed.get(field, ())
            if any(one != other for one, other in zip(before, names, strict=False)):
                raise UsageError.at(
                    f"the labels of {field!r} mean other classes in {place} ({_shown(names)}) than in "
                    f"{places[field]} ({_shown(before)})",
                    todo="convert one of them again, with the classes.json of the other beside the new shards",
                    field=field,
                )
            if len(names) > len(before):
                agreed[field], places[field] = names, place
    return agreed


Labels = Mapping[str, Mapping[bytes, bytes]]
"""New labels by field and old label, as they are stored."""


def union_of(several: Sequence[ClassNames]) -> ClassNames:
    """Return the names of several data sets together, the first one's first.

    Example:
        >>> union_of([{"cls": ("cat", "dog")}, {"cls": ("owl", "cat")}])
        {'cls': ('cat', 'dog', 'owl')}
    """
    found: dict[str, tuple[str, ...]] = {}
    for names in several:
        for field, own in names.items():
            found[field] = tuple(dict.fromkeys((*found.get(field, ()), *own)))
    return found


def new_labels(names: ClassNames, union: ClassNames) -> Labels:
    """Return the labels in `union` of the labels of a data set.

    Example:
        >>> new_labels({"cls": ("owl", "cat")}, {"cls": ("cat", "dog", "owl")})
        {'cls': {b'0': b'2', b'1': b'0'}}
    """
    return {
        field: {b"%d" % old: b"%d" % union[field].index(name) for old, name in enumerate(own)}
        for field, own in names.items()
        if union[field][: len(own)] != own
    }


def composed(first: Labels, second: Labels) -> Labels:
    """Return the labels that `second` gives to those of `first`.

    Example:
        >>> composed({"cls": {b"0": b"1"}}, {"cls": {b"0": b"2", b"1": b"0"}, "x": {b"0": b"9"}})
        {'cls': {b'0': b'0'}, 'x': {b'0': b'9'}}
    """
    found = {field: dict(labels) for field, labels in second.items()}
    for field, labels in first.items():
        then = second.get(field, {})
        found[field] = {old: then.get(label, label) for old, label in labels.items()}
    return found


def by_label(names: ClassNames) -> tuple[str, ...] | ClassNames | None:
    """Return the names of ``cls`` alone if no other field has some; else all.

    None without any.

    Example:
        >>> by_label({"cls": ("cat",)}), by_label({"cls": ("cat",), "colour": ("red",)}), by_label({})
        (('cat',), {'cls': ('cat',), 'colour': ('red',)}, None)
    """
    return names.get(_FIELD) if names.keys() <= {_FIELD} else names


def _shown(names: Sequence[str]) -> str:
    return ", ".join(f"{number} {name}" for number, name in enumerate(names[:_FEW])) + (
        f", and {len(names) - _FEW} more" if len(names) > _FEW else ""
    )


_FEW = 5
