"""Rendezvous of ranks at the start of a loader.

It uses only the store of torch.distributed. Rank 0 lists, and publishes its arguments and its listing. The others
compare the arguments with theirs, and take the listing or, where it is large, make and compare their own. They answer,
and rank 0 publishes the result. So every rank knows it before its first sample.
"""

from __future__ import annotations

import json
import logging
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
import xxhash

from torchdata_ais._util.world import World
from torchdata_ais.errors import AISError, ObjectChangedError, UsageError
from torchdata_ais.pipes.base.pipe import IterDataPipe
from torchdata_ais.pipes.base.upstream import upstream
from torchdata_ais.pipes.planned.batches import check_planned
from torchdata_ais.ranks.group import Ranks, join_ranks
from torchdata_ais.ranks.heartbeat import share_on_machine
from torchdata_ais.ranks.intervals import delay_of, spread_of
from torchdata_ais.ranks.listing import (
    Listing,
    Table,
    compare_indexes,
    digest_of,
    identities,
    list_pipe,
    rows_of,
    shown,
)
from torchdata_ais.store.objects.packed_urls import Row

SHARED_BYTES = 4 << 20
"""Largest compressed listing that is sent; above it every rank lists."""

_BUCKETS = 4096
_DETAILS = 8  # buckets of which rank 0 is requested to send details
_SHOWN = 3

logger = logging.getLogger("torchdata_ais")


class _Summary(msgspec.Struct):
    """A table too large to send: a digest, and about where two tables differ.

    Attributes:
        buckets: For each group of names, the sum of the digests of their rows: 8 bytes each.
    """

    name: str
    listed: bool
    count: int
    digest: str
    buckets: bytes


class _LeaderTables(msgspec.Struct):
    """Message of rank 0."""

    tables: list[Table] | None = None
    summaries: list[_Summary] | None = None


class _Answer(msgspec.Struct):
    """Answer of another rank: it agrees, or requests details of some rows."""

    texts: list[str] = []
    changed: bool = False
    rows: dict[int, list[Row]] = {}
    buckets: dict[int, list[int]] = {}


# Made here and not with the first use: loaders may begin in several threads at once, which msgspec does not bear.
_leader_tables = msgspec.msgpack.Decoder(_LeaderTables)
_answer = msgspec.msgpack.Decoder(_Answer)


def begin_together(
    pipe: IterDataPipe[object], world: World, settings: dict[str, object], timeout_s: float
) -> tuple[Listing, Ranks | None]:
    """List the sources of `pipe`, the same on all ranks.

    The `settings` are other arguments that must be the same on all of them, by name. Returns the listing, and this
    loader's place among the ranks: None where they cannot reach each other.

    Raises:
        UsageError: The ranks were given different pipes, sources or settings.
        ObjectChangedError: They have listed different objects.
        LoaderError: Another rank failed, died or does not come.
        AISError: The listing failed.
    """
    ranks = join_ranks(world, timeout_s)
    if ranks is None:
        check_planned(pipe)
        compare_indexes(pipe)
        listing = list_pipe(pipe)
        if world.size > 1:
            logger.warning(
                "rank %d of %d, with rank= and no store=: whether all ranks see the same shards is not compared. "
                "Pass store=, or compare the digest of the shards yourself: %s",
                world.rank, world.size, listing.digest,
            )  # fmt: skip
        return listing.compared(), None
    arguments = rows_of(f"{name}={value!r}" for name, value in settings.items())
    names = [getattr(stage, "functional_name", "") or type(stage).__name__ for stage in upstream(pipe)]
    told = [Table("the arguments", arguments), Table("the stages", rows_of(names))]
    try:
        with ranks.alive():
            check_planned(pipe)
            begin = _lead if ranks.rank == 0 else _follow
            listing = begin(ranks, pipe, told).compared()
            share_on_machine(listing.packed, ranks)
            return listing, ranks
    except _Refused as refused:
        if ranks.rank == 0:
            ranks.linger()
        else:
            ranks.see()
        raise refused.error from None
    except Exception as error:
        ranks.report(error)
        ranks.linger()
        raise


def end_together(world: World, error: Exception, timeout_s: float) -> None:
    """Report an error that keeps this rank from starting to the other ranks."""
    ranks = join_ranks(world, timeout_s)
    if ranks is not None:
        ranks.report(error)
        ranks.linger()


class _Refused(Exception):  # noqa: N818 - carries the error that all ranks raise
    def __init__(self, error: AISError) -> None:
        self.error = error


