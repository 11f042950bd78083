"""Jobs: work that is done while its request waits, in AIStore's forms.

Work that takes long continues after the answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone

from .names import new_id

# Kinds of jobs that wait for more work, and report idle rather than an end, as in AIStore.
IDLE_KINDS = frozenset(
    ("copy-listrange", "etl-listrange", "archive", "download", "list", "get-batch", "put-copies")
)
PATIENCE_S = 5.0  # a request waits so long for its job: well below the SDK's timeout of 20 s
BATCH_KIND = "get-batch"
BATCH_LINGERS_S = 100.0  # this job lives on after its last request; on a real cluster 90 to 120 s
NEVER = "0001-01-01T00:00:00Z"


def bucket_json(name: str) -> dict[str, object]:
    """A bucket, or no bucket, as AIStore writes it in JSON."""
    return {"name": name, "provider": "ais" if name else "", "namespace": {"uuid": "", "name": ""}}


@dataclass(slots=True)
class Job:
    """One piece of work, finished when `ended_ns` is not 0."""

    id: str
    kind: str
    bucket: str = ""
    source: str = ""
    to: str = ""
    started_ns: int = 0
    ended_ns: int = 0
    objects: int = 0
    bytes: int = 0
    files: int = 0
    created: int = 0
    errors: list[str] = field(default_factory=list)
    object_errors: list[dict[str, object]] = field(default_factory=list)
    aborted: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, size: int) -> None:
        """Count one object of so many bytes; from any thread."""
        with self._lock:
            self.objects += 1
            self.bytes += size

    def abort(self) -> None:
        """Let its work end before the next object."""
        self.aborted = self.aborted or not self.ended_ns

    @property
    def error(self) -> str:
        """All errors in one line, or nothing."""
        return "; ".join(self.errors[:4])

    def status(self) -> dict[str, object]:
        """The answer to the query of its status."""
        return {
            "kind": self.kind,
            "uuid": self.id,
            "err": self.error,
            "end_time": self.ended_ns,
            "aborted": self.aborted,
        }

    def snapshot(self) -> dict[str, object]:
        """One target's part of the answer to the query of snapshots."""
        idle = self.kind in IDLE_KINDS
        return {
            "ext": None,
            "start-time": rfc3339(self.started_ns),
            "end-time": NEVER if idle and not self.aborted else rfc3339(self.ended_ns),
            "bck": bucket_json(self.bucket),
            "src-bck": bucket_json(self.source),
            "dst-bck": bucket_json(self.to),
            "id": self.id,
            "kind": self.kind,
            "ctlmsg": "",
            "abort-err": "",
            "err": self.error,
            "glob.id": "0",
            "stats": {
                "loc-objs": str(self.objects),
                "loc-bytes": str(self.bytes),
                "out-objs": "0",
                "out-bytes": "0",
                "in-objs": "0",
                "in-bytes": "0",
            },
            "aborted": self.aborted,
            "is_idle": bool(self.ended_ns),
        }


class Jobs:
    """The jobs of the cluster by id, in the order of their start."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._batch_until = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def run(
        self, kind: str, bucket: str = "", source: str = "", to: str = "", *, prefix: str = ""
    ) -> Iterator[Job]:
        """Record the work in the block as one job, unless it raises."""
        job = Job(prefix + new_id(), kind, bucket, source, to, time.time_ns())
        yield job
        job.ended_ns = time.time_ns()
        self._jobs[job.id] = job

    def start(self, job: Job, work: Callable[[], None]) -> Job:
        """Do `work` in a thread; return when it is done, or after a while."""
        job.started_ns = time.time_ns()
        self._jobs[job.id] = job

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - after any error the job must come to an end
                job.errors.append(str(error) or type(error).__name__)
                job.aborted = True
            finally:
                job.ended_ns = time.time_ns()

        thread = threading.Thread(target=run, name=f"job-{job.id}", daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        return job

    def for_batch(self, bucket: str) -> Job:
        """Return the job of GetBatch, which stays for a while after each request."""
        with self._lock:
            self._end_idle()
            job = next((one for one in self.select(kind=BATCH_KIND) if not one.ended_ns), None)
            if job is None:
                job = Job(f"gbt-{new_id()}", BATCH_KIND, bucket, started_ns=time.time_ns())
                self._jobs[job.id] = job
            self._batch_until = time.monotonic() + BATCH_LINGERS_S
            return job

    def running(self, kind: str = "") -> list[Job]:
        """Return the jobs that have not ended."""
        with self._lock:
            self._end_idle()
        return [job for job in self.select(kind=kind) if not job.ended_ns]

    def _end_idle(self) -> None:
        """End the job of GetBatch if it was unused for a while, or was aborted."""
        for job in self.select(kind=BATCH_KIND):
            if not job.ended_ns and (job.aborted or time.monotonic() > self._batch_until):
                job.ended_ns = time.time_ns()

    def get(self, job_id: str) -> Job | None:
        """Return a job by its id."""
        return self._jobs.get(job_id)

    def select(self, job_id: str = "", kind: str = "") -> list[Job]:
        """Return the jobs of an id, of a kind, or all."""
        return [job for job in list(self._jobs.values()) if job_id in ("", job.id) and kind in ("", job.kind)]

    def clear(self) -> None:
        """Forget all jobs."""
        self._jobs.clear()


def rfc3339(time_ns: int) -> str:
    """A time as AIStore writes it; 0 is Go's zero time."""
    if not time_ns:
        return NEVER
    whole = datetime.fromtimestamp(time_ns // 1_000_000_000, tz=timezone.utc)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{time_ns % 1_000_000_000:09d}Z"
