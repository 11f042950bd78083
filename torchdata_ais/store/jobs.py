"""Wait for jobs of the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from torchdata_ais.errors import AISError, StallError
from torchdata_ais.store import Cluster, StoreOptions, cluster_options
from torchdata_ais.urls import no_cluster

_FIRST_POLL_S, _POLL_S = 0.05, 2.0


class JobError(AISError, RuntimeError):
    """A job on the cluster failed, was aborted, or has a wrong result."""


class Progress(NamedTuple):
    """Progress of a job: the present activity, and units (objects) done.

    `total` is 0 if it is not known.
    """

    phase: str
    done: int
    total: int


class SizedProgress(Progress):
    """Progress in units and, as `size`, in bytes."""

    size: int

    def __new__(cls, phase: str, done: int, total: int, size: int) -> SizedProgress:
        """Return the three of `Progress`, with `size`."""
        made = super().__new__(cls, phase, done, total)
        made.size = size
        return made


OnProgress = Callable[[Progress], object]
"""Called whenever a job got on."""


class JobState(NamedTuple):
    """One observation of a job; `error` is why it failed, or ""."""

    progress: Progress
    finished: bool
    error: str = ""


def wait_for_job(
    look: Callable[[], JobState],
    name: str,
    *,
    progress: OnProgress | None = None,
    stall_timeout: float = 600.0,
) -> JobState:
    """Wait until a job has ended, and return its last state.

    Raises:
        JobError: The job failed.
        StallError: Nothing moved for `stall_timeout` seconds. The job itself continues.
    """
    last: Progress | None = None
    most: dict[str, int] = {}  # by phase: a number that goes back and forth is not progress
    moved = time.monotonic()
    pause = _FIRST_POLL_S
    while True:
        state = look()
        phase, done, _ = state.progress
        if done > most.get(phase, -1):
            most[phase], moved = done, time.monotonic()
        if state.progress != last:
            last = state.progress
            if progress is not None:
                progress(state.progress)
        if state.error:
            raise JobError.at(f"{name} failed: {state.error}", todo="look at the log of the targets")
        if state.finished:
            return state
        if time.monotonic() - moved > stall_timeout:
            raise StallError.at(
                f"{name} made no progress for {stall_timeout:g} s; it stands at {last.phase if last else 'nothing'}",
                todo="look at the cluster; the job was not stopped; raise stall_timeout if objects are very large",
            )
        time.sleep(pause)
        pause = min(_POLL_S, pause * 1.5)


def known_cluster(cluster: Cluster) -> StoreOptions:
    """Return how to reach `cluster`.

    Raises:
        UsageError: None is known.
    """
    options = cluster_options(cluster)
    if not options.endpoint:
        raise no_cluster()
    return options
