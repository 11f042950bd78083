"""The end of a program that leaves iterators unfinished."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from torchdata_ais._util.process_end import close_at_exit

def numbers():
    try:
        yield 1
    finally:
        closed(os.getpid())

def closed(pid):
    print("closed", pid == parent, flush=True)

parent = os.getpid()
os.left = numbers()
next(os.left)
close_at_exit(os.left)
if child := os.fork():
    os.waitpid(child, 0)
    print("parent exits", flush=True)
else:
    sys.exit()
"""


def run(*command):
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=110, check=False
    )


def test_a_generator_is_closed_before_modules_are_emptied_and_once():
    done = run("-c", PROGRAM)
    assert done.stdout.splitlines()[-2:] == ["parent exits", "closed True"]
    assert done.stdout.count("closed") == 1  # not by the forked child
    assert done.returncode == 0


@pytest.mark.ci
@pytest.mark.parametrize("workers", [0, 1])
def test_promise_9_a_program_that_leaves_iterators_ends_without_a_word(workers):
    done = run(str(Path(__file__).with_name("exit_program.py")), str(workers))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("left\n")
