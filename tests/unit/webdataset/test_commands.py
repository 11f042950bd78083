"""Shards that a command prints: only whole ones, no shell, and no process is left."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.waiting import is_living, until

import torchdata_ais.webdataset as wds
from torchdata_ais import AISSourceLister, draw, explain
from torchdata_ais.errors import ReadError, TruncatedShardError, UsageError
from torchdata_ais.errors.redaction import redact
from torchdata_ais.testing import example_shards
from torchdata_ais.urls import parse_url

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
    with pytest.raises(UsageError, match="Expected a command as a list of words"):
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


SECRET = "a1b2c3"
SPELLINGS = {
    "header": ["curl", "-H", "Authorization: Bearer a1b2c3", "http://h/s.tar"],
    "header glued": ["curl", "-HAuthorization: Bearer a1b2c3", "http://h/s.tar"],
    "header without a telling name": ["curl", "-H", "X-Mine: a1b2c3", "http://h/s.tar"],
    "header=": ["wget", "--header=X-Mine: a1b2c3", "http://h/s.tar"],
    "header in several words": ["curl", "-H", "Authorization:", "Bearer", "a1b2c3", "http://h/s.tar"],
    "header in two words": ["curl", "-H", "Authorization:Bearer", "a1b2c3", "http://h/s.tar"],
    "basic": ["curl", "-H", "Authorization:", "Basic", "a1b2c3", "http://h/s.tar"],
    "user": ["curl", "-u", "me:a1b2c3", "http://h/s.tar"],
    "user glued": ["curl", "-ume:a1b2c3", "http://h/s.tar"],
    "user=": ["wget", "--user=me", "--password=a1b2c3", "http://h/s.tar"],
    "user:": ["curl", "--user", "me:a1b2c3", "http://h/s.tar"],
    "password glued": ["7z", "x", "-so", "-pa1b2c3", "s.tar"],
    "password of another program": ["openssl", "enc", "-d", "-pass", "pass:a1b2c3", "-in", "s.tar"],
    "one letter": ["sshpass", "-p", "a1b2c3", "ssh", "host", "cat", "s.tar"],
    "bearer": ["curl", "--oauth2-bearer", "a1b2c3", "http://h/s.tar"],
    "cookie": ["curl", "-b", "a1b2c3", "http://h/s.tar"],
    "after a word": ["get", "token", "a1b2c3", "s.tar"],
    "after two dashes": ["get", "--token", "--", "a1b2c3", "s.tar"],
    "begins with a dash": ["get", "--token", "-a1b2c3", "s.tar"],
    "named by the option": ["get", "--api-key", "a1b2c3", "s.tar"],
    "of the environment": ["AWS_SECRET_ACCESS_KEY=a1b2c3", "aws", "s3", "cp", "s3://b/s.tar", "-"],
    "of env": ["env", "MINE=a1b2c3", "cat", "s.tar"],
    "signed": ["curl", "https://h/s.tar?X-Amz-Signature=a1b2c3&x=1"],
    "query": ["curl", "https://h/s.tar?a1b2c3"],
    "fragment": ["curl", "https://h/s.tar#a1b2c3"],
    "URL of an option": ["curl", "--url=https://me:a1b2c3@h/s.tar?x=a1b2c3"],
    "proxy": ["curl", "-x", "http://me:a1b2c3@proxy:1", "http://h/s.tar"],
    "user information": ["curl", "https://me:a1b2c3@h/s.tar"],
    "no scheme": ["curl", "me:a1b2c3@h/s.tar"],
    "user alone": ["git", "archive", "https://a1b2c3@h/s.tar"],
    "password with signs of a URL": ["curl", "https://me:x?/#a1b2c3@h/s.tar"],
    "base64": ["get", "YTFiMmMzYTFiMmMz=="],
    "a shell in it": ["sh", "-c", "TOKEN=a1b2c3 get s.tar"],
    "code": ["python", "-c", "get('a1b2c3')"],
}


def drained(items: Any) -> Any:
    for item in items:
        yield item["stream"].read()


def shows(text: str) -> bool:
    return SECRET in text or "YTFiMmMz" in text


@pytest.mark.quick(12)
@pytest.mark.parametrize("words", SPELLINGS.values(), ids=SPELLINGS)
def test_a_command_shows_no_secret(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no program is there
    command = wds.Command(words)
    assert not shows(command + repr(command) + str([command]) + f"{command!r:>5}")
    assert redact(command) == command  # as errors show it
    texts = [shlex.join(words), " ".join(words), words[0] + " '" + " ".join(words[1:])]
    for text in (f"pipe:{text}" for text in texts):
        assert not shows(redact(text))
        for run in (
            lambda text=text: list(wds.WebDataset(text.replace("{", "_"))),
            lambda text=text: list(wds.WebDataset([text], handler=wds.ignore_and_continue)),
            lambda text=text: list(wds.WebDataset([text], cache_dir=tmp_path)),
            lambda text=text: list(wds.WebDataset(text + " {")),
            lambda text=text: list(wds.WebDataset(text + " {0-9}")),
            lambda text=text: list(wds.WebDataset(text + " x.json")),
            lambda text=text: list(wds.WebDataset(iter([text]))),
            lambda text=text: list(wds.WebDataset([text + " | zcat"])),
            lambda text=text: list(wds.WebDataset([text + " $TOKEN"])),
            lambda text=text: list(wds.WebDataset([f'{text} "$TOKEN"'])),
            lambda text=text: list(wds.tarfile_samples([{"url": text}])),
            lambda text=text: list(wds.DataPipeline([text], wds.tariterators.url_opener, drained)),
            lambda text=text: list(wds.cache.FileCache(tmp_path)([text])),
            lambda text=text: wds.gopen(text),
            lambda text=text: wds.gopen(text, "wb"),
            lambda text=text: wds.TarWriter(text),
            lambda text=text: wds.ShardWriter(text + "%d"),
            lambda text=text: list(AISSourceLister([text]).load_tar()),
            lambda text=text: parse_url(text),
            lambda text=text: explain(AISSourceLister([text]).load_tar()),
        ):
            with pytest.raises((ReadError, UsageError)) as caught:
                run()
            assert not shows(
                f"{caught.value}{caught.value!r}{vars(caught.value)}{pickle.dumps(caught.value)!r}"
            )
        pipe = AISSourceLister([text]).load_tar()
        assert not shows(f"{pipe!r}{draw(pipe)}")


@pytest.mark.quick(6)
@pytest.mark.parametrize("words", SPELLINGS.values(), ids=SPELLINGS)
def test_a_command_that_fails_shows_no_secret(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither if the program is missing, nor if it says what it was called with."""
    echo = tmp_path / "echo"
    echo.write_text('#!/bin/sh\necho "no $*" >&2\nexit 3\n')
    echo.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = "The command .* is not there|ended with status 3"
    echoed = ["echo", *words[1:]]
    for command in (wds.Command(words), wds.Command(echoed), f"pipe:{shlex.join(echoed)}"):
        with pytest.raises(ReadError, match=missing) as caught:
            list(wds.WebDataset([command]))
        assert not shows(f"{caught.value}{vars(caught.value)}")
        with pytest.warns(UserWarning, match="pipe:") as warned:
            list(wds.WebDataset([command], handler=wds.warn_and_continue, empty_check=False))
        assert not any(shows(str(one.message)) for one in warned)
    assert not shows(caplog.text)
    with pytest.raises(UsageError) as wrong:
        wds.Command(shlex.join(words))
    assert not shows(str(wrong.value))


