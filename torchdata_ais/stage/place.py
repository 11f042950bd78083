"""A sample's place in the data set, through stages that make new dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.samples import Sample


def keep_place(result: dict[str, Any], sample: Any) -> dict[str, Any]:
    """Return `result` as a `Sample` that stands where `sample` stands, if that is one.

    Example:
        >>> keep_place({"cls": 1}, Sample({"cls": b"1"}, place=7)).place
        7
    """
    if not isinstance(sample, Sample):
        return result
    if not isinstance(result, Sample):
        return sample.renewed(result)
    if result.place < 0:
        result.place = sample.place
    return result


def place_of(sample: Mapping[str, Any], field: str | None = None) -> dict[str, Any]:
    """Return where `sample`, or a field of it, comes from, for the ``[at]`` line of an error.

    Example:
        >>> place_of({"__key__": "a", "cls": 3}, "cls")
        {'field': 'cls', 'key': 'a', 'url': None, 'offset': None}
    """
    offset = getattr(sample, "offset", -1)
    return {
        "field": field,
        "key": sample.get("__key__"),
        "url": url if isinstance(url := sample.get("__url__"), str) else None,  # of a batch there are many
        "offset": None if offset < 0 else offset,
    }


def place_in(item: Any) -> dict[str, Any]:
    """Return ``url`` and ``key`` of `item`, if it is a sample.

    Example:
        >>> place_in({"__key__": "a", "cls": 3}), place_in(3)
        ({'url': None, 'key': 'a'}, {})
    """
    if not isinstance(item, Mapping) or not isinstance(item.get("__key__"), str):
        return {}
    return {"url": item.get("__url__"), "key": item["__key__"]}


def require_dict(sample: Any, stage: str) -> dict[str, Any]:
    """Return `sample`; raise `UsageError` if it is no dict."""
    if isinstance(sample, dict):
        return sample
    raise UsageError.at(
        f"{stage}() was given an item of type {type(sample).__name__}, not a dict",
        todo=f"put .{stage}() before .to_tuple() and .batched(), behind .group_samples()",
    )
