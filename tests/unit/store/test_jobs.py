"""What is sent to a cluster for its jobs: every argument, once; and a job is done when it is so on each target."""

from __future__ import annotations

import http.client
import json
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from torchdata_ais import SampleIndex
from torchdata_ais.errors import AISError, TransportError
from torchdata_ais.jobs.dsort import DsortSpec, run_dsort
from torchdata_ais.jobs.etl import ensure_etl, etl_logs, shard_etl, transform_bucket
from torchdata_ais.local import LocalCluster
from torchdata_ais.store.jobs import JobError
from torchdata_ais.testing import shard_bytes

Answer = tuple[int, bytes]
Change = Callable[[str, str, Answer], "Answer | None"]


class Between:
    """Stands between a client and a cluster: records what is asked, and may change or swallow what is answered.

    Attributes:
        asked: Method, path and body of each request.
        change: Called with method, path and answer; returns another answer, or None to break the connection.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        self.asked: list[tuple[str, str, bytes]] = []
        self.change: Change = lambda method, path, answer: answer
        behind = urlsplit(cluster.endpoint)
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(handler) -> None:  # noqa: N805 - self is the one around
                body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
                with lock:
                    self.asked.append((handler.command, handler.path, body))
                kept = {
                    name: text
                    for name, text in handler.headers.items()
                    if name.lower() not in ("host", "content-length", "connection")
                }
                with closing(http.client.HTTPConnection(behind.netloc, timeout=60)) as connection:
                    connection.request(handler.command, handler.path, body, kept)
                    response = connection.getresponse()
                    told = self.change(handler.command, handler.path, (response.status, response.read()))
                handler.close_connection = told is None
                if told is None:
                    return
                status, content = told
                handler.send_response(status)
                for name in ("Content-Type", "Location"):
                    if name in response.headers:
                        handler.send_header(name, response.headers[name])
                handler.send_header("Content-Length", str(len(content)))
                handler.end_headers()
                handler.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward  # noqa: N815 - names of http.server

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Between:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(60)
        self._server.server_close()

    def bodies(self, method: str, path: str) -> list[Any]:
        """Return the JSON of the requests with this method whose path begins so."""
        return [
            json.loads(body) for verb, where, body in self.asked if verb == method and where.startswith(path)
        ]


@pytest.fixture
def between(ais_local_cluster: LocalCluster) -> Iterator[Between]:
    bucket = ais_local_cluster.client().bucket("asked").create(exist_ok=True)
    for number in range(4):
        body = shard_bytes({f"{number}-{index}.cls": b"1" for index in range(3)})
        bucket.object(f"s-{number:02d}.tar").get_writer().put_content(body)
    with Between(ais_local_cluster) as running:
        yield running
    bucket.delete()
    ais_local_cluster.client().bucket(".sys-shardidx").delete(missing_ok=True)


def is_start(method: str, path: str) -> bool:
    return method == "POST" and path.startswith("/v1/sort")


def test_a_job_whose_start_is_not_answered_is_not_started_twice(between: Between) -> None:
    """Two of them would write the same shards."""
    between.change = lambda method, path, answer: None if is_start(method, path) else answer
    with pytest.raises(TransportError, match="Start of dSort"):
        run_dsort(between.endpoint, DsortSpec("ais://asked/s-", "ais://asked/new-%d.tar"))
    assert sum(is_start(method, path) for method, path, _ in between.asked) == 1


def test_a_job_is_done_when_it_is_on_all_targets(between: Between) -> None:
    looks = 0

    def slower(method: str, path: str, answer: Answer) -> Answer:
        """Add a target that needs two looks longer."""
        nonlocal looks
        status, body = answer
        if method == "GET" and path.startswith("/v1/sort"):
            infos = json.loads(body)
            (info,) = list(infos.values())[:1]
            if info["Metrics"]["shard_creation"]["finished"]:
                looks += 1
            other = json.loads(json.dumps(info))
            other["Metrics"]["shard_creation"] |= {"finished": looks > 2, "running": looks <= 2}
            body = json.dumps({**infos, "slower": other}).encode()
        return status, body

    between.change = slower
    result = run_dsort(between.endpoint, DsortSpec("ais://asked/s-", "ais://asked/new-%d.tar"), check=True)
    assert (looks, result.samples) == (3, 12)


@pytest.mark.parametrize("where", ["job", "metrics", "one target of two"])
@pytest.mark.parametrize("finished", [True, False])
def test_promise_1_an_aborted_dsort_job_is_an_error(between: Between, where: str, finished: bool) -> None:
    """What it wrote before is no whole result."""

    def aborted(method: str, path: str, answer: Answer) -> Answer:
        if method != "GET" or not path.startswith("/v1/sort"):
            return answer
        infos = json.loads(answer[1])
        (info,) = infos.values()
        if where == "one target of two":
            infos["other"] = json.loads(answer[1]).popitem()[1]
        (info if where != "metrics" else info["Metrics"])["aborted"] = True
        info["Metrics"]["shard_creation"] |= {"finished": finished, "running": False}
        return 200, json.dumps(infos).encode()

    between.change = aborted
    with pytest.raises(JobError, match="failed: it was aborted"):
        run_dsort(between.endpoint, DsortSpec("ais://asked/s-", "ais://asked/new-%d.tar"))


def test_promise_1_a_dsort_job_with_errors_is_an_error_that_has_them(between: Between) -> None:
    def failed(method: str, path: str, answer: Answer) -> Answer:
        if method != "GET" or not path.startswith("/v1/sort"):
            return answer
        infos = json.loads(answer[1])
        (info,) = infos.values()
        info["Metrics"]["errors"] = ["disk full", "", "no such shard"]
        return 200, json.dumps(infos).encode()

    between.change = failed
    with pytest.raises(JobError, match="failed: disk full; no such shard"):
        run_dsort(between.endpoint, DsortSpec("ais://asked/s-", "ais://asked/new-%d.tar"))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(("error", "says"), [("", "it was aborted"), ("no space", "no space")])
def test_promise_1_an_aborted_transform_of_a_bucket_is_an_error(
    between: Between, on_error: Any, error: str, says: str
) -> None:
    looks = 0

    def aborted(method: str, path: str, answer: Answer) -> Answer:
        nonlocal looks
        if b'"etl-bck"' in between.asked[-1][2]:
            return 200, b"job-1"
        if "what=qryxstats" in path:
            return 200, b"{}"
        if "what=status" in path:
            looks += 1
            ended = {"end_time": looks // 2, "aborted": True, "err": error}
            return 200, json.dumps({"kind": "etl-bck", "uuid": "job-1", **ended}).encode()
        return (404, b"no such transform") if path.startswith("/v1/etl") else answer

    between.change = aborted
    with pytest.raises(JobError, match=says):
        transform_bucket(between.endpoint, "t", "ais://asked/s-", "ais://asked/t-", on_error=on_error)
    assert looks == 2  # its end was waited for


def test_promise_6_an_index_job_that_was_aborted_on_a_target_is_not_waited_for(between: Between) -> None:
    """Such a target may never say when its part ended; shards without an index are read."""

    def aborted(method: str, path: str, answer: Answer) -> Answer:
        if "what=qryxstats" not in path or answer[0] != 200:
            return answer
        targets = json.loads(answer[1])
        for part in (part for parts in targets.values() for part in parts or ()):
            part |= {"aborted": True, "end-time": "0001-01-01T00:00:00Z"}
        return 200, json.dumps(targets).encode()

    between.change = aborted
    index = SampleIndex.build("ais://asked/s-", method="cluster", cluster=between.endpoint)
    assert len(index) == 12


def test_a_few_missing_shards_are_all_named(between: Between, caplog: pytest.LogCaptureFixture) -> None:
    spec = DsortSpec("ais://asked/s-{00..06}.tar", "ais://asked/new-%d.tar")
    with caplog.at_level("WARNING", "torchdata_ais"):
        run_dsort(between.endpoint, spec)
    assert caplog.messages[-1].endswith("are passed over: s-04.tar, s-05.tar, s-06.tar")


def test_a_transform_of_a_bucket_is_asked_for_with_all_arguments_and_once(between: Between) -> None:
    def refused(method: str, path: str, answer: Answer) -> Answer | None:
        return None if b'"etl-bck"' in between.asked[-1][2] else answer

    between.change = refused
    with pytest.raises(TransportError):
        transform_bucket(
            between.endpoint, "resize-224", "ais://asked/s-", "ais://asked/t-",
            ext={"tgz": "tar"}, on_error="skip", num_workers=3, timeout="7m",
        )  # fmt: skip
    asked_for = between.bodies("POST", "/v1/buckets/asked")
    (asked,) = (one for one in asked_for if one["action"] == "etl-bck")
    wanted = {
        "id": "resize-224", "prefix": "s-", "prepend": "t-", "ext": {"tgz": "tar"},
        "num-workers": 3, "coer": True, "request_timeout": "7m",
    }  # fmt: skip
    assert {name: asked["value"].get(name) for name in wanted} == wanted


@shard_etl
def as_it_is(sample: Any) -> Any:
    return sample


def test_a_transform_is_asked_for_with_all_arguments_and_once(between: Between) -> None:
    def nothing_there(method: str, path: str, answer: Answer) -> Answer | None:
        if path.startswith("/v1/etl"):
            return None if method == "PUT" else (404, b"no such transform")
        return answer

    between.change = nothing_there
    with pytest.raises(AISError):
        ensure_etl(
            between.endpoint, "as-it-is", as_it_is,
            dependencies=["einops"], comm_type="hpull", init_timeout="3m", obj_timeout="9s", env={"MODE": "x"},
        )  # fmt: skip
    (asked,) = between.bodies("PUT", "/v1/etl")
    assert (asked["name"], asked["communication"], asked["init_timeout"], asked["obj_timeout"]) == (
        "as-it-is", "hpull://", "3m", "9s",
    )  # fmt: skip
    env = {item["name"]: item["value"] for item in asked["runtime"]["env"]}
    assert env["MODE"] == "x"
    assert "einops" in json.dumps(asked)
    assert "torchdata-ais" in json.dumps(asked)


def test_a_transform_made_by_other_means_is_left_alone_or_replaced(between: Between) -> None:
    """Its code cannot be compared: it has no fingerprint."""
    details = {
        "init_msg": {"name": "as-it-is", "communication": "hpush://", "runtime": {"image": "i", "env": []}}
    }
    running = [{"id": "as-it-is", "stage": "Running", "xaction_id": "x"}]

    def foreign(method: str, path: str, answer: Answer) -> Answer | None:
        if method == "PUT" and path.startswith("/v1/etl"):
            return None
        if not path.startswith("/v1/etl"):
            return answer
        one = path.partition("?")[0].rstrip("/") != "/v1/etl"
        return 200, json.dumps(details if one else running).encode() if method == "GET" else b""

    between.change = foreign
    assert ensure_etl(between.endpoint, "as-it-is", as_it_is) == "as-it-is"
    changed = [(method, path) for method, path, _ in between.asked if method != "GET"]
    assert changed == []
    with pytest.raises(AISError):  # it is taken away; the new one does not come here
        ensure_etl(between.endpoint, "as-it-is", as_it_is, replace_other=True)
    changed = [(method, path.partition("?")[0]) for method, path, _ in between.asked if method != "GET"]
    assert changed[:3] == [
        ("POST", "/v1/etl/as-it-is/stop"),
        ("DELETE", "/v1/etl/as-it-is"),
        ("PUT", "/v1/etl"),
    ]


def test_the_end_of_each_log_is_shown(between: Between) -> None:
    text = "".join(f"line {number}\n" for number in range(9))
    logs = [{"target_id": name, "logs": b64encode(text.encode()).decode()} for name in ("t1", "t2")]
    between.change = lambda method, path, answer: (
        (200, json.dumps(logs).encode()) if path.startswith("/v1/etl") else answer
    )
    assert etl_logs(between.endpoint, "as-it-is", 2).split("\n") == [
        "[t1]", "line 7", "line 8", "[t2]", "line 7", "line 8",
    ]  # fmt: skip
