"""Promise 8: no web page can use the embedded cluster, and only who has its secret makes and changes transforms."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import re
import socket
import traceback
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from aistore.sdk import Client
from aistore.sdk.errors import AISError
from helpers.etl_classes import Upper

from torchdata_ais.errors import AuthError
from torchdata_ais.jobs.etl import delete_etl, ensure_etl, etl_logs, list_etls
from torchdata_ais.local import LocalCluster
from torchdata_ais.store.jobs import JobError


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=2, etl=True) as running:
        running.client().bucket("b").create().object("o").get_writer().put_content(b"cat")
        yield running


def ask(url: str, head: str, body: bytes = b"") -> tuple[int, str]:
    """Send a request as it is written and return status and body (of an error, its message)."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=60) as sock:
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        sock.sendall(f"{head}\r\n{length}Connection: close\r\n\r\n".encode("latin-1") + body)
        answer = b""
        while data := sock.recv(65536):
            answer += data
    first, _, rest = answer.partition(b"\r\n\r\n")
    return int(first.split()[1]), first.decode("latin-1") + "\n" + rest.decode("utf-8", "replace")


def only_the_cluster_may_use_the_worker(port: int) -> None:
    url = f"http://127.0.0.1:{port}"
    for lines in ("Host: evil.example", f"Host: 127.0.0.1:{port}\r\nOrigin: http://evil.example"):
        assert ask(url, f"GET /x?etl_fqn=/etc/passwd HTTP/1.1\r\n{lines}")[0] == 403
    assert ask(url, f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port}")[0] == 200


def nodes(cluster: LocalCluster) -> list[str]:
    return [cluster.endpoint, *cluster.target_urls]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:51080", "127.0.0.1.evil.example", "localhost.evil.example", "localhost.",
        "evil@localhost", "127.0.0.1@evil.example", "127.0.0.1:80:80", "127.0.0.2", "0.0.0.0", "[::]", "[::1", "::1",
        "localhost:x", "", "2130706433", "localhost, evil.example", "127.0.0.1 evil", "evil.example#localhost",
    ],
)  # fmt: skip
def test_another_host_is_refused_by_every_node(cluster: LocalCluster, host: str) -> None:
    for url in nodes(cluster):
        for what in ("GET /v1/health", "GET /v1/objects/b/o", "PUT /v1/objects/b/new", "POST /v1/nonsense"):
            status, text = ask(url, f"{what} HTTP/1.1\r\nHost: {host}", b"x" if "PUT" in what else b"")
            assert status == 403, (what, text)
            assert "127.0.0.1, localhost and [::1]" in text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost:1", "[::1]:65535", "127.0.0.1:51080"])
def test_this_machine_by_any_name_and_port_is_answered(cluster: LocalCluster, host: str) -> None:
    for url in nodes(cluster):
        assert ask(url, f"GET /v1/health HTTP/1.1\r\nHost: {host}")[0] == 200


@pytest.mark.parametrize(
    "header",
    [
        "Origin: http://evil.example", "Origin: null", "Origin: https://127.0.0.1:PORT", "Origin: http://localhost:1",
        "Origin: http://127.0.0.1", "Origin: http://127.0.0.1:PORT.evil.example", "Origin:", "Origin: file://",
        "Origin: http://127.0.0.1:PORT\r\nOrigin: http://evil.example", "oRIGIN: HTTP://EVIL.EXAMPLE",
        "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "sec-fetch-site: Cross-Site", "Sec-Fetch-Site: new",
        "Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site",
    ],
)  # fmt: skip
def test_a_web_page_is_refused_by_every_node(cluster: LocalCluster, header: str) -> None:
    simple = json.dumps({"action": "create-bck"}).encode()
    for url in nodes(cluster):
        port = urlsplit(url).port
        for what in ("GET /v1/objects/b/o", "POST /v1/buckets/evil", "POST /v1/sort", "OPTIONS /v1/etl"):
            head = f"{what} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: text/plain\r\n{header}"
            status, text = ask(url, head.replace("PORT", str(port)), simple if "POST" in what else b"")
            assert status == 403, (what, text)
    assert "evil" not in [bucket.name for bucket in cluster.client().cluster().list_buckets()]


def test_what_is_typed_or_of_the_cluster_itself_is_answered(cluster: LocalCluster) -> None:
    host = f"Host: {cluster.endpoint.removeprefix('http://')}"
    for header in (f"Origin: {cluster.endpoint}", "Sec-Fetch-Site: none", "Sec-Fetch-Site: same-origin"):
        assert ask(cluster.endpoint, f"GET /v1/health HTTP/1.1\r\n{host}\r\n{header}")[0] == 200


def test_the_host_of_an_absolute_target_counts_and_old_requests_name_one(cluster: LocalCluster) -> None:
    url = cluster.endpoint
    assert ask(url, "GET http://evil.example/v1/health HTTP/1.1\r\nHost: 127.0.0.1")[0] == 403
    assert ask(url, "GET http://127.0.0.1/v1/health HTTP/1.1\r\nHost: evil.example")[0] == 403
    assert ask(url, "GET http://127.0.0.1/v1/health HTTP/1.1\r\nHost: 127.0.0.1")[0] == 200
    assert ask(url, "GET /v1/health HTTP/1.0")[0] == 403
    assert ask(url, "GET /v1/health HTTP/1.0\r\nHost: localhost")[0] == 200
    assert ask(url, "GET /v1/health HTTP/1.1")[0] == 400
    assert ask(url, "GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: 127.0.0.1")[0] == 400


