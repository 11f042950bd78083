"""Flight record."""

from __future__ import annotations

import faulthandler
import os
import tempfile
import time

import msgspec

from torchdata_ais._util.files import open_regular
from torchdata_ais._util.formatting import time_text
from torchdata_ais.errors import UsageError
from torchdata_ais.observe.diagnosis.batch_records import BatchRecord, BatchRecorder, Taken
from torchdata_ais.observe.diagnosis.rank_summary import RankSummary
from torchdata_ais.store import RequestRecord, journal

_VERSION = 1
_LONG_S = 5.0


class ProcessPart(msgspec.Struct):
    """One process.

    Attributes:
        stacks: The stacks of its threads, as faulthandler writes them.
        under_way: Requests that had not ended; `took_s` is the time so far.
        ended: The last requests that had.
        stages: Names of the stages, as the batches' `own_s` has them.
        batches: The last batches it made.
        trouble: Why there is no more of it.
    """

    name: str
    pid: int
    stacks: str = ""
    under_way: list[RequestRecord] = []
    ended: list[RequestRecord] = []
    stages: list[str] = []
    batches: list[BatchRecord] = []
    trouble: str = ""


class Flight(msgspec.Struct):
    """Activity of one rank.

    Attributes:
        why: The event.
        at: When, in seconds since 1970 by the clock of its node.
        taken: The last batches that came to the training loop.
        processes: Its processes, the main one first.
    """

    version: int
    why: str
    at: float
    rank: RankSummary
    taken: list[Taken]
    processes: list[ProcessPart]


def stacks_here() -> str:
    """Return the stacks of all threads; empty where no file can be made."""
    try:
        with tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read().decode(errors="replace")
    except OSError:  # the disk is full, or there are no descriptors left: maybe the reason for the record
        return ""


def part_of(name: str, recorder: BatchRecorder | None = None) -> ProcessPart:
    """Return the activity of this process."""
    part = ProcessPart(name, os.getpid(), stacks_here())
    part.under_way = journal().under_way()
    part.ended = journal().since(0)[0][-64:]
    if recorder is not None:
        part.stages, part.batches = recorder.stages, list(recorder.last)
    return part


def read_flight(path: str | os.PathLike[str]) -> Flight:
    """Return the content of the file."""
    try:
        with open_regular(path) as file:
            flight = msgspec.json.decode(file.read(), type=Flight)
    except OSError as error:
        raise UsageError.at(
            f"{os.fspath(path)}: this cannot be read ({error.strerror or error})", todo="check the path"
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError.at(
            f"{os.fspath(path)}: this is no flight record, or only a part of one ({error})",
            todo="pass a file flight-*.json of a run_dir=",
        ) from error
    if flight.version != _VERSION:
        raise UsageError.at(
            f"{os.fspath(path)}: this is a flight record of version {flight.version}, this package reads {_VERSION}",
            todo="read it with the version that wrote it",
        )
    return flight


def explain_flight(flight: Flight) -> list[str]:
    """Return the diagnosis as sentences: the stalled rank and its wait."""
    rank = flight.rank
    try:
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(flight.at))
    except (OverflowError, ValueError, OSError):
        when = "at no time of day"
    begin = f"rank {rank.rank} of {rank.ranks} on {rank.node} (pid {rank.pid}), {when} by its clock"
    lines = [f"{begin}, after {rank.step} batches, in epoch {rank.epoch}"]
    lines += f"why: {flight.why}".splitlines()  # torch adds lines to an error of a worker
    if rank.waiting_s > _LONG_S / 5:
        lines.append(f"its training loop had waited {time_text(rank.waiting_s)} for the next batch")
    elif rank.step and not _is_stall(flight):
        lines.append("its training loop was not waiting for data")
    for part in flight.processes:
        lines += _of_process(part, flight.at)
    lines.append(_conclusion(flight))
    return lines


def _of_process(part: ProcessPart, at: float) -> list[str]:
    lines = [f"{part.name} (pid {part.pid}):"]
    if part.trouble:
        return [*lines, f"  {part.trouble}"]
    oldest = sorted(part.under_way, key=lambda one: -(one.took_s or 0.0))[:8]
    lines += [f"  {_request_text(request)}" for request in oldest]
    failed = [request for request in part.ended if request.error]
    if failed:
        last = failed[-1]
        lines.append(
            f"  {len(failed)} of the last {len(part.ended)} requests failed, the last: {last.error} of {last.name} at "
            f"{last.host}"
        )
    if part.batches:
        last_batch = part.batches[-1]
        ago = time_text(max(0.0, at - last_batch.begun - last_batch.made_s))
        lines.append(f"  its last batch was made {ago} before, in {time_text(last_batch.made_s)}")
    where = _stands(part.stacks)
    if where:
        lines.append(f"  its main thread stood in {where}")
    return lines


def _request_text(request: RequestRecord) -> str:
    since = time_text(request.took_s or 0.0)
    what = f"{request.name} from byte {request.start}"
    if request.first_byte_s is None:
        return f"{request.host} has not answered for {since}: {what}, attempt {request.attempt}"
    return f"under way for {since} from {request.host}: {what}, {request.bytes} bytes came, attempt {request.attempt}"


def _stands(stacks: str) -> str:
    """Return the innermost user line of the last thread by faulthandler."""
    threads = stacks.split("\n\n")
    lines = [line.strip() for line in threads[-1].splitlines() if line.strip().startswith("File ")]
    for line in lines:
        if "torchdata_ais" not in line and "/lib/python" not in line:
            return line.removeprefix("File ")
    return lines[0].removeprefix("File ") if lines else ""


def _conclusion(flight: Flight) -> str:
    silent = [part for part in flight.processes if part.trouble]
    if silent:
        return f"look at {silent[0].name} (pid {silent[0].pid}) first: {silent[0].trouble}"
    waiting = [
        (request.took_s or 0.0, part, request)
        for part in flight.processes
        for request in part.under_way
        if request.first_byte_s is None and (request.took_s or 0.0) > 1.0
    ]
    if waiting:
        waited_s, part, request = max(waiting, key=lambda one: one[0])
        return f"look at {request.host} first: {part.name} has waited {time_text(waited_s)} there for {request.name}"
    if flight.rank.waiting_s > 1.0 or _is_stall(flight):
        return _late_work(flight)
    return "loading was not waited for: look at the stacks of the main process, and at the other ranks"


def _is_stall(flight: Flight) -> bool:
    """Return whether an error ended the wait: `waiting_s` is 0 again then."""
    return flight.why.startswith("StallError")


def _late_work(flight: Flight) -> str:
    """Return the stalled work that the loop waits for, without a late request."""
    at_work = [(one.doing.seconds, one.doing.stage, one.worker) for one in flight.rank.workers if one.doing]
    workers = {part.name: part for part in flight.processes[1:]}
    if at_work:
        seconds, stage, number = max(at_work)
        name = f"worker process {number}" if workers else "the main process"
        if stage:
            return f"no request is late: {name} has been at one batch for {time_text(seconds)}, and stands in {stage}"
    whose = "workers" if workers else "main process"
    return f"no request is late: look at the stacks of the {whose}, where a function of the pipe takes long"
