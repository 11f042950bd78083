"""One sample out of its own bytes: what the stream gives for it, or an error that names index, shard and key."""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

from torchdata_ais.errors import SampleIndexError, ShardError, TruncatedShardError
from torchdata_ais.index import SampleReference, stored_text
from torchdata_ais.reading.runs import Run, whole_runs
from torchdata_ais.samples import is_apple_double, split_name
from torchdata_ais.tar import Link, Member, TarReader


def run_in(data: bytes | memoryview, reference: SampleReference, *, max_bytes: int | None = None) -> Run:
    """Return the run of members that is the sample of `reference`.

    An index made of headers alone knows regular members only, and of one name the first. What it calls a sample may
    therefore begin with members of the sample before, and end with links and extension headers of the one after;
    those are left out.

    Args:
        data: The bytes of the shard from ``reference.start`` on, ``reference.size`` of them.
        reference: What the index knows.
        max_bytes: As for `torchdata_ais.reading.runs.whole_runs`.

    Raises:
        SampleIndexError: The bytes are not those that were indexed.
        ShardError, SampleError: What the stream, too, would say of the sample.
    """
    if len(data) != reference.size:
        raise _stale(reference, f"{len(data)} bytes are there of {reference.size}")
    if reference.xxh64 is not None and xxhash.xxh64_intdigest(data) != reference.xxh64:
        raise _stale(reference, "its bytes are not those that were indexed")
    name = reference.shard.name
    reader = TarReader(
        [data],
        url=name,
        start=reference.start,
        require_end=False,
        max_member_bytes=max_bytes,
        skip_large=True,
    )
    try:
        # Bytes that somebody has read begin and end with the sample.
        members = _own(reader, reference) if reference.xxh64 is None else reader
        for run in whole_runs(members, url=name, max_bytes=max_bytes):
            if run.key is not None and stored_text(run.key) == reference.key:
                break
        else:
            raise _stale(reference, "it is not there")
    except ShardError as error:
        raise _stale(reference, f"what is there is no sample ({error.what})") from error
    if run.error is not None:
        raise run.error
    if reference.xxh64 is None:
        _check_fields(run, reference)
    return run


def _own(reader: TarReader, reference: SampleReference) -> Iterator[Member]:
    """Yield the members, without those of the sample before; the last may be cut, it is the next sample's beginning."""
    missing = len(reference.fields)
    begun = False
    try:
        for member in reader:
            if is_apple_double(member[0]):
                continue
            is_link = isinstance(member[1], Link)
            parts = split_name(member[0])
            key = None if parts is None else stored_text(parts[0])
            if key == reference.key:
                begun = True
                missing -= not is_link
            elif key is not None and not is_link and (begun or key != reference.before):
                raise _stale(reference, f"the sample {key!r} is there")
            elif not begun and reference.before is not None:
                continue
            yield member
    except TruncatedShardError:
        if missing > 0:
            raise


def _check_fields(run: Run, reference: SampleReference) -> None:
    there = [(stored_text(one.field), len(one.data)) for one in run.members if one.field is not None]
    wanted = list(zip(reference.fields, reference.sizes, strict=True))
    found = iter(there)
    if not all(one in found for one in wanted):  # in this order, links between them
        raise _stale(reference, f"it has the fields {there}, not {wanted}")


def _stale(reference: SampleReference, what: str) -> SampleIndexError:
    shard = reference.shard
    return SampleIndexError.at(
        f"the index does not fit {shard.name}: the sample {reference.key!r} at byte {reference.start}: {what}",
        todo="index the shards again (torchdata-ais index), or restore them as they were",
        url=shard.name, offset=reference.start, key=reference.key,
    )  # fmt: skip
