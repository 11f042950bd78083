"""Ctrl-C at any moment of a command: one line at most, exit code 130, nothing left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchdata_ais.testing import write_shard

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

# What the console script does, in a file of its name; in the background of a shell Ctrl-C would be ignored.
SCRIPT = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "import sys\n"
    "from torchdata_ais.cli import main\n"
    "sys.exit(main())\n"
)


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    """A cluster that takes requests and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def started(folder: Path, *words: str, endpoint: str = "http://127.0.0.1:9") -> subprocess.Popen[str]:
    script = folder / "torchdata-ais"
    script.write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, str(script), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "AIS_ENDPOINT": endpoint},
        start_new_session=True,
    )


def loaded(process: subprocess.Popen[str], library: str) -> bool:
    try:
        return library in Path(f"/proc/{process.pid}/maps").read_text()
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition() and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.002)


# Libraries in the order in which they are loaded, and how long after that.
MOMENTS = [
    (library, delay)
    for library, delays in {
        "libtorch": (0.0, 0.3),
        "_multiarray_umath": (0.0, 0.2),
        "libtorch_python": (0.0, 0.5, 1.3),
        "_xxhash": (0.0, 0.1),
    }.items()
    for delay in delays
]


WITHOUT_TORCH = [("_ssl", 0.0), ("_ssl", 0.05), ("_xxhash", 0.0), ("_xxhash", 0.02), ("_xxhash", 0.1)]


@pytest.mark.parametrize(
    ("words", "moments"),
    [
        pytest.param(("lint", "{shard}"), MOMENTS, id="lint", marks=pytest.mark.ci),
        pytest.param(("ls", "ais://b"), WITHOUT_TORCH, id="ls", marks=pytest.mark.ci),
    ],
)
def test_ctrl_c_while_a_command_begins_prints_one_line_at_most(
    words: tuple[str, ...], moments: list[tuple[str, float]], tmp_path: Path, silent: str
) -> None:
    shard = write_shard(tmp_path / "s.tar", {"a.txt": b"1"})
    interrupted = 0
    for library, delay in moments:
        typed = (word.format(shard=shard) for word in words)
        with started(tmp_path, *typed, endpoint=silent) as process:
            try:
                wait_for(lambda process=process, library=library: loaded(process, library), process)
                time.sleep(delay)
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()
        if process.returncode == 130:
            interrupted += 1
            assert err == "interrupted\n", (library, delay)
        else:  # it had ended by itself, or was ending
            assert process.returncode in (0, 1, -signal.SIGINT), (library, delay, err)
            assert "Traceback" not in out + err
            assert "KeyboardInterrupt" not in out + err
    assert interrupted >= len(moments) // 2


@pytest.mark.ci
def test_ctrl_c_that_the_shell_ignores_stays_ignored(tmp_path: Path) -> None:
    script = tmp_path / "torchdata-ais"
    script.write_text(SCRIPT.replace("signal.default_int_handler", "signal.SIG_IGN"))
    with subprocess.Popen(
        [sys.executable, str(script), "--version"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for(lambda: loaded(process, "libtorch"), process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out.strip()


@pytest.mark.ci
def test_an_interrupt_that_a_library_makes_an_error_of_is_an_interrupt(tmp_path: Path) -> None:
    program = (
        "import os, signal, typer\n"
        "from torchdata_ais.cli._run import reported\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        "def run() -> None:\n"
        "    with reported():\n"
        "        try:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "        except BaseException as error:\n"
        "            raise ImportError('initialization failed') from error\n"
        "app()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
