"""``torchdata-ais serve``, as a process."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

# A shell lets programs in the background ignore Ctrl-C; here it must count.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from torchdata_ais.cli import main; main()"
)
COMMAND = [sys.executable, "-c", PROGRAM, "serve"]


@contextmanager
def serving(*words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A running server and the environment it printed; nothing of it is left afterwards."""
    process = subprocess.Popen(
        [*COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        lines = process.stdout.readline() + process.stdout.readline()
        found = re.fullmatch(
            r"export AIS_ENDPOINT=(http://127\.0\.0\.1:\d+)\nexport AIS_AUTHN_TOKEN=([\w-]{32,})\n", lines
        )
        assert found, lines
        yield process, {"AIS_ENDPOINT": found[1], "AIS_AUTHN_TOKEN": found[2]}
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)


def refused(endpoint: str) -> bool:
    host, port = endpoint.removeprefix("http://").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.ci)])
def test_serve_answers_the_sdk_and_stops_cleanly_on_a_signal(number: signal.Signals) -> None:
    from aistore.sdk import Client

    with serving("--port", "0", "--targets", "1") as (process, environment):
        endpoint = environment["AIS_ENDPOINT"]
        client = Client(endpoint)
        client.bucket("b").create().object("o").get_writer().put_content(b"cat")
        assert client.bucket("b").object("o").get_reader().read_all() == b"cat"
        process.send_signal(number)
        assert process.wait(60) == 0
        assert refused(endpoint)
        assert process.stderr is not None
        said = process.stderr.read()
        assert "Traceback" not in said
        assert environment["AIS_AUTHN_TOKEN"] not in said
        folder = re.search(r"data in (\S+);", said)
        assert folder
        assert not Path(folder[1]).exists()


def test_a_port_in_use_is_an_error_that_says_so() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "serve", "--port", port],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"error: Port {port} on 127.0.0.1 is in use" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.ci
def test_a_root_keeps_the_data_for_the_next_start(tmp_path: object) -> None:
    from aistore.sdk import Client

    for attempt in range(2):
        with serving("--port", "0", "--root", str(tmp_path)) as (process, environment):
            bucket = Client(environment["AIS_ENDPOINT"]).bucket("b")
            if attempt == 0:
                bucket.create().object("o").get_writer().put_content(b"cat")
            assert bucket.object("o").get_reader().read_all() == b"cat"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


@pytest.mark.ci
@pytest.mark.timeout(180)
def test_another_process_makes_transforms_with_what_serve_printed_only(tmp_path: Path) -> None:
    (tmp_path / "same_same.py").write_text("def same(sample):\n    return sample\n")
    program = "from torchdata_ais.cli import main; main()"
    command = [sys.executable, "-c", program, "etl", "init", "same-same", "same_same:same"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AIS_")}
    clean["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    with serving("--port", "0", "--targets", "1", "--etl") as (_, environment):
        where = {"AIS_ENDPOINT": environment["AIS_ENDPOINT"]}
        refused = subprocess.run(
            command, env=clean | where, capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        assert refused.returncode == 1
        assert "401" in refused.stderr
        assert "AIS_AUTHN_TOKEN" in refused.stderr
        made = subprocess.run(
            command, env=clean | environment, capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        assert made.returncode == 0, made.stderr
        assert (
            environment["AIS_AUTHN_TOKEN"] not in refused.stdout + refused.stderr + made.stdout + made.stderr
        )
