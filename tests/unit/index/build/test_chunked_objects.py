"""Objects that were uploaded in parts: indexed by reading only, and explained where a job has damaged one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from helpers.command import run

from torchdata_ais import AISFileLoader, SampleIndex
from torchdata_ais.cli.checks import diagnose, lint_shards
from torchdata_ais.errors import ReadError
from torchdata_ais.index.build import by_cluster
from torchdata_ais.index.build.by_cluster import run_index_job
from torchdata_ais.index.build.by_reading import Indexing
from torchdata_ais.local import Cut, Fault, LocalCluster
from torchdata_ais.store import Retry, StoreOptions, read_range
from torchdata_ais.store.jobs import JobError
from torchdata_ais.testing import shard_bytes
from torchdata_ais.urls import ObjectURL

SHARD = shard_bytes(
    {f"a{n:04d}.{ext}": f"{n}{ext}".encode() * 50 for n in range(40) for ext in ("txt", "cls")}
)
THIRD = len(SHARD) // 3 + 1


@pytest.fixture(scope="module")
def made() -> Iterator[LocalCluster]:
    with LocalCluster(targets=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(made: LocalCluster) -> LocalCluster:
    made.reset()
    made.client().bucket("b").create()
    return made


def upload(cluster: LocalCluster, name: str, order: tuple[int, ...] = (0, 1, 2)) -> None:
    """Upload the shard in parts that arrive in this order."""
    parts = cluster.client().bucket("b").object(name).multipart_upload().create()
    for part in order:
        parts.add_part(part + 1).put_content(SHARD[part * THIRD : (part + 1) * THIRD])
    parts.complete()


def put(cluster: LocalCluster, name: str) -> None:
    cluster.client().bucket("b").object(name).get_writer().put_content(SHARD)


def flags(cluster: LocalCluster) -> dict[str, int]:
    listed = cluster.client().bucket("b").list_all_objects(props="name,size,checksum,flags")
    return {entry.name: entry.flags for entry in listed}


def bytes_of(cluster: LocalCluster, name: str) -> bytes:
    return requests.get(f"{cluster.endpoint}/v1/objects/b/{name}?provider=ais", timeout=60).content


def build(cluster: LocalCluster, source: str, **how: Any) -> SampleIndex:
    return SampleIndex.build(source, cluster=cluster.endpoint, **how)


def jobs(cluster: LocalCluster) -> int:
    return sum(one.method == "POST" and "/v1/buckets/" in one.url for one in cluster.requests())


def test_parts_are_listed_as_such_and_give_a_crc32c_if_they_came_in_another_order(
    cluster: LocalCluster,
) -> None:
    upload(cluster, "in.tar")
    upload(cluster, "out.tar", (2, 0, 1))
    put(cluster, "one.tar")
    assert flags(cluster) == {"in.tar": 8256, "out.tar": 8256, "one.tar": 64}
    for name, kind in (("in.tar", "xxhash2"), ("out.tar", "crc32c"), ("one.tar", "xxhash2")):
        answer = requests.head(
            f"{cluster.endpoint}/v1/objects/b/{name}?provider=ais", allow_redirects=True, timeout=10
        )
        assert answer.headers["Ais-Checksum-Type"] == kind
        chunked = requests.head(f"{answer.url}&props=chunked", timeout=60).headers.get("Ais-Chunks-Count")
        assert chunked == (None if name == "one.tar" else "3")
        assert bytes_of(cluster, name) == SHARD


@pytest.mark.parametrize("how", ["build", "save", "index", "convert", "lint"])
def test_promise_8_no_default_of_indexing_changes_an_object_in_parts(
    cluster: LocalCluster, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIS_ENDPOINT", cluster.endpoint)
    upload(cluster, "s-0.tar")
    cluster.reset_stats()
    if how == "build":
        assert build(cluster, "ais://b/s-").proof == "bytes"
    elif how == "save":
        assert len(build(cluster, "ais://b/s-").save()) == 40
    elif how == "index":
        assert run("index", "ais://b/s-").exit_code == 0
    elif how == "convert":
        assert run("convert", "--index", "ais://b/s-", "ais://b/t-%03d.tar").exit_code == 0
    else:
        assert run("lint", "--no-decode", "--index", "ais://b/s-").exit_code == 0
    assert jobs(cluster) == 0
    assert bytes_of(cluster, "s-0.tar") == SHARD


@pytest.mark.parametrize(
    "sources", ["ais://b/s-", ["ais://c/s-", "ais://b/s-0.tar"]], ids=["prefix", "buckets"]
)
def test_promise_8_the_job_of_the_cluster_is_not_started_over_parts(
    cluster: LocalCluster, sources: Any
) -> None:
    cluster.client().bucket("c").create().object("s-9.tar").get_writer().put_content(SHARD)
    put(cluster, "s-0.tar")
    upload(cluster, "s-0.tar.copy")  # not a shard of the index, and within the prefix of the job
    cluster.reset_stats()
    with pytest.raises(
        JobError, match=r"ais://b/s-0\.tar\.copy was uploaded in parts.*not started"
    ) as caught:
        build(cluster, sources, method="cluster")
    assert 'method="read"' in caught.value.todo
    assert jobs(cluster) == 0
    shown = run("index", "--method", "cluster", "ais://b/s-", "--endpoint", cluster.endpoint)
    assert shown.exit_code == 1
    assert "was uploaded in parts" in shown.stderr
    assert bytes_of(cluster, "s-0.tar.copy") == SHARD
    assert build(cluster, "ais://c/s-", method="cluster").proof == "headers"


def test_promise_8_the_job_is_not_started_where_the_listing_lacks_a_shard(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cluster, "s-0.tar")
    monkeypatch.setattr("torchdata_ais.index.build.by_cluster.list_bucket", lambda *_, **__: [])
    with pytest.raises(JobError, match=r"isting of ais://b/s-0.tar lacks the shard s-0.tar"):
        build(cluster, "ais://b/s-", method="cluster")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ais://#ml/b/s-0.tar", "its bucket is in the namespace .*#ml"),
        ("s3://b/s-0.tar", "its bucket belongs to the provider aws"),
        (
            "http://h:1/v1/objects/b/s-0.tar?provider=ais&etl_name=x",
            "its URL asks for a derived object .*etl_name",
        ),
        ("/data/s-0.tar", "it is not an object of a cluster"),
    ],
)
def test_what_the_job_cannot_index_is_an_error_with_the_cause(url: str, why: str) -> None:
    how = Indexing(StoreOptions(endpoint="http://127.0.0.1:9"), "cluster")
    with pytest.raises(JobError, match=rf"method=\"cluster\" cannot index .*: {why}") as caught:
        list(by_cluster.indexed_by_cluster([ObjectURL(url)], how))
    assert 'method="read"' in caught.value.todo


def damage(cluster: LocalCluster, name: str = "s-0.tar") -> StoreOptions:
    upload(cluster, name)
    options = StoreOptions(endpoint=cluster.endpoint, retry=Retry(backoff=0.01, deadline=20))
    run_index_job("b", name, options)
    return options


def test_without_the_check_the_job_destroys_the_object(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(cluster, "s-0.tar")
    monkeypatch.setattr(by_cluster, "check_unchunked", lambda *_: None)
    with pytest.raises(ReadError, match="errsize"):
        build(cluster, "ais://b/s-", method="cluster")
    assert flags(cluster)["s-0.tar"] == 64
    answer = requests.get(f"{cluster.endpoint}/v1/objects/b/s-0.tar?provider=ais", timeout=60)
    assert (answer.status_code, answer.json()["tcode"]) == (500, "ErrLmetaCorrupted")
    assert answer.json()["message"] == f"errsize ({len(SHARD)} != {THIRD})"


@pytest.mark.parametrize("noticed", [False, True], ids=["breaks off", "ErrLmetaCorrupted"])
def test_a_damaged_shard_is_explained(cluster: LocalCluster, noticed: bool) -> None:
    options = damage(cluster)
    assert flags(cluster)["s-0.tar"] == 64
    if noticed:
        with pytest.raises(requests.RequestException):
            bytes_of(cluster, "s-0.tar")
    with pytest.raises(ReadError, match=rf"ErrLmetaCorrupted: errsize \({len(SHARD)} != {THIRD}\)") as caught:
        list(AISFileLoader(["ais://b/s-0.tar"], cluster=options))
    assert "shard index job leaves only the first part" in caught.value.todo
    report = lint_shards("ais://b/s-", cluster=options, decode=False)
    assert "shard index job leaves only the first part" in str(report.shards[0].problems[0])
    with pytest.raises(ReadError, match="errsize"):
        read_range("ais://b/s-0.tar", THIRD, 1, options)


def test_a_body_that_always_ends_at_one_byte_is_explained(cluster: LocalCluster) -> None:
    put(cluster, "s-0.tar")
    cluster.faults.add(Fault(Cut(THIRD), nth=1))
    cluster.faults.add(Fault(Cut(0), nth=range(2, 20)))
    options = StoreOptions(endpoint=cluster.endpoint, retry=Retry(attempts=3, backoff=0.01))
    with pytest.raises(ReadError, match=f"the body broke off at byte {THIRD} of {len(SHARD)}") as caught:
        list(AISFileLoader(["ais://b/s-0.tar"], cluster=options))
    assert "if it always ends at this byte, remove the object and store it again" in caught.value.todo
    with pytest.raises(ReadError, match="broke off after 0 bytes") as caught:
        read_range("ais://b/s-0.tar", 0, 10, options)
    assert "if it always ends at this byte" in caught.value.todo
    cluster.faults.clear()
    cluster.faults.add(Fault(Cut(THIRD), times=1))
    assert len(list(AISFileLoader(["ais://b/s-0.tar"], cluster=options))) == 80


def test_doctor_finds_damaged_shards_and_names_those_in_parts(cluster: LocalCluster) -> None:
    put(cluster, "s-1.tar")

    def shards() -> dict[str, str]:
        result = run("doctor", "--json", "ais://b/s-", "--endpoint", cluster.endpoint)
        (check,) = [one for one in json.loads(result.stdout)["checks"] if one["name"] == "shards"]
        assert (result.exit_code == 1) == (check["state"] == "bad")
        return check

    assert shards()["state"] == "ok"
    upload(cluster, "s-2.tar")
    assert "1 of them were uploaded in parts" in shards()["text"]
    damage(cluster)
    check = shards()
    assert check["state"] == "bad"
    assert "1 of 3 shards cannot be read to the last byte" in check["text"]
    assert "s-0.tar" in check["text"]
    assert "shard index job leaves only the first part" in check["todo"]
    (check, *_) = [one for one in diagnose(cluster.endpoint, shards="/tmp/x") if one.name == "shards"]
    assert check.state == "bad"
