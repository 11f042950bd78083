"""Which names of fields mean the same kind of value: one list for reading and for writing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

_T = TypeVar("_T")

FIELD_KINDS: Mapping[str, tuple[str, ...]] = {
    "text": ("txt", "text", "transcript", "html", "htm"),
    "integer": ("cls", "cls2", "class", "count", "index", "inx", "id"),
    "json": ("json", "jsn"),
    "jsonl": ("jsonl",),
    "npy": ("npy",),
    "npz": ("npz",),
    "ten": ("ten", "tb", "tenbin"),
    "msgpack": ("mp", "msg", "msgpack", "messagepack"),
    "cbor": ("cbor",),
    "torch": ("pt", "pth"),
    "pickle": ("pkl", "pickle", "pyd"),
}


def by_name(functions: Mapping[str, _T]) -> dict[str, _T]:
    """Return what `functions` has for each kind, for each name of that kind.

    Example:
        >>> by_name({"integer": int})["cls"]
        <class 'int'>
    """
    return {
        name: functions[kind] for kind, names in FIELD_KINDS.items() if kind in functions for name in names
    }