def test_samples_and_files_name_the_command_without_its_secrets(tmp_path: Path, shards: list[str]) -> None:
    code = f"import sys; sys.stdout.buffer.write(open({shards[0]!r}, 'rb').read())"
    command = wds.Command([sys.executable, "-c", code, "--token", SECRET, "https://h/s.tar?sig=a1b2c3"])
    samples = list(wds.WebDataset([command]))
    assert samples[0]["__url__"] == f"pipe:{sys.executable} -c '***' --token '***' 'https://h/s.tar?***'"
    assert not shows(f"{samples}{samples[0]!r}{pickle.dumps(samples)!r}")
    with wds.ShardWriter(f"{tmp_path}/n-%d.tar", manifest=f"{tmp_path}/n.json") as writer:
        for sample in samples:
            writer.write(sample)
    for file in tmp_path.glob("n*"):
        assert not shows(file.read_bytes().decode("latin-1"))
    other = pickle.loads(pickle.dumps(command))
    assert (other, other.words, other.timeout) == (command, command.words, command.timeout)


def test_a_command_is_shown_by_what_is_no_secret() -> None:
    for words, shown in (
        (["zcat", "/data/train-000000.tar.gz"], "zcat /data/train-000000.tar.gz"),
        (["tar", "--file=/data/s.tar", "-cO"], "tar --file=/data/s.tar '-c***'"),
        (["dd", "if=/data/s.tar", "bs=1M"], "dd if=/data/s.tar 'bs=***'"),
        (
            ["aws", "s3", "cp", "--no-sign-request", "s3://b/s.tar", "-"],
            "aws s3 cp --no-sign-request s3://b/s.tar -",
        ),
        (["curl", "-s", "-L", "https://h/monkeys.tar"], "curl -s -L https://h/monkeys.tar"),
        (["curl", "-H", "Authorization: Bearer a1b2", "http://h/s.tar"], "curl -H '***' http://h/s.tar"),
        (["cat", "monkeys-0.tar", "monkeys-1.tar"], "cat monkeys-0.tar monkeys-1.tar"),
        (["cat", "--", "/data/dt=2024-01-01/part-00000.tar"], "cat -- /data/dt=2024-01-01/part-00000.tar"),
    ):
        assert wds.Command(words) == f"pipe:{shown}"


@pytest.mark.parametrize("unit", ["A=", ".tar", "https://h?", "a=b ", "-u x ", "' ' ", "-", ":"])
def test_a_long_command_is_shown_soon(unit: str) -> None:
    def time_of(count: int) -> float:
        begun = time.thread_time()
        redact("pipe:c " + unit * count)
        return time.thread_time() - begun

    assert max(map(time_of, (6_000, 40_000, 400_000))) < 2
