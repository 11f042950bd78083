"""Buckets with erasure coding, where a GET of a missing object is 400: a HEAD decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from helpers.command import run
from helpers.raw_server import RawServer, Request

from torchdata_ais import SampleIndex
from torchdata_ais.errors import NotFoundError, ReadError
from torchdata_ais.local import Fault, LocalCluster, Status
from torchdata_ais.store import Retry, StoreOptions, object_exists, open_blocks, read_range
from torchdata_ais.testing import shard_bytes

SHARD = shard_bytes({f"a{n}.txt": b"x" * n for n in range(1, 9)})
MISSING = "ais://ec/none.tar"


@pytest.fixture(scope="module")
def made() -> Iterator[LocalCluster]:
    with LocalCluster(targets=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(made: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    made.reset()
    make_bucket(made, "ec", ec={"enabled": True, "data_slices": 1, "parity_slices": 1})
    made.client().bucket("ec").object("s-0.tar").get_writer().put_content(SHARD)
    monkeypatch.setenv("AIS_ENDPOINT", made.endpoint)
    return made


def make_bucket(cluster: LocalCluster, name: str, **props: object) -> None:
    message = {"action": "create-bck", "name": "", "value": props}
    made = requests.post(f"{cluster.endpoint}/v1/buckets/{name}?provider=ais", json=message, timeout=60)
    assert made.status_code == 200, made.text


def options(cluster: LocalCluster) -> StoreOptions:
    return StoreOptions(endpoint=cluster.endpoint, retry=Retry(3, backoff=0.0, deadline=15.0))


def test_the_cluster_answers_as_a_real_one(cluster: LocalCluster) -> None:
    url = f"{cluster.endpoint}/v1/objects/ec/none.tar?provider=ais"
    answer = requests.get(url, timeout=60)
    assert answer.status_code == 400
    assert "failed to EC-recover ais://ec/none.tar, err: no metafile" in answer.json()["message"]
    assert requests.head(url, allow_redirects=True, timeout=60).status_code == 404
    assert cluster.client().bucket("ec").head()["Ais-Bucket-Props"].count('"enabled":true,"disk_only"') == 1


def test_a_missing_object_is_missing(cluster: LocalCluster) -> None:
    with (
        pytest.raises(NotFoundError, match=r"400 .*EC-recover"),
        open_blocks(MISSING, options(cluster)) as blocks,
    ):
        list(blocks)
    with pytest.raises(NotFoundError) as caught:
        read_range(MISSING, 0, 10, options(cluster))
    assert caught.value.status == 404
    assert not object_exists(MISSING, options(cluster))


def test_an_object_that_is_there_and_refused_is_not_missing(cluster: LocalCluster) -> None:
    cluster.faults.add(Fault(Status(400), verb="GET", bucket="ec"))
    with pytest.raises(ReadError, match="answered 400") as caught:
        read_range("ais://ec/s-0.tar", 0, 10, options(cluster))
    assert caught.value.status == 400
    cluster.faults.add(Fault(Status(404), verb="HEAD", bucket="ec"))
    with pytest.raises(NotFoundError):
        read_range("ais://ec/s-0.tar", 0, 10, options(cluster))


@pytest.mark.parametrize(("there", "kind"), [(200, ReadError), (404, NotFoundError), (500, ReadError)])
def test_a_head_decides_whether_an_object_that_cannot_be_recovered_is_there(
    there: int, kind: type[Exception]
) -> None:
    said = b'{"message":"t[x]: failed to EC-recover ais://b/s.tar, err: not enough slices","status":400}'

    def script(request: Request) -> None:
        status, body = (there, b"") if request.method == "HEAD" else (400, said)
        request.send(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    with RawServer(script) as server:
        store = StoreOptions(server.endpoint, retry=Retry(2, backoff=0.0, deadline=15.0))
        with pytest.raises(kind, match="not enough slices") as caught:
            read_range("ais://b/s.tar", 0, 10, store)
        assert type(caught.value) is kind
        assert [one.method for one in server.requests] == ["GET", "HEAD"]
        assert ("too many slices" in str(caught.value)) == (there == 200)


def test_indexes_and_commands_work(cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        SampleIndex.open("ais://ec/s-")
    assert run("info", "ais://ec/s-0.tar").exit_code == 0
    assert len(SampleIndex.build("ais://ec/s-", where="ais://ec/by-where")) == 8
    assert len(SampleIndex.build("ais://ec/s-").save()) == 8
    assert run("index", "ais://ec/s-").exit_code == 0
    assert SampleIndex.open("ais://ec/s-").keys[0] == "a1"
    assert run("convert", "ais://ec/s-", f"{tmp_path}/t-%d.tar").exit_code == 0
    assert run("convert", "--index", "ais://ec/s-", "ais://ec/t-%d.tar").exit_code == 0
