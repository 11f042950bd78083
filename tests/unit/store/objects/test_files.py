from __future__ import annotations

import os
import random
import subprocess
import sys
import threading

import pytest

from torchdata_ais.errors import (
    ChecksumError,
    NotFoundError,
    ObjectChangedError,
    ReadError,
    StallError,
    UsageError,
)
from torchdata_ais.store import StoreOptions, open_blocks, read_range
from torchdata_ais.urls import ObjectURL

BODY = random.Random(0).randbytes(10_000)
SMALL = StoreOptions(block_bytes=1000, prefetch_bytes=1)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a b#?.tar"
    path.write_bytes(BODY)
    return path


def read(url, options=SMALL, **more):
    with open_blocks(str(url) if not isinstance(url, str) else url, options, **more) as source:
        return b"".join(source)


def test_paths_and_file_urls_are_read(file):
    assert read(file) == BODY
    assert read(file.as_uri()) == BODY
    assert read(file, start=4321) == BODY[4321:]
    with open_blocks(str(file), SMALL) as source:
        assert b"".join(source) == BODY
        assert source.size == 10_000
        assert source.verified is False


def test_a_file_that_is_continued_must_be_the_same(file):
    with open_blocks(str(file), SMALL) as source:
        next(source)
        version = source.version
    assert read(ObjectURL(file, version=version), start=1000) == BODY[1000:]
    file.write_bytes(BODY + b"x")
    with pytest.raises(ObjectChangedError):
        read(ObjectURL(file, version=version), start=1000)


@pytest.mark.parametrize("change", ["truncate", "append", "touch"])
def test_a_file_that_changes_while_it_is_read_is_an_error(file, change):
    with open_blocks(str(file), SMALL) as source:
        next(source)
        if change == "truncate":
            os.truncate(file, 5000)
        elif change == "append":
            with file.open("ab") as more:
                more.write(b"more")
        else:
            os.utime(file, ns=(1, 1))
        with pytest.raises(ObjectChangedError):
            list(source)


def test_sizes_and_checksums_that_are_known_are_checked(file):
    import xxhash

    good = xxhash.xxh64_hexdigest(BODY)
    with open_blocks(ObjectURL(str(file), 10_000, good), SMALL) as source:
        assert b"".join(source) == BODY
        assert source.verified is True
    with pytest.raises(ObjectChangedError):
        read(ObjectURL(str(file), size=9))
    with pytest.raises(ChecksumError):
        read(ObjectURL(str(file), checksum="0" * 16))


def test_a_file_that_is_not_there_or_a_folder_is_an_error(tmp_path):
    for path in (tmp_path / "none.tar", tmp_path / "none" / "s.tar"):
        with pytest.raises(NotFoundError, match="no such file"):
            read(path)
    with pytest.raises(UsageError, match="directory"):
        read(tmp_path)


def test_a_prefix_of_files_is_answered_by_a_pattern(tmp_path):
    (tmp_path / "train-000.tar.gz").touch()
    for path, todo in (
        (tmp_path / "train-", f'"{tmp_path}/train-*.tar.gz"'),
        (tmp_path / "val-", "Check the path"),
    ):
        with pytest.raises(NotFoundError) as caught:
            read(path)
        assert todo in caught.value.todo


def test_urls_that_cannot_be_opened_are_refused_at_once():
    for url in ("ais://b/o", "ais://b", "", "nonsense://x"):
        with pytest.raises(UsageError):
            open_blocks(url, StoreOptions())
    with pytest.raises(UsageError, match="bucket"):
        open_blocks("ais://b", StoreOptions(endpoint="http://h"))
    with pytest.raises(UsageError, match="start"):
        open_blocks("/x", StoreOptions(), start=-1)


def test_standard_input_is_read():
    code = (
        "import sys\nfrom torchdata_ais.store import *\n"
        "with open_blocks('-', StoreOptions(), start=3) as s: sys.stdout.write(b''.join(s).decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=b"0123456789", capture_output=True, timeout=50, check=True
    )
    assert done.stdout == b"3456789"


def test_a_named_pipe_is_read_and_one_that_nobody_writes_to_is_closed(tmp_path, threads_left):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    source = open_blocks(str(path), SMALL)
    source.close()
    assert threads_left() == []
    writer = threading.Thread(target=path.write_bytes, args=(BODY,))
    writer.start()
    assert read(path) == BODY
    writer.join(60)


@pytest.mark.parametrize("begun", [False, True])
def test_promise_6_a_pipe_without_a_writer_is_an_error_in_time(tmp_path, begun):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    keeper = os.open(path, os.O_RDWR)
    if begun:
        os.write(keeper, b"x")
    try:
        with pytest.raises(StallError, match=f"nothing was written .* at byte {int(begun)}"):
            read(path, StoreOptions(first_byte_timeout=0.05, stall_timeout=0.05))
    finally:
        os.close(keeper)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null"])
def test_devices_are_refused(path):
    with pytest.raises(ReadError, match="it is a device"):
        read(path)


@pytest.mark.parametrize(
    "path",
    ["a\0b.tar", "/x/\ud800.tar", "ais://b/\ud800.tar", "ais://b/../o/x", "ais://../x", "file:///a%00b"],
)
def test_names_that_no_file_and_no_object_can_have_are_refused(path):
    options = StoreOptions("http://127.0.0.1:9")
    for call in (lambda: read(path, options), lambda: read_range(path, 0, 1, options)):
        with pytest.raises(UsageError, match=r"can (have|be called)"):
            call()
