"""The patience with a process that is stopped, and starts again."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from helpers.waiting import until

from torchdata_ais.errors import StallError
from torchdata_ais.observe.diagnosis.worker_queries import state_of
from torchdata_ais.workers.heartbeat import Patience


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.communicate()


def switch(process: subprocess.Popen[bytes], stopped: bool) -> None:
    process.send_signal(signal.SIGSTOP if stopped else signal.SIGCONT)
    until(lambda: (state_of(process.pid) == "T") == stopped)


def test_the_silence_of_a_process_counts_from_its_last_sign_of_life(
    process: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "torchdata_ais")
    patience = Patience("worker 3", 3, process.pid, None, None)
    for _ in range(3):  # twice 25 s would be too long without the life between
        switch(process, stopped=True)
        patience.waited(25.0)
        assert patience.silent_s == 25.0
        switch(process, stopped=False)
        patience.waited(5.0)
        assert patience.silent_s == 0.0
    assert [record.args for record in caplog.records] == [("worker 3", process.pid)] * 3
    switch(process, stopped=True)
    patience.waited(29.9)
    with pytest.raises(StallError, match=r"^Worker 3 .* no sign of life for 30 s: it is stopped") as caught:
        patience.waited(0.1)
    assert caught.value.place == {"worker": 3, "pid": process.pid, "state": "T"}
