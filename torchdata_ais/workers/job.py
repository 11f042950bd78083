"""What a process is started with."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from typing import Any, Protocol

from torchdata_ais.workers.pulse import Pulse

DISPATCHER = -1
"""The number of the dispatching process among the workers."""


class Part(Protocol):
    """The part of a pipe that one process runs, and what the loader does with it there. It travels by pickle."""

    def open(self) -> Any:
        """Return the pipe."""

    def prepare(self, pipe: Any) -> Any:
        """Make the pipe that of this process, once; return the one to run."""

    def begin(self, pipe: Any, reset: Any) -> Any:
        """Begin an epoch as `reset` says, which came by `Pool.reset`; return the pipe to iterate."""

    def pause(self, pipe: Any) -> None:
        """Have its threads make nothing more."""

    def resume(self, pipe: Any) -> None:
        """Let them go on."""


@dataclass
class Job:
    """What a process is started with.

    Attributes:
        part: What it runs.
        worker_id: Its number, or `DISPATCHER`.
        source: A worker's connection to the dispatching process, if there is one.
        outlets: The dispatching process's connections to the workers, in order.
        stall_after: Seconds an item, or a function of the user, may take; None is for ever.
        records: Whether to note a record a batch.
        flight: With `records`, where the process answers who asks what it is doing; made at launch.
        pulse: What tells the main process that this one still runs, made at launch if `stall_after` is given.
        control: The connection to the main process, made at launch.
        main_pid: The process to live and die with.
    """

    part: Part
    worker_id: int
    source: socket.socket | None = None
    outlets: list[socket.socket] = field(default_factory=list)
    stall_after: float | None = None
    records: bool = False
    flight: socket.socket | None = None
    pulse: Pulse | None = None
    control: socket.socket | None = None
    main_pid: int = field(default_factory=os.getpid)

    @property
    def name(self) -> str:
        """How errors name this process."""
        return "dispatching process" if self.worker_id == DISPATCHER else f"worker process {self.worker_id}"
