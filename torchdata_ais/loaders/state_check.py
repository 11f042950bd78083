"""Whether a state is whole and as it was saved: its shape, its checksum, and what its parts say.

A checkpoint lies on disks, travels through JSON and object stores, and is merged by hand. A state that lost an entry
would lose or double samples without a word, so nothing in it is used before all of it was looked at. The checksum
finds what went wrong by chance; it is no signature. What a forged state can do is bounded by the checks of its parts:
no code, no memory beyond its own size, an error instead of positions that are not there.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import xxhash

from torchdata_ais.errors import StateError
from torchdata_ais.stage.saved import read_saved

__all__ = ["FORMAT", "VERSION", "checksum", "cut", "read_state", "same_epoch", "seal"]

FORMAT = "torchdata_ais.loader"
VERSION = 2
"""1 was that of torchdata_ais 0.1: no checksum, no number of workers, and other shards for each rank."""

_MOST_BITS = 4096
_DIGEST = re.compile(r"(?:[0-9a-f]{32})?")
_AS_SAVED = "pass the checkpoint as it was saved, or resume from another one"


class _Common(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of every state. A new field is to be added here or below, else it is refused as unknown."""

    format: str
    version: int
    stages: list[str]
    seed: int
    epoch: int
    user_epoch: int
    step: int
    shards: str
    checksum: str


class _RankState(_Common, forbid_unknown_fields=True, kw_only=True):
    """The state of one rank."""

    rank: int
    ranks: int
    workers: int
    turn: int
    instances: list[bytes] | None


class _MergedState(_Common, forbid_unknown_fields=True, kw_only=True):
    """The states of several ranks."""

    merged: list[_RankState]


def seal(state: dict[str, Any]) -> dict[str, Any]:
    """Return `state` with its checksum."""
    return {**state, "checksum": checksum(state)}


def checksum(state: dict[str, Any]) -> str:
    """Return the XXH64 of everything in a state but its checksum, the same however the state was kept."""
    plain = {name: value for name, value in state.items() if name != "checksum"}
    if "merged" in plain:
        plain["merged"] = [part["checksum"] for part in plain["merged"]]
    elif plain["instances"] is not None:
        plain["instances"] = [xxhash.xxh64_hexdigest(packed) for packed in plain["instances"]]
    return xxhash.xxh64_hexdigest(json.dumps(plain, sort_keys=True).encode())


def read_state(state: Any) -> dict[str, Any]:
    """Return a copy of `state` that can be used.

    Raises:
        StateError: It is no state, of another version of the package, or not as it was saved.
    """
    if not isinstance(state, dict) or not _is_format(state.get("format")):
        raise StateError.at(
            "this is no state of a torchdata_ais loader",
            todo="pass what state_dict() or merge_states() returned",
        )
    _check_version(state.get("version"))
    kind = _MergedState if "merged" in state else _RankState
    try:
        # Text is no bytes here: state_from_json is what turns one into the other.
        typed = msgspec.convert(state, kind, builtin_types=(bytes, bytearray, memoryview))
    except (msgspec.ValidationError, RecursionError, ValueError, TypeError, OverflowError) as error:
        raise _damaged(cut(str(error))) from None
    plain: dict[str, Any] = msgspec.structs.asdict(typed)
    if isinstance(typed, _MergedState):
        plain["merged"] = [msgspec.structs.asdict(part) for part in typed.merged]
    for part in (plain, *plain.get("merged", ())):
        _check_plain(part)
    for part in plain.get("merged", [plain]):
        for packed in part["instances"] or ():
            read_saved(packed)
    return plain


def cut(text: str, most: int = 300) -> str:
    """Return `text`, or its beginning if it is long: what a state says may be of any size."""
    return text if len(text) <= most else text[:most] + "..."


_OF_THE_EPOCH = ("stages", "seed", "epoch", "user_epoch", "step", "shards", "ranks", "workers")


def same_epoch(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """Return the first field in which the states of two ranks must agree and do not, or None."""
    for name in _OF_THE_EPOCH:
        if one[name] != other[name]:
            return name
    return "instances" if (one["instances"] is None) != (other["instances"] is None) else None


def _is_format(value: Any) -> bool:
    return isinstance(value, str) and value == FORMAT


def _check_version(version: Any) -> None:
    if type(version) is int and version == VERSION:
        return
    if type(version) is int and version == 1:
        raise StateError.at(
            "the state was saved by torchdata_ais 0.1, without the checksum that later versions compare",
            todo="finish that epoch with torchdata_ais 0.1, or begin the epoch anew",
        )
    said = version if type(version) is int and abs(version) < 1000 else f"of type {type(version).__name__}"
    raise StateError.at(
        f"the state has version {said}, this package writes and reads {VERSION}",
        todo="resume with the version of the package that took the checkpoint",
    )


def _check_plain(part: dict[str, Any]) -> None:
    """Raise `StateError` for a rank's state, or a merged one, that says what cannot be."""
    numbers = [value for value in part.values() if isinstance(value, int)]
    if any(value.bit_length() > _MOST_BITS for value in numbers):
        raise _damaged("a number in it is too large")
    if not _is_format(part["format"]) or part["version"] != VERSION:
        raise _damaged("a part of it is of another format")
    if part["checksum"] != checksum(part):
        raise _damaged("its checksum is not that of its content")
    if not _DIGEST.fullmatch(part["shards"]):
        raise _damaged("what it says of the shards is no digest")
    if part["step"] < 0:
        raise _damaged("a count in it is negative")
    if "merged" in part:
        first = part["merged"][0] if part["merged"] else {}
        alike = all(same_epoch(one, first) is None for one in part["merged"])
        if not first or not alike or same_epoch({**first, **part}, first) is not None:
            raise _damaged("its parts are not of one loader")
        if len({one["rank"] for one in part["merged"]}) != len(part["merged"]):
            raise _damaged("a rank is there twice")
        return
    workers, instances = part["workers"], part["instances"]
    if not (0 <= part["rank"] < part["ranks"] and 0 <= part["turn"] < workers):
        raise _damaged("it names a rank or worker that there is none of")
    if instances is not None and len(instances) != workers:
        raise _damaged(f"it has {len(instances)} of {workers} workers")


def _damaged(why: str) -> StateError:
    return StateError.at(f"the state is damaged: {why}", todo=_AS_SAVED)
