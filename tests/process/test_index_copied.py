"""`index_dir=`: an index far away is copied once a node, whole and right, whoever copies it and whatever ends them."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from torchdata_ais import AISSampleReader, Mixture, SampleIndex, ais_loader
from torchdata_ais.errors import SampleIndexError, StallError, UsageError
from torchdata_ais.index import stored as copied
from torchdata_ais.local import Bandwidth, LocalCluster, RequestRecord
from torchdata_ais.store import StoreOptions, put_object
from torchdata_ais.testing import shard_bytes

pytestmark = pytest.mark.kills

SHARDS, SAMPLES = 5, 200
PROGRAM = """
import sys
from torchdata_ais.index import IndexedSamples
where, endpoint, node = sys.argv[1:]
index = IndexedSamples.open(where, index_dir=node, cluster=endpoint)
print("open", flush=True)
if where:
    sys.stdin.readline()
print(sum(reference.size for reference in index.take(range(len(index)))), flush=True)
"""


@pytest.fixture(scope="module")
def made() -> Iterator[LocalCluster]:
    with LocalCluster(targets=1) as cluster:
        cluster.client().bucket("b").create()
        yield cluster


@pytest.fixture
def cluster(made: LocalCluster) -> LocalCluster:
    made.faults.clear()
    store(made, seed=1)
    store(made, seed=1)  # whoever stored another one before: it is older than the one before
    made.reset_stats()
    return made


def store(cluster: LocalCluster, seed: int) -> SampleIndex:
    rng = random.Random(seed)
    for shard in range(SHARDS):
        members = ((f"{shard}-{n:04d}.bin", rng.randbytes(rng.randrange(9))) for n in range(SAMPLES))
        put_object(f"ais://b/s-{shard}.tar", shard_bytes(members), StoreOptions(endpoint=cluster.endpoint))
    return SampleIndex.build("ais://b/s-", method="read", cluster=cluster).save()


def opened(cluster: LocalCluster, node: Path) -> SampleIndex:
    return SampleIndex.open("ais://b/s-", index_dir=node, cluster=cluster)


def asked_for(cluster: LocalCluster, name: str) -> list[RequestRecord]:
    return [one for one in cluster.requests() if one.status == 206 and f"/.index/s-/{name}" in one.url]


def program(cluster: LocalCluster, node: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "ais://b/s-", cluster.endpoint, str(node)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def copy_in(node: Path, beginning: str = "samples-") -> Path:
    (found,) = node.glob(f"*/{beginning}*.arrow")
    return found


def test_it_is_copied_once_and_is_the_same(cluster: LocalCluster, tmp_path: Path) -> None:
    stored = SampleIndex.open("ais://b/s-", cluster=cluster)
    for _ in range(2):
        assert list(opened(cluster, tmp_path)) == list(stored)
    assert opened(cluster, tmp_path).digest == stored.digest
    cluster.reset_stats()
    assert list(opened(cluster, tmp_path)) == list(stored)
    assert asked_for(cluster, "samples-") == []
    assert not list(tmp_path.glob("*/*.part"))


def test_a_reader_copies_and_so_does_a_mixture(cluster: LocalCluster, tmp_path: Path) -> None:
    index = SampleIndex.open("ais://b/s-", cluster=cluster)
    one, two = index.split(0.5)
    for source in ("ais://b/s-", index, Mixture({one: 1, two: 1}), index.kept_in(tmp_path)):
        folder = tmp_path / str(id(source))
        reader = AISSampleReader(source, shuffle="samples", index_dir=folder, cluster=cluster)
        assert len(list(reader)) >= len(one)
        assert copy_in(folder).is_file()
    dataset = [index.kept_in(tmp_path).kept_in(tmp_path)[number].key for number in (0, -1)]
    assert dataset == [index[0].key, index[-1].key]


@pytest.mark.ci
def test_two_processes_at_once_copy_once(cluster: LocalCluster, tmp_path: Path) -> None:
    expected = sum(reference.size for reference in SampleIndex.open("ais://b/s-", cluster=cluster))
    cluster.reset_stats()
    both = [program(cluster, tmp_path) for _ in range(2)]
    try:
        for one in both:
            assert one.stdout is not None
            assert one.stdout.readline() == "open\n"
        for one in both:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        assert [one.communicate(timeout=60)[0] for one in both] == [f"{expected}\n"] * 2
    finally:
        for one in both:
            one.kill()
            one.communicate()
    size = copy_in(tmp_path).stat().st_size
    assert sum(one.bytes_sent for one in asked_for(cluster, "samples-")) == size


@pytest.mark.ci
def test_what_a_killed_process_copied_is_gone_on_with(cluster: LocalCluster, tmp_path: Path) -> None:
    expected = list(SampleIndex.open("ais://b/s-", cluster=cluster))
    slow = PROGRAM.replace("\nwhere", "\nfrom torchdata_ais.index import stored\nstored._PIECE = 4000\nwhere")
    cluster.faults.add(Bandwidth(30_000), object="*samples-*")
    child = subprocess.Popen(
        [sys.executable, "-c", slow, "ais://b/s-", cluster.endpoint, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        due = time.monotonic() + 60
        while sum(part.stat().st_size for part in tmp_path.glob("*/samples-*.part")) < 8000:
            assert child.poll() is None
            assert time.monotonic() < due
            time.sleep(0.005)
        child.send_signal(signal.SIGKILL)
    finally:
        child.kill()
        child.communicate()
    (part,) = tmp_path.glob("*/samples-*.part")
    begun = part.stat().st_size
    cluster.faults.clear()
    cluster.reset_stats()
    assert list(opened(cluster, tmp_path)) == expected
    copy = copy_in(tmp_path)
    assert 8000 <= begun < copy.stat().st_size
    killed = f"bytes={begun}-{begun + 3999}"  # the answer to it may have ended after the counts were reset
    asked = [one for one in asked_for(cluster, "samples-") if one.headers.get("range") != killed]
    assert sum(one.bytes_sent for one in asked) == copy.stat().st_size - begun


@pytest.mark.quick(1)
@pytest.mark.parametrize("where", ["in a copy", "in what was begun", "longer than it is"])
def test_promise_1_a_flipped_bit_in_the_copy_is_mended(
    cluster: LocalCluster, tmp_path: Path, where: str
) -> None:
    stored = list(SampleIndex.open("ais://b/s-", cluster=cluster))
    assert list(opened(cluster, tmp_path)) == stored
    copy = copy_in(tmp_path)
    data = bytearray(copy.read_bytes())
    data[len(data) // 2] ^= 4
    if where == "in a copy":
        index = opened(cluster, tmp_path)
        copy.write_bytes(data)
    else:
        copy.unlink()
        part = data[: len(data) // 2 + 9] if where == "in what was begun" else data + b"more"
        copy.with_name(f"{copy.name}.part").write_bytes(part)
        index = opened(cluster, tmp_path)
    assert list(index) == stored
    data[len(data) // 2] ^= 4
    assert copy.read_bytes() == data


def test_an_index_that_takes_its_place_is_copied_and_old_ones_are_removed(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied, "_LATER_S", 0.0)
    first = opened(cluster, tmp_path)
    before = list(first)
    store(cluster, seed=2)
    assert list(opened(cluster, tmp_path)) == list(SampleIndex.open("ais://b/s-", cluster=cluster)) != before
    assert list(first) == before  # who has it open goes on
    for seed in (3, 4, 5):
        store(cluster, seed)
        list(opened(cluster, tmp_path))
        assert len(list(tmp_path.glob("*/samples-*.arrow"))) == 2
    assert not list(tmp_path.glob("*/table-*.arrow"))[2:]


def test_promise_1_a_source_that_is_damaged_is_an_error(cluster: LocalCluster, tmp_path: Path) -> None:
    index = opened(cluster, tmp_path)
    (name,) = index.stored[0].head.parts
    url = f"ais://b/.index/s-/{name}"
    data = bytearray(SampleIndex.open("ais://b/s-", cluster=cluster).stored[0].folder.read(name))
    data[100] ^= 1
    put_object(url, bytes(data), StoreOptions(endpoint=cluster.endpoint))
    with pytest.raises(SampleIndexError, match="damaged"):
        list(index)
    data[100] ^= 1
    put_object(url, bytes(data), StoreOptions(endpoint=cluster.endpoint))
    assert len(list(index)) == SHARDS * SAMPLES


def test_a_folder_that_cannot_be_written_to_is_said(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="index_dir") as caught:
        opened(cluster, tmp_path / "file")
    assert str(tmp_path) in str(caught.value)


def test_promise_6_a_process_that_stands_still_is_said(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied, "_STILL_S", 0.1)
    index = opened(cluster, tmp_path)
    (folder,) = tmp_path.iterdir()
    (name,) = index.stored[0].head.parts
    with FileLock(folder / f"{name}.lock"), pytest.raises(StallError, match="nother process copies"):
        list(index)
    assert len(list(index)) == SHARDS * SAMPLES


def test_a_large_table_of_shards_is_copied_too(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchdata_ais.index.stored._SMALL_TABLE", 0)
    stored = list(SampleIndex.open("ais://b/s-", cluster=cluster))
    assert list(opened(cluster, tmp_path)) == stored
    table = copy_in(tmp_path, "table-")
    data = bytearray(table.read_bytes())
    index = opened(cluster, tmp_path)
    data[-600] ^= 1
    data[len(data) // 2] ^= 1
    table.write_bytes(data)
    assert list(index) == stored
    assert copy_in(tmp_path, "table-").stat().st_size == len(data)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.ci)])
def test_workers_open_the_copy_and_ask_for_none_of_it(
    cluster: LocalCluster, tmp_path: Path, method: str
) -> None:
    pipe = AISSampleReader("ais://b/s-", shuffle="samples", index_dir=tmp_path, cluster=cluster)
    keys = pipe.extract_keys("__key__").batched(50)
    with ais_loader(keys, num_workers=2, multiprocessing_context=method) as loader:
        assert len(list(loader)) == SHARDS * SAMPLES // 50
    size = copy_in(tmp_path).stat().st_size
    assert sum(one.bytes_sent for one in asked_for(cluster, "samples-")) == size
