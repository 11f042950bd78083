"""``torchdata-ais demo``, as a process."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

# A shell lets programs in the background ignore Ctrl-C; here it must count.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from torchdata_ais.cli import main; main()"
)
COMMAND = [sys.executable, "-W", "error", "-c", PROGRAM, "demo"]


@contextmanager
def demo(*words: str) -> Iterator[subprocess.Popen[str]]:
    """The running command; nothing of it is left afterwards."""
    process = subprocess.Popen(
        [*COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)


def read_until(process: subprocess.Popen[str], pattern: str, seconds: float = 60) -> str:
    """Read the output up to something that matches; returns all of it."""
    assert process.stdout is not None
    pipe = process.stdout.fileno()  # below the buffers of `stdout`, which `select` cannot see
    text = ""
    end = time.monotonic() + seconds
    while not re.search(pattern, text, re.MULTILINE):
        assert time.monotonic() < end, text
        if select.select([pipe], [], [], 0.5)[0]:
            part = os.read(pipe, 65536).decode()
            assert part, text
            text += part
    return text


def group_is_gone(process: subprocess.Popen[str], seconds: float = 10) -> bool:
    """Whether no process of the session is left, the embedded cluster's own session not counted."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_the_demo_trains_on_every_sample_once_and_stays_up_when_told_to() -> None:
    from aistore.sdk import Client

    with demo("--samples", "1500", "--epochs", "4", "--keep") as process:
        text = read_until(process, r"torchdata-ais inspect .*\n", seconds=150)
        lines = text.splitlines()
        assert re.match(r"cluster   http://127\.0\.0\.1:\d+, embedded, 2 targets$", lines[0])
        assert re.match(r"data      1500 samples drawn, .* as 12 \+ 3 shards of \d+ to \d+ samples", lines[1])
        epochs = [line for line in lines if line.startswith("epoch ")]
        assert len(epochs) == 4
        for line in epochs:
            assert re.search(
                r"loss \d.*accuracy [01]\.\d+, \d+ samples/s, 1200 \+ 300 samples each exactly once", line
            )
        assert re.search(r"^passed    accuracy [01]\.\d+ on shards the model never saw", text, re.MULTILINE)
        endpoint = re.search(r"export AIS_ENDPOINT=(\S+)", text)
        assert endpoint
        assert len(Client(endpoint[1]).bucket("pets").list_all_objects()) == 15
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        assert group_is_gone(process)


@pytest.mark.ci
@pytest.mark.parametrize("interrupted", [pytest.param(False, marks=pytest.mark.ci), True])
def test_the_bucket_on_a_given_cluster_is_removed(ais_local_cluster: Any, interrupted: bool) -> None:
    client = ais_local_cluster.client()

    def buckets() -> list[str]:
        return [bucket.name for bucket in client.cluster().list_buckets() if "pets-demo" in bucket.name]

    with demo("--samples", "300", "--epochs", "1", "--endpoint", ais_local_cluster.endpoint) as process:
        read_until(process, r"^data ")
        assert len(buckets()) == 1
        if interrupted:
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == (130 if interrupted else 1), err
        assert err.startswith("error: The accuracy") != interrupted
        assert buckets() == []
        assert group_is_gone(process)
