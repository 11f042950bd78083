"""Shards that a command prints: only whole ones, no shell, and no process is left."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
from waiting import is_living, until

import torchdata_ais.webdataset as wds
from torchdata_ais.errors import ReadError, TruncatedShardError, UsageError
from torchdata_ais.testing import example_shards

pytestmark = pytest.mark.kills

# Starts a child of its own, writes both process numbers to a file, and stays.
STAY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
open(sys.argv[1] + "~", "w").write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + "~", sys.argv[1])
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    return example_shards(tmp_path, [2, 2])


def wait_until_gone(file: Path) -> None:
    pids = [int(word) for word in file.read_text().split()]
    until(lambda: not any(map(is_living, pids)), what="a process of the command is left")


def test_the_output_of_a_command_is_a_shard(shards: list[str]) -> None:
    command = wds.Command(["cat", shards[0]])
    urls = [pickle.loads(pickle.dumps(command)), shards[1], wds.Command(["cat", shards[1]])]
    samples = list(wds.WebDataset(urls))
    assert [sample["__url__"] for sample in samples] == [url for url in urls for _ in range(2)]
    assert len(list(wds.tariterators.tar_file_expander([command]))) == 5
    assert len(list(wds.WebDataset(wds.Command(["cat", "--", shards[0]])))) == 2
    assert len(list(zip(range(7), wds.WebDataset(command, resampled=True), strict=False))) == 7
    with wds.gopen(command) as stream:
        assert stream.read() == Path(shards[0]).read_bytes()


def test_no_shell_reads_the_words(tmp_path: Path, shards: list[str]) -> None:
    words = ["cat", shards[0], f"; touch {tmp_path}/made", "$(id)"]
    with pytest.raises(ReadError, match=r"ended with status 1: .*No such file"):
        list(wds.WebDataset([wds.Command(words)]))
    assert not (tmp_path / "made").exists()
    with pytest.raises(UsageError, match="no list of words"):
        wds.Command("cat x")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cat", "/none"], "The command ended with status 1: .*/none"),
        (["no-such-program"], "The command 'no-such-program' is not there"),
        (["sleep", "9"], "The command took longer than 0.2 s"),
    ],
)
def test_a_command_that_fails_is_an_error(words: list[str], message: str) -> None:
    with pytest.raises(ReadError, match=message):
        list(wds.WebDataset([wds.Command(words, timeout=0.2 if words[0] == "sleep" else 60)]))


def test_a_command_that_fails_in_the_end_gives_no_sample(shards: list[str]) -> None:
    """Even if all it printed was a whole shard."""
    printing = "import sys; sys.stdout.write(open(sys.argv[1]).read()); sys.exit('lost the line')"
    samples = iter(wds.WebDataset([wds.Command([sys.executable, "-c", printing, shards[0]])]))
    with pytest.raises(ReadError, match="ended with status 1: lost the line"):
        next(samples)


def test_a_command_that_a_signal_ended_has_failed() -> None:
    killed = wds.Command([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    with pytest.raises(ReadError, match="ended with status 137"):
        list(wds.WebDataset([killed]))


def test_a_command_that_fails_is_skipped_by_a_handler(shards: list[str]) -> None:
    urls = [wds.Command(["cat", "/none"]), shards[0]]
    assert len(list(wds.WebDataset(urls, handler=wds.ignore_and_continue))) == 2
    assert list(wds.WebDataset(urls, handler=wds.ignore_and_stop, empty_check=False)) == []
    with pytest.raises(UsageError, match="open_shards=1"):
        list(wds.WebDataset([wds.Command(["cat", shards[0]])], open_shards=2))


@pytest.mark.ci
@pytest.mark.parametrize("stay", [60, 0], ids=["too long", "in time"])
def test_a_command_leaves_no_process(tmp_path: Path, stay: int) -> None:
    command = wds.Command(
        [sys.executable, "-I", "-S", "-c", STAY, str(tmp_path / "pids"), str(stay)], timeout=3
    )
    with pytest.raises((ReadError, TruncatedShardError)):
        list(wds.WebDataset([command]))
    wait_until_gone(tmp_path / "pids")


def read_what_stays(file: Path) -> None:
    tempfile.tempdir = str(file.parent)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell turns off in the background
    list(wds.WebDataset([wds.Command([sys.executable, "-c", STAY, str(file), "60"])]))


_OTHERS = [pytest.param(number, marks=pytest.mark.ci) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize("number", [signal.SIGKILL, *_OTHERS])
def test_a_command_ends_with_the_process_that_wants_its_shard(tmp_path: Path, number: int) -> None:
    file = tmp_path / "pids"
    reader = multiprocessing.get_context("fork").Process(target=read_what_stays, args=(file,))
    reader.start()
    try:
        deadline = time.monotonic() + 60
        while not file.exists():
            assert reader.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert reader.pid is not None
        assert reader.pid > 1
        os.kill(reader.pid, number)
        reader.join(60)
        wait_until_gone(file)
    finally:
        reader.kill()
        reader.join(60)


def test_a_command_shows_no_secret() -> None:
    words = ["get", "--token", "a1b2", "--api-key=a1b2", "-H", "X-Token: a1b2", "https://me:a1b2@host/s.tar"]
    assert (
        wds.Command(words)
        == "pipe:get --token '***' '--api-key=***' -H 'X-Token:***' 'https://***@host/s.tar'"
    )
    assert "a1b2" not in repr(wds.Command(words))
    text = "pipe:curl -s -L https://host/s.tar -H 'Authorization:Bearer a1b2'"
    for run in (
        lambda: list(wds.WebDataset(text)),
        lambda: wds.gopen(text),
        lambda: wds.gopen(text, "wb"),
        lambda: wds.TarWriter(text),
    ):
        with pytest.raises(UsageError) as caught:
            run()
        assert "a1b2" not in str(caught.value)
        assert "Authorization:***" in str(caught.value)