@pytest.mark.ci
def test_transforms_are_made_and_changed_with_the_secret_only(cluster: LocalCluster) -> None:
    cluster.client().etl("upper-a").init_class()(Upper)
    log = cluster.client().etl("upper-a").logs()[0].logs
    worker = re.search(r"http://127\.0\.0\.1:\d+|port (\d+)|:(\d{4,5})", log)
    assert worker, log
    only_the_cluster_may_use_the_worker(int(re.findall(r"\d{4,5}", worker[0])[-1]))
    stranger = Client(cluster.endpoint, token="guessed")
    for action in (
        lambda etl: etl.init_class()(Upper),
        lambda etl: etl.stop(),
        lambda etl: etl.start(),
        lambda etl: etl.delete(),
    ):
        for client in (Client(cluster.endpoint), stranger):
            with pytest.raises(AISError, match=r"401.*LocalCluster\.client\(\).*AIS_AUTHN_TOKEN"):
                action(client.etl("upper-a"))
    assert [etl.id for etl in stranger.cluster().list_etls()] == ["upper-a"]
    with cluster.env():
        Client(cluster.endpoint).etl("upper-a").stop()
    again = pickle.loads(pickle.dumps(cluster.client()))
    again.etl("upper-a").delete()
    assert stranger.cluster().list_etls() == []


@pytest.mark.parametrize(
    "token", ["", "Bearer", "Bearer ", "Basic SECRET", "SECRET", "Bearer SECRETx", "Bearer é"]
)
def test_only_the_whole_secret_as_a_bearer_token_counts(cluster: LocalCluster, token: str) -> None:
    token = token.replace("SECRET", cluster.token)
    head = f"PUT /v1/etl HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}"
    status, text = ask(cluster.endpoint, head, b"{}")
    assert status == 401
    assert "WWW-Authenticate: Bearer" in text


@pytest.mark.ci
def test_ensure_etl_takes_the_cluster_and_its_refusal_names_both_ways(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ensure_etl(cluster, "upper-b", Upper) == "upper-b"
    assert [row["name"] for row in list_etls(cluster)] == ["upper-b"]
    assert etl_logs(cluster, "upper-b").startswith("[")
    monkeypatch.delenv("AIS_AUTHN_TOKEN", raising=False)
    with pytest.raises(AuthError, match=r"LocalCluster itself, or set AIS_AUTHN_TOKEN"):
        delete_etl(cluster.endpoint, "upper-b")
    with pytest.raises(JobError, match=r"LocalCluster itself, or set AIS_AUTHN_TOKEN"):
        ensure_etl(cluster.endpoint, "upper-c", Upper)
    monkeypatch.setenv("AIS_AUTHN_TOKEN", cluster.token)
    delete_etl(cluster.endpoint, "upper-b")


def refusal_with_all_values(cluster: LocalCluster) -> str:
    """Return the traceback of a refused call, with the values of all variables, as some loggers write it."""
    try:
        ensure_etl(Client(cluster.endpoint, token="wrong"), "never-made", Upper)
    except JobError as error:
        return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    raise AssertionError("the refusal is missing")


def test_the_secret_is_new_with_each_start_and_shown_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = LocalCluster(targets=1, etl=True)
    tokens = set()
    for _ in range(2):
        with cluster:
            tokens.add(cluster.token)
            cluster.client().cluster().list_etls()
            requests = cluster.requests()
            log = (cluster.root / "server.log").read_text()
            shown = f"{cluster!r} {vars(cluster)} {requests} {[row.headers for row in requests]} {log}"
            assert "Bearer ***" in shown
            shown += refusal_with_all_values(cluster)
            assert cluster.token not in shown + "".join(capsys.readouterr())
    assert len(tokens) == 2
    assert all(len(token) >= 32 for token in tokens)


def test_env_gives_and_takes_back_both_variables(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    monkeypatch.setenv("AIS_AUTHN_TOKEN", "before")
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    with cluster.env():
        assert (os.environ["AIS_ENDPOINT"], os.environ["AIS_AUTHN_TOKEN"]) == (
            cluster.endpoint,
            cluster.token,
        )
    assert os.environ["AIS_AUTHN_TOKEN"] == "before"
    assert "AIS_ENDPOINT" not in os.environ


def _in_a_fork(cluster: LocalCluster, out: Any) -> None:
    body = cluster.client().bucket("b").object("o").get_reader().read_all()
    out.send((cluster.running, cluster.endpoint, len(cluster.client().cluster().list_etls()), body))


def test_a_fork_of_the_process_uses_the_cluster(cluster: LocalCluster) -> None:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_in_a_fork, args=(cluster, there))
    process.start()
    there.close()  # so that its end there is the end
    try:
        assert here.poll(60)
        assert here.recv() == (True, cluster.endpoint, 0, b"cat")
    finally:
        process.join(60)
        process.kill()
