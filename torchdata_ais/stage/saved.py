"""What an instance's part of a checkpoint looks like, packed: types, and the check that bytes are such a part.

The bytes come from a file that may be damaged or made by somebody else. Nothing in them is believed before it was
looked at here; what can only be compared with the data (positions of shards) is compared in `_load_state`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from typing_extensions import TypedDict

from torchdata_ais.errors import StateError

__all__ = ["LoadSaved", "Saved", "read_saved"]

_MOST_NESTED = 64
"""Resumes in a row, each on another topology and none with an item, that a state can tell of."""

_Count = Annotated[int, Meta(ge=0)]


class LoadSaved(TypedDict):
    """Where `load_tar` stood.

    Attributes:
        n: Instances in the epoch.
        i: Which one this was.
        next: Shards of its own that it had begun.
        left: Bitmap of the positions to begin, instead of `next`, after a resume on another topology.
        open: Position, offset of the next run, version and checksum of the shards under way.
        seen: Position of the shards begun last, and a hash of their names.
        held: Packed places of the samples that stages held.
        versions: Position, version and checksum of the shards those samples came from.
    """

    n: Annotated[int, Meta(ge=1)]
    i: _Count
    next: _Count
    left: bytes | None
    open: list[tuple[_Count, _Count, str | None, str | None]]
    seen: list[tuple[_Count, _Count]]
    held: bytes
    versions: list[tuple[_Count, str | None, str | None]]


class Saved(TypedDict, total=False):
    """One instance: what it had left, or the states whose share it was given and had not begun."""

    load: LoadSaved
    stages: list[tuple[_Count, Any]]
    seeds: list[tuple[_Count, _Count]]
    of: list[Saved]
    share: tuple[_Count, Annotated[int, Meta(ge=1)]]


_decoder = msgspec.msgpack.Decoder(Saved)


def read_saved(packed: bytes) -> dict[str, Any]:
    """Return what was packed.

    Raises:
        StateError: The bytes are not what `pack_state` makes.
    """
    try:
        saved = _decoder.decode(packed)
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise _damaged(str(error)[:200]) from None
    _look_at(saved, 0)
    return dict(saved)


def _look_at(saved: Saved, depth: int) -> None:
    """Raise `StateError` for what types cannot say."""
    if depth > _MOST_NESTED:
        raise _damaged(f"it tells of more than {_MOST_NESTED} resumes in a row")
    if "of" in saved:
        if saved.keys() != {"of", "share"} or saved["share"][0] >= saved["share"][1]:
            raise _damaged("its share of other states is none")
        for state in saved["of"]:
            _look_at(state, depth + 1)
        return
    load = saved.get("load")
    if load is None or load["i"] >= load["n"]:
        raise _damaged("it does not say which instance it is of")
    if len(load["held"]) % 8:
        raise _damaged("its list of held samples is cut")
    if ("stages" in saved) != ("seeds" in saved):
        raise _damaged("a part of it is missing")
    if sum(held for held, _ in saved.get("stages", ())) > len(load["held"]) // 8:
        raise _damaged("its stages hold more samples than are named")


def _damaged(why: str) -> StateError:
    return StateError.at(
        f"a packed state cannot be read: {why}", todo="pass the checkpoint as it was saved, or another one"
    )
