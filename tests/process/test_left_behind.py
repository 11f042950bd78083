"""What watches over the tests notices what they leave behind."""

from __future__ import annotations

import os
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


@pytest.mark.ci
@pytest.mark.timeout(110)
@pytest.mark.parametrize(
    ("test", "left"),
    [
        ("clean", ""),
        ("killed", ""),
        ("file", "/file-"),  # the folder has the test's name
        ("shared_memory", "shared memory left"),
        ("one_torch_name", ""),
        ("two_torch_names", "shared memory torch_"),
        ("process", "process "),
    ],
)
def test_a_session_that_leaves_something_behind_fails(tmp_path: Path, test: str, left: str) -> None:
    (tmp_path / "test_it.py").write_text(PROGRAM)
    (tmp_path / "shm").mkdir()  # in place of the machine's, where other tests run
    code = (
        "import left_behind, pathlib, pytest, sys; left_behind.PATIENCE_S = 2; "
        "left_behind.SHARED = pathlib.Path('shm').resolve(); sys.exit(pytest.main(sys.argv[1:]))"
    )
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
        "left_behind",
        "-n",
        "1",
        "-k",
        test,
        "test_it.py",
    ]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    try:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=90
        )
    finally:
        (tmp_path / "over").touch()  # what it left alive looks for it
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert ("the tests left something behind" in done.stdout) == bool(left)
    assert left in done.stdout
    assert done.returncode == bool(left)
