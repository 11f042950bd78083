"""The shard cache: whole objects only, shared, bounded, keyed by version."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import AISSourceLister, ObjectCache, Retry
from torchdata_ais.errors import AISError
from torchdata_ais.loaders import load_state_dict, state_dict
from torchdata_ais.local import Bandwidth, FlipBit, LocalCluster, WrongChecksum
from torchdata_ais.testing import shard_bytes


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=1) as cluster:
        bucket = cluster.client().bucket("far").create()
        for number in range(3):
            put(bucket, number, b"%d" % number)
        yield cluster


def put(bucket: Any, number: int, text: bytes) -> None:
    members = {f"{key}.txt": text * 2000 for key in "abcd"}
    bucket.object(f"s-{number}.tar").get_writer().put_content(shard_bytes(members))


def pipe(cluster: LocalCluster, folder: Path, max_bytes: int = 10 << 30) -> Any:
    retry = Retry(attempts=2, backoff=0.01)
    lister = AISSourceLister("ais://far", cluster=cluster.endpoint)
    return lister.load_tar(cache=ObjectCache(folder, max_bytes), retry=retry).group_samples().to_tuple("txt")


def bodies(cluster: LocalCluster) -> int:
    return cluster.stats().count("GET", 200, "target")


def files(folder: Path) -> list[Path]:
    return [file for file in folder.glob("??/*") if file.suffix != ".lock"]


def test_the_second_epoch_asks_the_cluster_for_no_body(cluster: LocalCluster, tmp_path: Path) -> None:
    first = list(pipe(cluster, tmp_path))
    assert len(first) == 12
    before = bodies(cluster)
    assert list(pipe(cluster, tmp_path)) == first
    assert bodies(cluster) == before


def test_a_new_version_is_read_anew(cluster: LocalCluster, tmp_path: Path) -> None:
    list(pipe(cluster, tmp_path))
    put(cluster.client().bucket("far"), 1, b"new")
    assert [text[:3] for (text,) in pipe(cluster, tmp_path)][4] == b"new"


def test_what_was_used_longest_ago_is_deleted(cluster: LocalCluster, tmp_path: Path) -> None:
    size = len(shard_bytes({f"{key}.txt": b"0" * 2000 for key in "abcd"}))
    assert len(list(pipe(cluster, tmp_path, max_bytes=2 * size))) == 12
    assert len(files(tmp_path)) == 2


def test_a_shard_that_is_read_is_not_disturbed_by_others_who_want_it(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    reading = iter(pipe(cluster, tmp_path))
    first = next(reading)
    assert len(list(pipe(cluster, tmp_path))) == 12
    assert len([first, *reading]) == 12


@pytest.mark.parametrize("fault", [FlipBit(3000), WrongChecksum()])
def test_promise_1_a_damaged_download_is_never_published(
    cluster: LocalCluster, tmp_path: Path, fault: Any
) -> None:
    cluster.faults.add(fault, object="s-1.tar")
    with pytest.raises(AISError) as caught:
        list(pipe(cluster, tmp_path))
    assert caught.value.url is not None
    assert "s-1.tar" in caught.value.url
    assert len(files(tmp_path)) == 1  # s-0 alone, and nothing half
    cluster.faults.clear()
    assert len(list(pipe(cluster, tmp_path))) == 12


def test_promise_5_a_checkpoint_goes_on_out_of_the_cache(cluster: LocalCluster, tmp_path: Path) -> None:
    whole = list(pipe(cluster, tmp_path))
    running = pipe(cluster, tmp_path)
    head = list(itertools.islice(running, 6))
    resumed = pipe(cluster, tmp_path)
    load_state_dict(resumed, state_dict(running))
    assert head + list(resumed) == whole


def test_a_killed_download_leaves_no_lock_behind(cluster: LocalCluster, tmp_path: Path) -> None:
    rule = cluster.faults.add(Bandwidth(4000), object="s-0.tar")
    process = multiprocessing.get_context("fork").Process(target=lambda: list(pipe(cluster, tmp_path)))
    process.start()
    try:
        deadline = time.monotonic() + 60
        while not any(file.suffix == ".part" for file in tmp_path.glob("??/*")):
            assert time.monotonic() < deadline
            assert process.is_alive()
            time.sleep(0.05)
    finally:
        process.kill()
        process.join(60)
    cluster.faults.clear(rule)
    assert len(list(pipe(cluster, tmp_path))) == 12
