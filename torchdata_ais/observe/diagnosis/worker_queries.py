"""Queries to workers.

Each worker answers over a separate socket, in a thread that does nothing else: the thread that makes batches may hang
in a function of the user. On a busy machine an answer may come after the wait for it has ended. So questions and
answers are numbered, and a worker keeps its records until it learns that they arrived. A process that does not answer
is described by the data of the system.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from torchdata_ais.observe.diagnosis.batch_records import MOST_UNSENT, BatchRecorder, Recorded
from torchdata_ais.observe.diagnosis.flight_record import ProcessPart, part_of

_ANSWER_S = 2.0
_QUESTION = struct.Struct("<cII")
"""A query: its kind, its number, and the number of the last received answer of that kind."""
_ANSWER = struct.Struct("<II")
"""The number of the question, and how many bytes follow."""
_DOING, _NEW = b"?", b"+"


class Answering:
    """Answers queries about its activity in a worker.

    Attributes:
        recorder: Has the records of its batches, once it makes some.
    """

    def __init__(self, sock: socket.socket, name: str) -> None:
        self._sock, self._name = sock, name
        self._told: tuple[int, Recorded | None] = (0, None)
        self.recorder: BatchRecorder | None = None
        self._thread = threading.Thread(target=self._answer, name="torchdata_ais.flight", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait until the main process has closed its end."""
        self._thread.join(timeout_s)

    def _answer(self) -> None:
        try:
            while question := self._sock.recv(_QUESTION.size, socket.MSG_WAITALL):
                what, number, heard = _QUESTION.unpack(question)
                part = part_of(self._name, self.recorder) if what == _DOING else self._noted(number, heard)
                data = msgspec.msgpack.encode(part)
                self._sock.sendall(_ANSWER.pack(number, len(data)) + data)
        except OSError:
            return  # the main process is gone, and this one ends with it

    def _noted(self, number: int, heard: int) -> Recorded | None:
        last, told = self._told
        new = None if self.recorder is None else self.recorder.take()
        noted = new if heard == last else Recorded.joined([told, new])
        if noted is not None:
            del noted.batches[:-MOST_UNSENT]
        self._told = number, noted
        return noted


class Asked:
    """The main process's end of the socket of a worker that answers."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._number = 0
        self._heard = 0  # the last question for records that was answered
        self._came = bytearray()

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def ask(self, question: bytes) -> bool:
        """Send a query; False if no worker can receive it."""
        self._number += 1
        try:
            asked = _QUESTION.pack(question, self._number, self._heard)
            return self._sock.send(asked, socket.MSG_DONTWAIT) == len(asked)
        except OSError:
            return False

    def answer(self, deadline: float) -> ProcessPart | None:
        """Return its activity, if the answer comes in time."""
        doing: ProcessPart | None = self._answer_of(deadline, ProcessPart)
        return doing

    def records(self, deadline: float) -> Recorded | None:
        """Return its new records, if the answer comes in time."""
        noted: Recorded | None = self._answer_of(deadline, Recorded | None)
        if noted is not None:
            self._heard = self._number
        return noted

    def _answer_of(self, deadline: float, kind: object) -> Any:
        try:
            while True:
                number, data = self._next_frame(deadline)
                if number == self._number:  # else a late answer to an earlier query, which is dropped
                    return msgspec.msgpack.decode(data, type=kind)
        except (OSError, EOFError, ValueError, msgspec.MsgspecError):  # too late, closed, or no answer
            return None

    def _next_frame(self, deadline: float) -> tuple[int, bytes]:
        """Return the next answer and its question's number, if in time."""
        came = self._came
        poll = select.poll()  # not select(), which knows no descriptor above 1023
        poll.register(self._sock, select.POLLIN)
        while True:
            if len(came) >= _ANSWER.size:
                number, size = _ANSWER.unpack_from(came)
                end = _ANSWER.size + size
                if len(came) >= end:
                    data = bytes(came[_ANSWER.size : end])
                    del came[:end]
                    return number, data
            if not poll.poll(1000 * max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            more = self._sock.recv(1 << 16)
            if not more:
                raise EOFError
            came += more


Worker = tuple[str, int, Asked]
"""Name, process id and connection of a worker."""


def ask_all(workers: Iterable[Worker]) -> list[ProcessPart]:
    """Return the activity of each worker, within two seconds for all."""
    asked = [(name, pid, line, line.ask(_DOING)) for name, pid, line in workers]
    deadline = time.monotonic() + _ANSWER_S
    parts = ((name, pid, line.answer(deadline) if was_sent else None) for name, pid, line, was_sent in asked)
    return [ProcessPart(name, pid, trouble=_seen(pid)) if part is None else part for name, pid, part in parts]


def ask_records(workers: Iterable[Worker]) -> list[Recorded | None]:
    """Return each worker's new records; None for one that does not answer."""
    asked = [(line, line.ask(_NEW)) for _, _, line in workers]
    deadline = time.monotonic() + _ANSWER_S
    return [line.records(deadline) if was_sent else None for line, was_sent in asked]


def state_of(pid: int | None) -> str | None:
    """Return the state letter that `ps` shows; None without /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def _seen(pid: int) -> str:
    """Return the system's data on a process that does not answer."""
    status = state_of(pid)
    if status is None:
        return "it has ended" if Path("/proc/self").exists() else "it gave no answer"
    try:
        waits = Path(f"/proc/{pid}/wchan").read_text().strip("0\n ")
    except OSError:
        waits = ""
    known = {
        "T": "it is stopped by a signal (kill -CONT lets it go on)",
        "t": "it is held by a debugger",
        "D": "it waits for a disk or a network file system",
        "Z": "it has ended",
        "R": "it runs, and lets no other thread of its own run: one long call of a native library",
    }
    text = known.get(status, "it sleeps, and lets no other thread of its own run")
    return f"it gave no answer within {_ANSWER_S:g} s: {text}" + (
        f"; in the kernel it is in {waits}" if waits else ""
    )
