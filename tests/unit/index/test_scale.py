"""A thousand million samples in a million shards: opened in a moment, in little memory, and by ranges."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import xxhash

from torchdata_ais import SampleIndex
from torchdata_ais.index import IndexWriter, LocalFolder, ShardEntry, ShardSamples, StoredIndex
from torchdata_ais.index.format import (
    COUNTS,
    PAGE_ROWS,
    SHARDS,
    block_of,
    named_by_content,
    stacked,
    table_file,
)
from torchdata_ais.local import LocalCluster

EACH = 1000


def write_large(path: Path, shards: int) -> None:
    """Write an index whose shards all have the same rows: the tables are as large as they would be."""
    folder = LocalFolder(path)
    writer = IndexWriter(folder)
    rng = random.Random(1)
    keys = [f"{number:08x}/{rng.randrange(10**6)}" for number in range(EACH)]
    ends = [10240 * (number + 1) for number in range(EACH)]
    samples = ShardSamples(
        keys,
        [end - 10240 for end in ends],
        ends,
        [("jpg", "cls")] * EACH,
        [(9000, 1)] * EACH,
        list(range(EACH)),
    )
    writer.add(ShardEntry("ais://large/train-0000000.tar", ends[-1] + 1024, "0123456789abcdef", "1"), samples)
    small = writer.finish()
    row = StoredIndex(folder).shard(0)
    pages = []
    for begin in range(0, shards, PAGE_ROWS):
        count = min(PAGE_ROWS, shards - begin)
        columns = [
            pa.array([value] * count, type=field.type) for value, field in zip(row, SHARDS, strict=True)
        ]
        columns[0] = pa.array([f"ais://large/train-{begin + n:07d}.tar" for n in range(count)])
        pages.append(pa.record_batch(columns, schema=SHARDS))
    counts = pa.record_batch([pa.array(np.full(shards, EACH, dtype=np.int64))], schema=COUNTS)
    data, [(start, length)] = stacked([counts], COUNTS)
    name = named_by_content("counts", data)
    folder.write(name, data)
    head = msgspec.structs.replace(
        small,
        samples=shards * EACH,
        shards=shards,
        counts=block_of(name, start, data[start : start + length]),
        digest=xxhash.xxh64_hexdigest(b"large"),
    )
    folder.write("shards.arrow", table_file(head, pages))


PROGRAM = """
import sys, time, random
import numpy, pyarrow, pyarrow.compute, torchdata_ais.index
from torchdata_ais import SampleIndex
def private():
    return sum(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Private")) / 1024
SampleIndex.open(sys.argv[2], shards_from="ais://large/").take([0])
before, began = private(), time.process_time()
index = SampleIndex.open(sys.argv[1], shards_from="ais://large/")
rng = random.Random(3)
first = index.take([rng.randrange(len(index)) for _ in range(64)])
took = time.process_time() - began
for _ in range(30):
    index.take([rng.randrange(len(index)) for _ in range(64)])
print(len(index), took, private() - before)
"""


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_promise_7_a_thousand_million_samples_open_at_once_in_64_mib(tmp_path: Path) -> None:
    write_large(tmp_path / "large", 1_000_000)
    write_large(tmp_path / "small", 10)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "large"), str(tmp_path / "small")]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert shown.returncode == 0, shown.stderr
    samples, took, grown = map(float, shown.stdout.split())
    assert samples == 10**9
    assert grown < 64
    assert took < 1


def test_a_remote_index_is_opened_by_ranges(tmp_path: Path) -> None:
    shards = 50_000
    write_large(tmp_path, shards)
    with LocalCluster() as cluster:
        bucket = cluster.client().bucket("large").create()
        for path in tmp_path.iterdir():
            bucket.object(f"my/index/{path.name}").get_writer().put_content(path.read_bytes())
        size = sum(path.stat().st_size for path in tmp_path.iterdir())
        cluster.reset_stats()
        index = SampleIndex.open("ais://large/my/index", cluster=cluster.endpoint)
        opened = cluster.stats().bytes_sent
        assert len(index) == shards * EACH
        assert opened < 64 * 1024 + 10 * shards  # the head, 8 bytes a shard, and what HTTP says
        assert index[len(index) // 2].shard.name == "ais://large/train-0025000.tar"
        assert cluster.stats().bytes_sent < size / 2
