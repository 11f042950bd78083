"""The samples a checkpoint holds by name only: read again, in the order asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchdata_ais.errors import StateError
from torchdata_ais.reading.open_shard import OpenShard, ShardOptions
from torchdata_ais.reading.runs import Run
from torchdata_ais.samples import unpack_place
from torchdata_ais.store import StoreOptions
from torchdata_ais.urls import parse_url, shown_url

_GAP = 8 << 20  # bytes between two wanted samples beyond which a new request is cheaper than reading on


def held_runs(
    places: Sequence[int],
    urls: Sequence[Any],
    versions: Mapping[int, tuple[str | None, str | None]],
    store: StoreOptions,
    options: ShardOptions,
) -> Iterator[tuple[str, Run]]:
    """Yield ``(url, run)`` for each place, in the order of `places`.

    The samples of one shard are read in one sweep (several, where they lie far apart), so a shuffle buffer costs
    a few requests a shard, not one a sample.

    Args:
        places: Packed places.
        urls: The URL at each shard position.
        versions: Version and checksum that the shard at a position had, where they are known.
        store: Transport settings.
        options: How shards are parsed; the same as when the checkpoint was taken.

    Memory:
        All held samples together: the same that the stages held when the checkpoint was taken.

    Raises:
        StateError: A sample is not where it was.
        ObjectChangedError: A shard has another version than then.
    """
    by_shard: dict[int, list[int]] = defaultdict(list)
    for place in places:
        shard, offset = unpack_place(place)
        by_shard[shard].append(offset)
    found: dict[tuple[int, int], Run] = {}
    for shard, offsets in by_shard.items():
        for sweep in _sweeps(sorted(offsets)):
            version, checksum = versions.get(shard, (None, None))
            begun = OpenShard(
                parse_url(urls[shard]),
                shard,
                store,
                options,
                start=sweep[0],
                version=version,
                checksum=checksum,
            )
            found.update(_read(sweep, begun))
    for place in places:
        shard, offset = unpack_place(place)
        yield shown_url(str(urls[shard])), found.pop((shard, offset))


def _sweeps(offsets: list[int]) -> Iterator[list[int]]:
    sweep = [offsets[0]]
    for offset in offsets[1:]:
        if offset - sweep[-1] > _GAP:
            yield sweep
            sweep = []
        sweep.append(offset)
    yield sweep


def _read(offsets: list[int], shard: OpenShard) -> dict[tuple[int, int], Run]:
    wanted = set(offsets)
    found: dict[tuple[int, int], Run] = {}
    try:
        while wanted and (run := shard.next_run()) is not None:
            if run.offset in wanted:
                wanted.discard(run.offset)
                found[shard.position, run.offset] = run
    finally:
        shard.close()
    if wanted:
        raise StateError.at(
            "a sample named by the checkpoint is not there any more: the shard has changed",
            todo="begin the epoch anew, or restore the shard as it was",
            url=shard.name,
            offset=min(wanted),
        )
    return found
