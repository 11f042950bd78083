"""Promise 7: how much memory reading takes does not depend on the size of the shard."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import LocalCluster, StoreOptions
from torchdata_ais.store import put_object
from torchdata_ais.tar import TarBuilder, archive_size

PROGRAM = Path(__file__).with_name("memory_program.py")
BOUND = 96 << 20
MIB = 1 << 20


def shard(size: int, sample_bytes: int) -> tuple[int, int, Iterator[Any]]:
    """A shard of about `size` bytes: how many samples, how many bytes, and the blocks."""
    data = random.Random(0).randbytes(sample_bytes)
    one = 512 + sample_bytes + -sample_bytes % 512 + 1024
    count = size // one

    def blocks() -> Iterator[Any]:
        builder = TarBuilder()
        joined: list[Any] = []
        for number in range(count):
            joined += builder.member(f"{number:08d}.bin", data) + builder.member(
                f"{number:08d}.cls", b"%d" % (number % 9)
            )
            if number % 256 == 255:
                yield b"".join(joined)
                joined = []
        yield b"".join([*joined, bytes(archive_size(count * one) - count * one)])

    return count, archive_size(count * one), blocks()


def read_in_a_new_process(cluster: LocalCluster, url: str, stages: str = "") -> dict[str, int]:
    """Read the shard in a process of its own, and return what the program says of it."""
    command = [sys.executable, str(PROGRAM), cluster.endpoint, url, stages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(cluster: LocalCluster, size: int, sample_bytes: int) -> dict[str, int]:
    options = StoreOptions(cluster.endpoint, stall_timeout=300)  # a busy disk takes its time for gigabytes
    name = f"ais://memory/{size >> 20}-{sample_bytes}.tar"
    count, total, blocks = shard(size, sample_bytes)
    put_object(name, blocks, options, size=total)
    read = read_in_a_new_process(cluster, name)
    assert read["samples"] == count
    assert read["bytes"] >= count * sample_bytes
    assert read["peak"] <= BOUND, (
        f"{size >> 20} MiB of {sample_bytes}-byte samples took {read['peak'] / MIB:.0f} MiB"
    )
    return read


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=1) as cluster:
        cluster.client().bucket("memory").create()
        yield cluster


@pytest.mark.ci
@pytest.mark.parametrize("sample_bytes", [100_000, pytest.param(4096, marks=pytest.mark.ci)])
def test_promise_7_a_shard_of_256_mib(cluster: LocalCluster, sample_bytes: int) -> None:
    check(cluster, 256 * MIB, sample_bytes)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sample_bytes", [100_000, 4096, 300])
def test_promise_7_a_shard_of_4_gib(cluster: LocalCluster, sample_bytes: int) -> None:
    if (free := shutil.disk_usage(tempfile.gettempdir()).free) < 5 << 30:
        pytest.skip(f"5 GiB of disk are needed, and {free >> 20} MiB are free")
    print(f"\n{sample_bytes}-byte samples: {check(cluster, 4096 * MIB, sample_bytes)}")
