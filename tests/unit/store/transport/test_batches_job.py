"""The job that GetBatch keeps on the cluster, which blocks maintenance; and reading by index without it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from torchdata_ais import AISSampleReader, SampleDataset, SampleIndex
from torchdata_ais.local import LocalCluster
from torchdata_ais.store import StoreOptions
from torchdata_ais.testing import shard_bytes


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as made:
        bucket = made.client().bucket("b").create()
        members = {f"a{n:03d}.bin": bytes([n]) * 30_000 for n in range(60)}
        bucket.object("s-0.tar").get_writer().put_content(shard_bytes(members))
        yield made


def maintenance(cluster: LocalCluster, action: str) -> requests.Response:
    message = {"action": action, "value": {"sid": "x"}}
    return requests.put(f"{cluster.endpoint}/v1/cluster", json=message, timeout=60)


def read(cluster: LocalCluster, **how: bool) -> list[str]:
    options = StoreOptions(endpoint=cluster.endpoint, **how)  # type: ignore[arg-type]
    index = SampleIndex.build("ais://b/s-", cluster=options)
    cluster.reset_stats()
    return [sample["__key__"] for sample in AISSampleReader(index, shuffle="samples", cluster=options)]


def batches(cluster: LocalCluster) -> int:
    return sum("/v1/ml/moss" in one.url for one in cluster.requests())


def test_get_batch_keeps_a_job_that_blocks_maintenance(cluster: LocalCluster) -> None:
    assert maintenance(cluster, "start-maintenance").status_code == 501
    assert len(read(cluster)) == 60
    assert batches(cluster)
    (job,) = cluster.client().cluster().list_running_jobs()
    assert job.startswith("get-batch[gbt-")
    for action in ("start-maintenance", "stop-maintenance"):
        answer = maintenance(cluster, action)
        assert (answer.status_code, answer.json()["tcode"]) == (409, "ErrLimitedCoexistence")
        assert "x-get-batch" in answer.json()["message"]
        assert "is currently running" in answer.json()["message"]
    stop = {"action": "stop", "value": {"Kind": "get-batch"}}  # Job.abort() is younger than the oldest SDK
    requests.put(f"{cluster.endpoint}/v1/cluster", json=stop, timeout=10).raise_for_status()
    assert cluster.client().cluster().list_running_jobs() == []


def test_ranges_alone_keep_none(cluster: LocalCluster) -> None:
    keys = read(cluster)
    cluster.reset()
    bucket = cluster.client().bucket("b").create()
    members = {f"a{n:03d}.bin": bytes([n]) * 30_000 for n in range(60)}
    bucket.object("s-0.tar").get_writer().put_content(shard_bytes(members))
    assert read(cluster, get_batch=False) == keys
    assert batches(cluster) == 0
    assert cluster.client().cluster().list_running_jobs() == []
    options = StoreOptions(endpoint=cluster.endpoint, get_batch=False)
    dataset = SampleDataset(SampleIndex.build("ais://b/s-", cluster=options), cluster=options)
    assert len(dataset.__getitems__([5, 1, 40, 20, 33, 12, 50, 9, 28, 3, 59])) == 11
    assert batches(cluster) == 0
