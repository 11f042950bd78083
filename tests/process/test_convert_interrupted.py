"""Ctrl-C while `torchdata-ais convert` opens its source, begins, and writes: nothing half, no empty bucket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ci

SCRIPT = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from torchdata_ais.cli import main\n"
    "main()\n"
)
# A function that says when it has been called so many times, and stands still then.
FUNCTION = """
import os, pathlib, time
calls = 0

def keep(sample):
    global calls
    calls += 1
    if calls == int(os.environ["CALLS"]):
        pathlib.Path("here").touch()
        time.sleep(60)
    return True
"""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "my_functions.py").write_text(FUNCTION)
    for number in range(6):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff\xd8\xff")
    return tmp_path / "photos"


def interrupted(folder: Path, endpoint: str, words: list[str], calls: int, ready: Callable[[], bool]) -> str:
    script = folder / "torchdata-ais"
    script.write_text(SCRIPT)
    environment = {**os.environ, "AIS_ENDPOINT": endpoint, "CALLS": str(calls)}
    with subprocess.Popen(
        [sys.executable, str(script), "convert", *words],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            end = time.monotonic() + 60
            while not ready() and process.poll() is None:
                assert time.monotonic() < end
                time.sleep(0.01)
            assert process.poll() is None, process.communicate()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    return err


def buckets(client: Any) -> list[str]:
    return [bucket.name for bucket in client.cluster().list_buckets()]


def test_while_the_table_is_read_nothing_was_made(tmp_path: Path, ais_cluster: Any, ais_client: Any) -> None:
    os.mkfifo(tmp_path / "t.csv")  # whose reader waits
    writer: list[int] = []

    def is_read() -> bool:
        try:
            writer.append(os.open(tmp_path / "t.csv", os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # nobody reads yet
            return False
        return True

    err = interrupted(tmp_path, ais_cluster.endpoint, ["t.csv", "ais://test-ctrl-c/s-%d.tar"], 1, is_read)
    for fd in writer:
        os.close(fd)
    assert err.startswith("interrupted\n")
    assert "test-ctrl-c" not in buckets(ais_client)


@pytest.mark.parametrize("target", ["ais://test-ctrl-c/s-%d.tar", "out/deep/s-%d.tar"])
def test_before_the_first_shard_bucket_and_folder_go_again(
    tmp_path: Path, photos: Path, target: str, ais_cluster: Any, ais_client: Any
) -> None:
    words = ["photos", target, "--select", "my_functions:keep"]
    interrupted(tmp_path, ais_cluster.endpoint, words, 2, (tmp_path / "here").exists)
    assert "test-ctrl-c" not in buckets(ais_client)
    assert not (tmp_path / "out").exists()


def test_after_some_shards_they_stay_whole_and_the_next_command_goes_on(
    tmp_path: Path, photos: Path, ais_cluster: Any, ais_client: Any
) -> None:
    words = [
        "photos",
        "ais://test-ctrl-c/s-%d.tar",
        "--maxcount",
        "2",
        "--manifest",
        "m.json",
        "--select",
        "my_functions:keep",
    ]
    bucket = ais_client.bucket("test-ctrl-c")
    try:
        err = interrupted(tmp_path, ais_cluster.endpoint, words, 5, (tmp_path / "here").exists)
        assert err.splitlines()[-1] == f"next: torchdata-ais convert {' '.join(words)} --resume"
        assert [entry.name for entry in bucket.list_all_objects()] == ["s-0.tar"]
        done = subprocess.run(
            [sys.executable, str(tmp_path / "torchdata-ais"), "convert", *words, "--resume"],
            cwd=tmp_path, env={**os.environ, "AIS_ENDPOINT": ais_cluster.endpoint, "CALLS": "99"},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert [entry.name for entry in bucket.list_all_objects()] == [
            "classes.json",
            "s-0.tar",
            "s-1.tar",
            "s-2.tar",
        ]
    finally:
        bucket.delete(missing_ok=True)
