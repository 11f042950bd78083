"""The process that an embedded cluster runs in: started, steered by lines of JSON, ended."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from torchdata_ais.errors import ConnectError, UsageError

_SERVER = Path(__file__).with_name("server") / "__main__.py"
_STOP_DEADLINE_S = 5.0


@dataclass(frozen=True)
class Secret:
    """A text that no repr shows, nor a traceback with the values of its variables."""

    text: str = field(repr=False)

    def reveal(self) -> str:
        """Return it."""
        return self.text


class ServerProcess:
    """The process of one cluster. It ends with the one that started it, however that ends.

    Args:
        log: File for what it prints.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._owner = os.getpid()
        self._lock = threading.Lock()
        with os.fdopen(
            os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb"
        ) as stderr:
            self._process = subprocess.Popen(  # noqa: S603  our own file under our own interpreter
                [sys.executable, str(_SERVER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                bufsize=1,
                start_new_session=True,  # Ctrl-C in a terminal goes to the parent only
            )

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    @property
    def is_ours(self) -> bool:
        """Whether this process started it, and is no fork of the one that did."""
        return self._owner == os.getpid()

    @property
    def running(self) -> bool:
        """Whether it is alive."""
        if self.is_ours:
            return self._process.poll() is None
        # In a fork it is no child, and cannot be waited for: but its end of the pipe is closed when it has ended.
        poll = select.poll()
        poll.register(_open(self._process.stdout), 0)
        return not poll.poll(0)

    def ask(self, value: dict[str, Any], deadline_s: float) -> Any:
        """Send one line of JSON and return the answer.

        Raises:
            UsageError: This process is a fork of the one that started it.
            ConnectError: It has ended, or does not answer in time.
        """
        if not self.is_ours:
            raise UsageError.at(
                "a fork cannot steer the cluster", todo="Do it in the process that started it"
            )
        stdin, stdout = _open(self._process.stdin), _open(self._process.stdout)
        with self._lock:
            try:
                print(json.dumps(value, default=Secret.reveal), file=stdin, flush=True)
            except OSError as cause:
                raise self._died() from cause
            end = time.monotonic() + deadline_s
            while not select.select([stdout], [], [], 0.1)[0]:
                if not self.running:
                    raise self._died()
                if time.monotonic() > end:
                    raise ConnectError.at(f"the cluster's process did not answer within {deadline_s:g} s")
            line = stdout.readline()
        if not line:
            raise self._died()
        return json.loads(line)

    def _died(self) -> ConnectError:
        tail = self._log.read_text(errors="replace")[-2000:].strip() if self._log.exists() else ""
        code = self._process.wait(_STOP_DEADLINE_S)
        return ConnectError.at(f"the cluster's process has ended with status {code}: {tail or 'no output'}")

    def end(self) -> None:
        """End it, by force if it takes long."""
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what was buffered has no reader any more
                _open(pipe).close()
        try:
            self._process.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _open(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None  # as asked for
    return pipe
