"""What watches over the tests notices what they leave behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PROGRAM = '''
import pytest, subprocess, sys, tempfile
from pathlib import Path

def test_clean():
    with tempfile.TemporaryDirectory():
        subprocess.run([sys.executable, "-c", ""], check=True)

def test_file():
    tempfile.mkstemp(prefix="left-file-")

@pytest.mark.kills
def test_killed():
    tempfile.mkstemp(prefix="left-file-")

def test_shared_memory():
    Path("shm/left").touch()

def test_one_torch_name():
    torch_names(1)

def test_two_torch_names():
    torch_names(2)

def torch_names(count):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for number in range(count):
        Path(f"shm/torch_{ended.pid}_1_{number}").touch()

def test_process():
    waits = """import os, time
os.setsid()
os.fork() and os._exit(0)
while not os.path.exists("over"):
    time.sleep(0.02)"""
    subprocess.run([sys.executable, "-c", waits], check=True)
'''


LEFT = {
    "test_file": "/left-file-",
    "test_shared_memory": "shared memory left",
    "test_two_torch_names": "shared memory torch_",
    "test_process": "process ",
}
"""What the session reports of a test; of the others it reports nothing."""


@pytest.mark.ci
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "something left"])
def test_a_session_that_leaves_something_behind_fails(tmp_path: Path, clean: bool) -> None:
    (tmp_path / "test_it.py").write_text(PROGRAM)
    (tmp_path / "shm").mkdir()  # in place of the machine's, where other tests run
    code = (
        "from helpers import leftovers; import pathlib, pytest, sys; leftovers.PATIENCE_S = 2; "
        "leftovers.SHARED = pathlib.Path('shm').resolve(); sys.exit(pytest.main(sys.argv[1:]))"
    )
    tests = [f"test_it.py::{name}" for name in re.findall(r"^def (test_\w+)", PROGRAM, re.MULTILINE)]
    chosen = [test for test in tests if (test.partition("::")[2] in LEFT) != clean]
    command = [
        sys.executable,
        "-c",
        code,
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        ".",
        "-p",
        "helpers.leftovers",
    ]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    try:
        done = subprocess.run(
            [*command, "-n", "1", *chosen],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=110,
        )
    finally:
        (tmp_path / "over").touch()  # what it left alive looks for it
    assert f"{len(chosen)} passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == (0 if clean else 1)
    _, said, report = done.stdout.partition("the tests left something behind")
    assert bool(said) != clean
    found = [line for line in report.splitlines() if line.startswith(("file ", "process ", "shared memory "))]
    for text in LEFT.values():
        matching = [line for line in found if text in line]
        assert len(matching) == (0 if clean else 2 if "torch_" in text else 1), found
        found = [line for line in found if line not in matching]
    assert not found
