"""A conversion whose process is killed: nothing is left but whole shards, no process stays, and it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.waiting import is_living, until

from torchdata_ais.testing import example_shards
from torchdata_ais.writing import convert

pytestmark = pytest.mark.kills

PROGRAM = """
import os, sys, time
import signal
from torchdata_ais.writing import convert

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell turns off in the background

def slowly(sample):
    open(sys.argv[4] + "/" + str(os.getpid()), "a").close()
    time.sleep(0.01)
    return {**sample, "json": {"key": sample["__key__"]}}

convert(sys.argv[1], sys.argv[2], manifest=sys.argv[3], map=slowly, processes=2, maxcount=20, resume=True)
"""


STUCK = """
import os, sys, time
from torchdata_ais.writing import convert

def stuck(sample):
    open(sys.argv[3] + "/" + str(os.getpid()), "a").close()
    time.sleep(600)

convert(sys.argv[1], sys.argv[2], map=stuck, processes=2)
"""


def fast(sample):
    return {**sample, "json": {"key": sample["__key__"]}}


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc to see processes")
@pytest.mark.parametrize(
    "sign",
    [signal.SIGKILL, *(pytest.param(sign, marks=pytest.mark.ci) for sign in (signal.SIGTERM, signal.SIGINT))],
)
def test_a_killed_conversion_leaves_whole_shards_and_no_process_and_goes_on(tmp_path, sign):
    for name in ("in", "out", "whole", "pids"):
        (tmp_path / name).mkdir()
    example_shards(tmp_path / "in", counts=[150, 150])
    pattern, manifest = f"{tmp_path}/out/s-%02d.tar", f"{tmp_path}/m.json"
    words = [sys.executable, "-c", PROGRAM, f"{tmp_path}/in", pattern, manifest, f"{tmp_path}/pids"]
    process = subprocess.Popen(words, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(list((tmp_path / "out").glob("*.tar"))) >= 2)
        os.kill(process.pid, sign)
        assert process.wait(60) != 0
        workers = [int(path.name) for path in (tmp_path / "pids").iterdir()]
        assert len(workers) == 2
        until(lambda: not any(map(is_living, workers)))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    convert(tmp_path / "in", f"{tmp_path}/whole/s-%02d.tar", map=fast, maxcount=20)
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    left = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.tar")}
    assert 2 <= len(left) < len(whole) == 15
    assert left.items() <= whole.items()
    finished = {path.name: path.stat().st_ino for path in (tmp_path / "out").glob("*.tar")}
    convert(tmp_path / "in", pattern, manifest=manifest, map=fast, maxcount=20, resume=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == whole
    again = {name for name, node in finished.items() if (tmp_path / "out" / name).stat().st_ino != node}
    # At most the one that had just appeared, and was not noted yet.
    assert len(again) <= 1


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc to see processes")
def test_processes_in_the_middle_of_a_sample_end_with_the_main_one(tmp_path):
    for name in ("in", "pids"):
        (tmp_path / name).mkdir()
    example_shards(tmp_path / "in", counts=[60])
    words = [
        sys.executable,
        "-c",
        STUCK,
        f"{tmp_path}/in",
        f"{tmp_path}/out/s-%d.tar",
        f"{tmp_path}/pids",
    ]
    process = subprocess.Popen(words, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(list((tmp_path / "pids").iterdir())) == 2)
        process.kill()
        process.wait(60)
        workers = [int(path.name) for path in (tmp_path / "pids").iterdir()]
        until(lambda: not any(map(is_living, workers)))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