def _lead(ranks: Ranks, pipe: IterDataPipe[object], told: list[Table]) -> Listing:
    """Begin as rank 0."""
    compare_indexes(pipe)
    listing = list_pipe(pipe)
    tables = [*told, *listing.tables]
    hello = _packed(_LeaderTables(tables=tables))
    if len(hello) > SHARED_BYTES:
        hello = _packed(_LeaderTables(summaries=[_summary(table) for table in tables]))
    ranks.tell("data", hello)
    answers = ranks.hear({rank: f"answer/{rank}" for rank in range(1, ranks.world_size)})
    ranks.tell("data", b"")  # no rank reads it any more, and it may be large
    texts: list[str] = []
    changed = False
    for rank, packed in answers.items():
        answer = _answer.decode(zlib.decompress(packed))
        changed = changed or answer.changed
        found = answer.texts + [
            _difference(
                tables[index].name,
                [row for row in tables[index].rows if _bucket(row) in answer.buckets[index]],
                rows,
                rank,
            )
            or f"{tables[index].name}: in another order"
            for index, rows in answer.rows.items()
        ]
        if found:
            texts.append(f"rank {rank} differs from rank 0 in {'; in '.join(found)}")
    verdict = {"changed": changed, "texts": texts[:_SHOWN], "more": max(0, len(texts) - _SHOWN)}
    ranks.tell("verdict", json.dumps(verdict))
    _raise_verdict(verdict)
    return listing


def _follow(ranks: Ranks, pipe: IterDataPipe[object], told: list[Table]) -> Listing:
    """Begin as another rank."""
    hello = _leader_tables.decode(zlib.decompress(ranks.hear({0: "data"})[0]))
    listing = list_pipe(pipe, hello.tables)
    ours = [*told, *listing.tables]
    answer = _Answer()
    theirs: Sequence[Table | _Summary] = hello.tables if hello.tables is not None else hello.summaries or []
    for index, (table, own) in enumerate(zip(theirs, ours, strict=False)):
        if isinstance(table, Table):
            text = _difference(table.name, table.rows, own.rows, ranks.rank)
            if text is not None:
                answer.texts.append(text)
        elif table.digest != digest_of(identities(own.rows)):
            answer.changed = answer.changed or table.listed
            summary = _summary(own)
            places = range(0, len(summary.buckets), 8)
            differ = [at // 8 for at in places if table.buckets[at : at + 8] != summary.buckets[at : at + 8]]
            answer.buckets[index] = differ[:_DETAILS]
            answer.rows[index] = [row for row in own.rows if _bucket(row) in differ[:_DETAILS]]
    if len(theirs) != len(ours) and not answer.texts:
        answer.texts.append(f"the number of sources: {len(theirs) - 2} on rank 0, {len(ours) - 2} here")
    ranks.tell(f"answer/{ranks.rank}", _packed(answer))
    _raise_verdict(json.loads(ranks.hear({0: "verdict"})[0]))
    return listing


def _raise_verdict(verdict: dict[str, Any]) -> None:
    """Raise the difference that rank 0 has found, if any."""
    if not verdict["texts"]:
        return
    more = f", and so do {verdict['more']} ranks more" if verdict["more"] else ""
    texts = ". ".join(verdict["texts"]) + more
    if verdict["changed"]:
        raise _Refused(
            ObjectChangedError.at(
                f"the ranks have listed different objects: {texts}",
                todo="start again when nothing writes to the bucket, or name the shards with a template "
                "(ais://bucket/s-{000..099}.tar), which needs no listing",
            )
        )
    raise _Refused(
        UsageError.at(
            f"the ranks would not read one data set: {texts}",
            todo="give all ranks the same pipe and the same arguments",
        )
    )


def _difference(name: str, theirs: Sequence[Row], ours: Sequence[Row], rank: int) -> str | None:
    """Return in which rows two tables differ, or None."""
    if ours is theirs:  # taken from rank 0
        return None
    a, b = list(identities(theirs)), list(identities(ours))
    if a == b:
        return None
    more, fewer = Counter(a) - Counter(b), Counter(b) - Counter(a)
    here, there = (
        {line.partition("\t")[0]: line for line in more},
        {line.partition("\t")[0]: line for line in fewer},
    )
    parts = [
        _list("only on rank 0", [shown(text) for text in here if text not in there]),
        _list(f"only on rank {rank}", [shown(text) for text in there if text not in here]),
        _list("of another size or version", [shown(text) for text in here if text in there]),
    ]
    said = "; ".join(part for part in parts if part)
    return f"{name}: {said or 'the same in another order, or not equally often'}"


def _list(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f", ... ({len(names)} in all)" if len(names) > _SHOWN else ""
    return f"{what}: {', '.join(names[:_SHOWN])}{more}"


def _bucket(row: Row) -> int:
    (line,) = identities([row])
    return _bucket_of(line)


def _bucket_of(line: str) -> int:
    return xxhash.xxh64_intdigest(line.partition("\t")[0].encode()) % _BUCKETS


def _summary(table: Table) -> _Summary:
    sums = [0] * _BUCKETS
    lines = list(identities(table.rows))
    for line in lines:
        sums[_bucket_of(line)] += xxhash.xxh64_intdigest(line.encode())
    buckets = b"".join((value % (1 << 64)).to_bytes(8, "little") for value in sums)
    return _Summary(table.name, table.listed, len(lines), digest_of(lines), buckets)


def _packed(value: msgspec.Struct) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(value), 1)


def wait_for_turn(world: World, workers: int, given_s: float | None, ranks: Ranks | None) -> None:
    """Wait until this process may start; heartbeats are sent meanwhile."""
    process, processes = world.members
    delay_s = delay_of(process, processes, spread_of(processes, workers, given_s))
    if delay_s > 0:
        with nullcontext() if ranks is None else ranks.alive():
            time.sleep(delay_s)
