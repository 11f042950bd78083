"""Forecast of runs by index and of streaming, by the code that plans runs."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from torchdata_ais.errors import UsageError
from torchdata_ais.index import SampleReference, Schedule, ShardRow
from torchdata_ais.plan import DENOMINATOR, PLAN_VERSION, Run, Sources
from torchdata_ais.plan.permutation import Integers
from torchdata_ais.ranks.intervals import spread_of, usual_interval
from torchdata_ais.reading.planned import Traffic, traffic_of
from torchdata_ais.reading.requests import Wanted
from torchdata_ais.state import EpochBegin, PlanState, Segment, SourceCounts, packed, to_plain
from torchdata_ais.store import StoreOptions

_PAGE = 10_000  # objects in a page of a listing of AIStore's own buckets; other listings often have 1,000
_KEPT = 16 << 20  # bytes of an index that a process keeps, at most
_URL = 190  # bytes of a URL in a process
_WORKER_STATE = 300  # bytes a worker
_HELD_STATE = 11  # bytes a sample held
_HELD = 1000  # samples of .shuffled()
_MOST = 10**8
_AT_ONCE = 1 << 16  # samples that are placed at once
_ANSWER_S = 0.1  # of a request, about


@dataclass(frozen=True)
class StreamCost:
    """Forecast of streaming with one shard open and ``.shuffled(1000)``.

    Attributes:
        steps: Of the ranks with the fewest and with the most.
        requests: GETs an epoch.
        listing_pages: Pages of the listing before the first of them.
        connections: At the same time.
        idle_workers: Workers without a shard.
        worker_memory: Bytes a worker holds: fetched ahead, and the names of all shards.
        state_bytes: Of all ranks together.
        rank_shards: Distinct shards in a rank's batch, at most.
    """

    steps: tuple[int, int]
    requests: int
    listing_pages: int
    connections: int
    idle_workers: int
    worker_memory: int
    state_bytes: int
    rank_shards: int


@dataclass(frozen=True)
class StartCost:
    """Load of cluster and store at the job's start, and of the store later.

    Attributes:
        spread_s: Seconds in which the ranks begin, one after the other.
        requests_a_second: First requests of workers that come to the cluster; each is redirected once by the proxy.
        peak_requests: Of them, under way at the same time, where an answer takes 0.1 s.
        store_connections: To torch.distributed's store; twice as many with ``epoch_steps="shortest"`` or ``"pad"``.
        store_requests_a_second: While training, of all ranks, without the batches.
        step_store_requests: Those of a stream with ``epoch_steps="shortest"`` or ``"pad"``, a step of all ranks.
    """

    spread_s: float
    requests_a_second: float
    peak_requests: int
    store_connections: int
    store_requests_a_second: float
    step_store_requests: int


@dataclass(frozen=True)
class Simulation:
    """Forecast of a run by index in its first epoch, next to one of streaming.

    Attributes:
        steps: Of each rank.
        global_batch: Samples a step, over all ranks.
        batch: Samples of a rank's whole batch: the fewest and the most.
        repeated: Samples that come twice.
        connections: At the same time, at most.
        listing_pages: Before the first request, by rank 0.
        index_bytes: Bytes of the index that each process reads at the start.
        worker_memory: Bytes a worker holds, at most, without the interpreter.
        state_bytes: The same state for all ranks, as JSON.
        plan_s: Seconds this machine took to plan the first batch, from nothing.
        batch_shards: Distinct shards in a global batch.
        rank_shards: Those in the first rank's batch.
        idle_workers: Workers without a batch.
    """

    steps: int
    global_batch: int
    batch: tuple[int, int]
    repeated: int
    traffic: Traffic
    connections: int
    listing_pages: int
    index_bytes: int
    worker_memory: int
    state_bytes: int
    plan_s: float
    batch_shards: int
    rank_shards: int
    idle_workers: int
    stream: StreamCost
    start: StartCost


def simulated(
    *,
    ranks: int,
    workers: int,
    shards: int,
    samples: int,
    sample_bytes: int = 110_000,
    global_batch: int | None = None,
    schedule: Schedule | None = None,
    shuffle: Literal["samples", "runs"] | None = "samples",
    proof: Literal["bytes", "headers"] = "bytes",
    window_bytes: int = StoreOptions().prefetch_bytes,
) -> Simulation:
    """Return the forecast of a run over shards of one size, without requests.

    `sample_bytes` includes the headers of the tar. A worker requests `window_bytes` ahead. The global batch is 256
    samples a rank, if it is not given.

    Memory: a byte a shard, and 8 a sample of a global batch.

    Example:
        >>> run = simulated(ranks=4, workers=2, shards=10, samples=1000, global_batch=64)
        >>> run.steps, run.batch, run.stream.steps
        (16, (16, 16), (13, 19))
    """
    workers, batch = max(1, workers), global_batch or 256 * ranks
    if ranks < 1 or not 1 <= shards <= min(samples, _MOST) or samples > 10**15 or sample_bytes < 1:
        raise UsageError.at(
            f"{ranks} ranks, {shards} shards of {samples} samples of {sample_bytes} bytes",
            todo=f"use numbers from 1 on, no fewer samples than shards, and at most {_MOST} shards",
        )
    stored = _Stored(samples, shards)
    begun = time.perf_counter()
    sources = Sources((samples,), (float(sample_bytes),), shuffle=shuffle)
    if schedule:
        schedule.check(1, None, sources.stop)
        batch = dict(schedule.batches).get(0, batch)
        sources = replace(sources, changes=schedule.changes((DENOMINATOR,)))
    run = Run.begun(sources, 0, batch, ranks).checked()
    first = stored.count_shards(run, run.positions(0))
    plan_s = time.perf_counter() - begun
    epoch = run.epoch(0)
    steps = epoch.steps
    whole = Run(sources, run.seed, run.segments)
    row = ShardRow("", None, None, None, 0, 0, proof == "bytes", 0, 0, 0, 0)

    def look_up(positions: Integers) -> list[Wanted]:
        numbers = run.at(positions).index
        found = stored.shards_of(numbers)
        begins = stored.begins(found)
        return [
            Wanted(SampleReference(row, start, sample_bytes, "", (), (), None, shard))
            for shard, start in zip(found.tolist(), ((numbers - begins) * sample_bytes).tolist(), strict=True)
        ]

    traffic = traffic_of(run, epoch, workers, look_up, window_bytes, lambda request: request.source)
    pages = -(-shards // _PAGE)
    return Simulation(
        steps=steps,
        global_batch=batch,
        batch=(batch // ranks, -(-batch // ranks)),
        repeated=run.repeated(epoch),
        traffic=traffic,
        connections=traffic.connections * ranks * min(workers, steps),
        listing_pages=0 if proof == "bytes" else pages,
        index_bytes=8 * shards,
        worker_memory=max(window_bytes, sample_bytes) + sample_bytes + 8 * shards + _KEPT,
        state_bytes=_state_bytes(run, samples),
        plan_s=plan_s,
        batch_shards=stored.count_shards(whole, whole.positions(0)),
        rank_shards=first,
        idle_workers=ranks * max(0, workers - steps),
        stream=_streamed(ranks, workers, shards, samples, batch, pages, window_bytes),
        start=_started(ranks, workers),
    )


def _started(ranks: int, workers: int) -> StartCost:
    """Return the load of the start, and of the store in training, if any."""
    spread_s, processes = spread_of(ranks, workers), ranks * workers
    others = ranks if ranks > 1 else 0
    return StartCost(
        spread_s=spread_s,
        requests_a_second=processes / max(spread_s, _ANSWER_S),
        peak_requests=min(processes, math.ceil(processes * _ANSWER_S / max(spread_s, _ANSWER_S))),
        store_connections=others,
        store_requests_a_second=others / usual_interval(ranks),
        step_store_requests=2 * others + 2 * bool(others),
    )


class _Stored(NamedTuple):
    """Samples in shards of one size; the first shards have one more."""

    samples: int
    shards: int

    def shards_of(self, numbers: Integers) -> Integers:
        """Return the shard of each sample."""
        size, larger = divmod(self.samples, self.shards)
        end = larger * (size + 1)
        found: Integers = np.where(numbers < end, numbers // (size + 1), larger + (numbers - end) // size)
        return found

    def begins(self, shards: Integers) -> Integers:
        """Return the number of the first sample of each shard."""
        size, larger = divmod(self.samples, self.shards)
        begins: Integers = shards * size + np.minimum(shards, larger)
        return begins

    def count_shards(self, run: Run, positions: Integers) -> int:
        """Return how many shards the samples at some positions are in."""
        seen = np.zeros(self.shards, dtype=np.bool_)
        for begin in range(0, len(positions), _AT_ONCE):
            seen[self.shards_of(run.at(positions[begin : begin + _AT_ONCE]).index)] = True
        return int(np.count_nonzero(seen))


def _state_bytes(run: Run, samples: int) -> int:
    """Return the length of a state as JSON, after the first epoch."""
    shuffle = run.sources.shuffle
    segment, all_of_it = Segment(0, 0, 0, run.segments[0].global_batch), packed([samples])
    state = PlanState(
        plan=PLAN_VERSION,
        sources=bytes(8),
        weights="0" * 16,
        order=("" if shuffle is None else f"shuffle={shuffle!r}, ") + "stop='first'",
        seed=run.seed,
        segments=[segment],
        step=run.epoch(0).end,
        epoch=EpochBegin(1, run.epoch(0).end, samples),
        counts=SourceCounts(all_of_it, all_of_it, all_of_it, all_of_it),
    )
    return len(json.dumps(to_plain(state)))


def _streamed(
    ranks: int, workers: int, shards: int, samples: int, batch: int, pages: int, window_bytes: int
) -> StreamCost:
    """Return the forecast of streaming, where shards are dealt to ranks."""
    instances = ranks * workers
    busy = min(instances, shards)
    each = samples / shards
    own = max(1, batch // ranks)
    fewest, most = (-(-round(number * each) // own) for number in (shards // ranks, -(-shards // ranks)))
    return StreamCost(
        steps=(fewest, most),
        requests=shards,
        listing_pages=pages,
        connections=busy,
        idle_workers=instances - busy,
        worker_memory=window_bytes + (2 << 20) + _URL * shards,
        state_bytes=instances * (_WORKER_STATE + _HELD_STATE * _HELD),
        rank_shards=min(shards, own, 1 + -(-_HELD // max(1, round(each)))),
    )
