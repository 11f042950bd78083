"""ETL on the embedded cluster: the SDK's server class in a child process, only when asked for."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from aistore.sdk.errors import AISError, ErrETLAlreadyExists, ErrETLNotFound
from aistore.sdk.etl import ETLConfig
from helpers.etl_classes import Broken, Doubled, Upper

from torchdata_ais.local import LocalCluster
from torchdata_ais.local.server import etl as local_etl
from torchdata_ais.local.server.problem import ReplyError

WAIT_S = 16


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=2, etl=True) as running:
        client = running.client()
        client.etl("upper-1").init_class()(Upper)
        client.etl("doubled-1").init_class()(Doubled)
        yield running


@pytest.fixture
def bucket(cluster: LocalCluster) -> Iterator[Any]:
    made = cluster.client().bucket("b").create()
    made.object("a.txt").get_writer().put_content(b"abc")
    yield made
    made.delete()


def test_etl_is_refused_unless_asked_for(ais_local_cluster: LocalCluster) -> None:
    with pytest.raises(AISError, match="501"):
        ais_local_cluster.client().cluster().list_etls()
    with pytest.raises(AISError, match="501"):
        ais_local_cluster.client().etl("upper-1").init_class()(Upper)


@pytest.mark.ci
def test_inline_transforms_with_arguments_and_in_a_row(cluster: LocalCluster, bucket: Any) -> None:
    client = cluster.client()
    thing = bucket.object("a.txt")
    assert thing.get_reader(etl=ETLConfig("upper-1")).read_all() == b"ABC"
    assert thing.get_reader(etl=ETLConfig("upper-1", args="-x y")).read_all() == b"ABC-x y"
    both = client.etl("upper-1") >> client.etl("doubled-1")
    assert thing.get_reader(etl=ETLConfig(both)).read_all() == b"ABCABC"


@pytest.mark.ci
def test_transforms_are_listed_viewed_stopped_and_started(cluster: LocalCluster, bucket: Any) -> None:
    client = cluster.client()
    assert {etl.id for etl in client.cluster().list_etls()} == {"upper-1", "doubled-1"}
    with pytest.raises(ErrETLAlreadyExists):
        client.etl("upper-1").init_class()(Upper)
    with pytest.raises(ErrETLNotFound):
        client.etl("no-such-etl").view()
    etl = client.etl("second-upper")
    etl.init_class(comm_type="hpull")(Upper)
    assert etl.view().init_msg.communication == "hpull://"
    assert bucket.object("a.txt").get_reader(etl=ETLConfig("second-upper")).read_all() == b"ABC"
    etl.stop()
    assert (
        requests.get(f"{cluster.endpoint}/v1/objects/b/a.txt?etl_name=second-upper", timeout=60).status_code
        == 404
    )
    etl.start()
    assert bucket.object("a.txt").get_reader(etl=ETLConfig("second-upper")).read_all() == b"ABC"
    etl.stop()
    etl.delete()
    with pytest.raises(ErrETLNotFound):
        etl.view()


def test_an_error_of_the_transform_is_the_requests(cluster: LocalCluster, bucket: Any) -> None:
    bucket.object("bad").get_writer().put_content(b"bad")
    answer = requests.get(f"{cluster.endpoint}/v1/objects/b/bad?etl_name=upper-1", timeout=60)
    assert answer.status_code == 500
    assert "upper-1" in answer.json()["message"]
    assert "ais://b/bad" in answer.json()["message"]
    assert "bad input" in "".join(entry.logs for entry in cluster.client().etl("upper-1").logs())


def test_a_class_that_cannot_start_says_why(cluster: LocalCluster) -> None:
    etl = cluster.client().etl("broken-1")
    with pytest.raises(AISError, match="cannot start, on purpose"):
        etl.init_class(init_timeout="20s")(Broken)
    with pytest.raises(ErrETLNotFound):
        etl.view()


def test_packages_that_are_missing_and_images_are_refused(cluster: LocalCluster) -> None:
    etl = cluster.client().etl("missing-1")
    with pytest.raises(AISError, match="no-such-package-here"):
        etl.init_class(dependencies=["requests", "no-such-package-here>=1"])(Upper)
    with pytest.raises(AISError, match="501"):
        etl.init(image="busybox", command="cat")


def test_whole_buckets_and_groups_are_transformed(cluster: LocalCluster, bucket: Any) -> None:
    client = cluster.client()
    for number in range(5):
        bucket.object(f"n-{number}.txt").get_writer().put_content(b"n%d" % number)
    to = client.bucket("to")
    job = client.job(bucket.transform("upper-1", to, prefix_filter="n-", prepend="new/", ext={"txt": "up"}))
    assert job.wait(timeout=WAIT_S).success
    assert [entry.name for entry in to.list_all_objects()] == [f"new/n-{number}.up" for number in range(5)]
    assert to.object("new/n-3.up").get_reader().read_all() == b"N3"
    client.job(bucket.objects(obj_names=["a.txt"]).transform(to, "doubled-1")).wait_for_idle(timeout=WAIT_S)
    assert to.object("a.txt").get_reader().read_all() == b"abcabc"
    to.delete()


def test_a_failed_object_fails_the_job_or_is_passed_over(cluster: LocalCluster, bucket: Any) -> None:
    client = cluster.client()
    bucket.object("bad").get_writer().put_content(b"bad")
    to = client.bucket("to").create()
    job_id = bucket.transform("upper-1", to)
    result = client.job(job_id).wait(timeout=WAIT_S)
    assert not result.success
    assert "ais://b/bad" in result.error
    job_id = bucket.transform("upper-1", to, cont_on_err=True)
    client.job(job_id).wait(timeout=WAIT_S)
    assert to.object("a.txt").get_reader().read_all() == b"ABC"
    assert [error.obj_name for error in client.etl("upper-1").view(job_id).obj_errors] == ["bad"]
    to.delete()


def workers_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.ci
@pytest.mark.parametrize("how", ["stop", pytest.param("kill", marks=pytest.mark.ci)])
def test_workers_end_with_the_cluster(how: str) -> None:
    cluster = LocalCluster(targets=1, etl=True).start()
    try:
        cluster.client().etl("upper-1").init_class()(Upper)
        workers = workers_of(cluster.pid)
        assert len(workers) == 1
        if how == "kill":
            os.kill(cluster.pid, signal.SIGKILL)
    finally:
        cluster.stop()
    end = time.monotonic() + 60
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_nobody_gets_the_port_of_a_worker_that_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ports = []

    def popen(command: list[str], **_: Any) -> Any:
        ports.append(int(command[2]))
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", ports[0]))
        raise OSError("far enough")

    monkeypatch.setattr(local_etl.subprocess, "Popen", popen)
    with pytest.raises(ReplyError, match="far enough"):
        local_etl.Etl({"name": "upper-1"}, tmp_path / "log", "http://127.0.0.1:1", []).start()
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports[0]))
