"""Chrome trace of a rank.

A rank is a process of the trace. Its tracks: the training loop, with its waits; each worker's batches, with the
stages and the wait for bytes as their arguments; and the requests of each worker, as many tracks as run side by side.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import msgspec

from torchdata_ais._util.files import whole_file
from torchdata_ais.errors import LoaderError
from torchdata_ais.observe.diagnosis.batch_records import BatchRecord, Taken
from torchdata_ais.observe.diagnosis.readiness import RankRecorder
from torchdata_ais.store import RequestRecord

_LOOP = 0
_A_WORKER = 100
"""Tracks of a worker: 1 for its batches, the others for its requests."""


def write_trace(recorder: RankRecorder, path: str | os.PathLike[str]) -> None:
    """Write the records to a file, whole or not at all."""
    recorder.collect()
    summary = recorder.summary
    events = list(trace_events(recorder))
    about = {"rank": summary.rank, "ranks": summary.ranks, "node": summary.node, "clock": "that of the node"}
    write_whole(
        path, msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about})
    )


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file that is there whole or not at all."""
    try:
        with whole_file(Path(path)) as file:
            file.write(data)
    except OSError as error:
        raise LoaderError.at(
            f"{os.fspath(path)}: this cannot be written ({error.strerror or error})",
            todo="look at the folder and the space on its disk; the training is not touched by it",
        ) from error


def trace_events(recorder: RankRecorder) -> Iterator[dict[str, object]]:
    """Yield the events, in the trace-event format."""
    summary = recorder.summary
    rank = summary.rank
    yield _name(
        "process_name", rank, 0, f"rank {rank} of {summary.ranks} on {summary.node} (pid {summary.pid})"
    )
    main = {"pid": 1 + rank, "tid": _thread(rank, _LOOP)}
    yield {"ph": "M", "name": "process_sort_index", **main, "args": {"sort_index": rank}}
    yield _name("thread_name", rank, _LOOP, "training loop")
    taken = list(recorder.taken)
    yield from _waits(rank, taken)
    of_batch = {(one.worker, one.iteration, one.number): one for one in taken}
    made, requests = list(recorder.made), list(recorder.requests)
    for worker in sorted({worker for worker, _ in [*made, *requests]}):
        track = 1 + worker * _A_WORKER
        yield _name("thread_name", rank, track, f"worker {worker}: batches")
        for batch in (batch for number, batch in made if number == worker):
            yield _batch(
                rank, track, batch, of_batch.get((worker, batch.iteration, batch.number)), recorder.stages
            )
        lanes = _lanes(request for number, request in requests if number == worker)
        for lane, request in lanes:
            yield _request(rank, track + 1 + lane, request)
        for lane in sorted({lane for lane, _ in lanes}):
            yield _name("thread_name", rank, track + 1 + lane, f"worker {worker}: requests")


def _waits(rank: int, taken: list[Taken]) -> Iterator[dict[str, object]]:
    for one in taken:
        about = {"step": one.step, "worker": one.worker}
        yield _slice("wait for data", rank, _LOOP, one.at - one.waited_s, one.waited_s, about)
    for one, following in pairwise(taken):
        loop_s = following.at - following.waited_s - one.at
        if following.step == one.step + 1 and following.iteration == one.iteration:
            yield _slice("loop", rank, _LOOP, one.at, max(0.0, loop_s), {"step": one.step})


def _batch(
    rank: int, track: int, batch: BatchRecord, taken: Taken | None, stages: list[str]
) -> dict[str, object]:
    about: dict[str, object] = {
        "keys": f"{batch.keys:016x}",
        "read_ms": _ms(batch.wait_s),
        "first_byte_ms": _ms(batch.first_byte_s),
        "requests": batch.requests,
        "bytes": batch.bytes,
        "retries": batch.retries,
        "no_processor_ms": _ms(batch.delayed_s),
        "stages_ms": {name: _ms(own_s) for name, own_s in zip(stages, batch.own_s, strict=False) if own_s},
    }
    name = "batch"
    if taken is not None:
        name = f"batch of step {taken.step}"
        about |= {"step": taken.step, "queued_ms": _ms(max(0.0, taken.at - batch.begun - batch.made_s))}
    return _slice(name, rank, track, batch.begun, batch.made_s, about)


def _request(rank: int, track: int, request: RequestRecord) -> dict[str, object]:
    about: dict[str, object] = {
        "object": request.name,
        "host": request.host,
        "from_byte": request.start,
        "bytes": request.bytes,
        "first_byte_ms": None if request.first_byte_s is None else _ms(request.first_byte_s),
        "read_ms": _ms(request.read_s),
        "attempt": request.attempt,
    }
    if request.error:
        about["error"] = request.error
    short = request.name.rpartition("/")[2] or request.name
    return _slice(short, rank, track, request.begun, request.took_s or 0.0, about)


def _lanes(requests: Iterable[RequestRecord]) -> list[tuple[int, RequestRecord]]:
    """Return each request with the first track that is free when it begins."""
    ends: list[float] = []
    placed = []
    for request in sorted(requests, key=lambda one: one.begun):
        free = (lane for lane, end in enumerate(ends) if end <= request.begun)
        lane = next(free, min(len(ends), _A_WORKER - 3))
        ends[lane:] = [request.begun + (request.took_s or 0.0), *ends[lane + 1 :]]
        placed.append((lane, request))
    return placed


def _slice(
    name: str, rank: int, track: int, begun: float, seconds: float, about: Mapping[str, object]
) -> dict[str, object]:
    # Whole microseconds, so that the next bar of a track starts at the end of the one before.
    begin, end = int(begun * 1e6), int((begun + seconds) * 1e6)
    return {
        "ph": "X", "name": name, "cat": "data", "pid": 1 + rank, "tid": _thread(rank, track),
        "ts": begin, "dur": max(0, end - begin), "args": about,
    }  # fmt: skip


def _name(kind: str, rank: int, track: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": kind, "pid": 1 + rank, "tid": _thread(rank, track), "args": {"name": name}}


def _thread(rank: int, track: int) -> int:
    """Return the number of a track's thread, from 1.

    Viewers take the thread with the process's number for its main thread, the training loop. Those of system traces
    take process 0 and thread 0 for those of an idle processor.

    Example:
        >>> [_thread(1, track) for track in (0, 1, 2, 101)]
        [2, 1, 3, 102]
    """
    process = 1 + rank
    if track == _LOOP:
        return process
    return 1 + track if 1 + track != process else 1


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
