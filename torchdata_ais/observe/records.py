"""What is noted of a batch, in the process that makes it and in the one that takes it: plain structs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from torchdata_ais.store import RequestRecord


class BatchRecord(msgspec.Struct, array_like=True):
    """How one batch was made.

    Batches that are made in less than 25 ms each are counted together, up to 100 ms of them: the last has `wait_s` and
    what follows of them all, the others have nothing there.

    Attributes:
        iteration: The how-manieth iteration of its process's pipe it is of.
        number: Its number in that, from 0.
        begun: When its making began, in seconds since 1970.
        made_s: How long that took.
        keys: Digest of the samples' keys, where the batch has a column ``__key__``; else of key and shard of the last
            sample that was at work: two runs of one order have the same.
        wait_s: Seconds of `made_s` spent waiting for bytes, without `delayed_s`.
        first_byte_s: Seconds until the first byte of the objects opened for it, together.
        requests: Requests that ended meanwhile.
        bytes: Bytes read meanwhile.
        retries: Requests made again meanwhile.
        own_s: Seconds that each stage worked for it, in the order of `Recorded.stages`, without `delayed_s`; empty
            where none is counted.
        delayed_s: Seconds of `made_s` in which it could have gone on and the machine had no processor for it; 0 where
            the system does not count them.
    """

    iteration: int
    number: int
    begun: float
    made_s: float
    keys: int = 0
    wait_s: float = 0.0
    first_byte_s: float = 0.0
    requests: int = 0
    bytes: int = 0
    retries: int = 0
    own_s: list[float] = []
    delayed_s: float = 0.0


class Taken(msgspec.Struct, array_like=True):
    """How one batch came to the training loop.

    Attributes:
        step: The how-manieth batch of this rank's loader it was, from 0.
        worker: Who made it.
        iteration, number: See `BatchRecord`.
        at: When it was taken, in seconds since 1970.
        waited_s: How long the loop had waited for it.
    """

    step: int
    worker: int
    iteration: int
    number: int
    at: float
    waited_s: float


class Doing(msgspec.Struct, array_like=True):
    """What a process does that has been making a batch for seconds.

    Attributes:
        seconds: For how long.
        stage: The stage it stands in.
        reads: Whether that stage reads.
    """

    seconds: float
    stage: str
    reads: bool = False


class Recorded(msgspec.Struct):
    """What one process noted since it last told.

    Attributes:
        pid: The process.
        stages: Names of the stages that were measured, with arguments; the first stage first.
        batches: Batches it made.
        requests: Requests that ended.
        under_way: Those that had not, when it last told.
        doing: What it does, if it has been making a batch for long.
    """

    pid: int
    stages: list[str]
    batches: list[BatchRecord]
    requests: list[RequestRecord]
    under_way: list[RequestRecord] = []
    doing: Doing | None = None

    @staticmethod
    def joined(parts: Iterable[Recorded | None]) -> Recorded | None:
        """Return what the same process told in several parts, the oldest first."""
        known = [part for part in parts if part is not None]
        if len(known) < 2:
            return known[0] if known else None
        batches = [batch for part in known for batch in part.batches]
        requests = [request for part in known for request in part.requests]
        last = known[-1]
        return Recorded(last.pid, last.stages, batches, requests, last.under_way, last.doing)
