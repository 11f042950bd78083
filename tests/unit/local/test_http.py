"""The embedded cluster on the wire: connections, redirects, bodies, and what it refuses by name."""

from __future__ import annotations

import html
import json
import resource
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
import urllib3

from torchdata_ais.local import LocalCluster


class Raw:
    """A connection on which requests are written and answers are read by hand."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.sock = socket.create_connection((parts.hostname, parts.port or 80), timeout=60)
        self.buffer = b""

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def head(self) -> tuple[int, dict[str, str]]:
        while b"\r\n\r\n" not in self.buffer:
            data = self.sock.recv(65536)
            assert data, "the connection was closed"
            self.buffer += data
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        return int(lines[0].split()[1]), {
            k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:])
        }

    def body(self, size: int) -> bytes:
        while len(self.buffer) < size:
            data = self.sock.recv(65536)
            assert data, "the connection was closed"
            self.buffer += data
        body, self.buffer = self.buffer[:size], self.buffer[size:]
        return body

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, headers = self.head()
        return status, headers, self.body(int(headers.get("content-length", 0)))

    def closed(self) -> bool:
        return self.sock.recv(1) == b""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=3) as running:
        running.client().bucket("b").create()
        yield running


@pytest.fixture
def raw(cluster: LocalCluster) -> Iterator[Any]:
    made: list[Raw] = []

    def connect(url: str = cluster.endpoint) -> Raw:
        made.append(Raw(url))
        return made[-1]

    yield connect
    for connection in made:
        connection.sock.close()


def put(cluster: LocalCluster, name: str, body: bytes) -> None:
    cluster.client().bucket("b").object(name).get_writer().put_content(body)


def owner_of(cluster: LocalCluster, name: str) -> str:
    answer = requests.get(f"{cluster.endpoint}/v1/objects/b/{name}", allow_redirects=False, timeout=60)
    parts = urlsplit(answer.headers["Location"])
    return f"http://{parts.netloc}"


def test_one_connection_answers_many_requests_even_when_they_come_at_once(raw: Any) -> None:
    connection = raw()
    first = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    connection.send(first + first.replace(b"health", b"nonsense"))
    assert connection.answer()[0] == 200
    assert connection.answer()[0] == 400
    connection.send(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert connection.answer()[0] == 200
    assert connection.closed()


def test_what_is_not_http_is_a_400_and_the_end(raw: Any) -> None:
    connection = raw()
    connection.send(b"hello\r\n\r\n")
    assert connection.head()[0] == 400


@pytest.mark.parametrize("name", ["<script>alert('1')</script>", '"><b>', "a&b", "plain.tar"])
def test_a_redirect_page_has_no_html_of_the_request(raw: Any, name: str) -> None:
    connection = raw()
    connection.send(f"GET /v1/objects/b/{name}?provider=ais HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    status, headers, body = connection.answer()
    assert status == 301
    assert headers["content-type"].startswith("text/html")
    page = body.decode()
    assert page.startswith('<a href="')
    assert page.endswith('">Moved Permanently</a>.\n\n')
    inside = page[len('<a href="') :].partition('"')[0]
    assert html.unescape(inside) == headers["location"]
    assert not set(inside) & set("<>'")
    assert page.count("<") == page.count(">") == 2


def test_a_put_is_redirected_before_its_body_is_sent(raw: Any) -> None:
    connection = raw()
    connection.send(b"PUT /v1/objects/b/late HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
    status, headers, _ = connection.answer()
    assert status == 307
    assert "/v1/objects/b/late?" in headers["location"]
    connection.send(b"x" * 1_000_000 + b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.answer()[0] == 200


def test_a_client_that_waits_for_100_is_redirected_without_sending(raw: Any) -> None:
    connection = raw()
    connection.send(
        b"PUT /v1/objects/b/late HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n"
    )
    status, headers, _ = connection.answer()
    assert (status, headers["connection"]) == (307, "close")
    assert connection.closed()


def test_an_answer_says_whether_the_connection_goes_on(cluster: LocalCluster, raw: Any) -> None:
    put = b"PUT /v1/objects/b/wrong HTTP/1.1\r\nHost: localhost\r\nAis-Checksum-Value: 0\r\n"
    connection = raw(owner_of(cluster, "wrong"))
    connection.send(put + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
    status, headers, _ = connection.answer()
    assert (status, "connection" in headers) == (500, False)
    connection.send(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    status, headers, _ = connection.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert connection.closed()


@pytest.mark.parametrize("framing", ["Content-Length: 2000000", "Transfer-Encoding: chunked"])
def test_a_body_that_found_no_room_is_read_to_its_end_and_the_connection_goes_on(
    cluster: LocalCluster, raw: Any, framing: str
) -> None:
    connection = raw(owner_of(cluster, "full"))
    body = b"x" * 2_000_000
    if "chunked" in framing:
        body = b"%x\r\n%b\r\n" % (1_500_000, body[:1_500_000]) + b"%x\r\n%b\r\n0\r\n\r\n" % (
            500_000,
            body[1_500_000:],
        )
    before = resource.prlimit(cluster.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(cluster.pid, resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        connection.send(
            f"PUT /v1/objects/b/full HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n".encode() + body
        )
        status, headers, _ = connection.answer()
    finally:
        resource.prlimit(cluster.pid, resource.RLIMIT_FSIZE, before)
    assert (status, "connection" in headers) == (507, False)
    connection.send(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.answer()[0] == 200


def test_a_target_asks_for_the_body_of_a_client_that_waits_for_100(cluster: LocalCluster, raw: Any) -> None:
    connection = raw(owner_of(cluster, "wait"))
    connection.send(
        b"PUT /v1/objects/b/wait HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    )
    assert connection.head()[0] == 100
    connection.send(b"abc")
    assert connection.answer()[0] == 200
    assert cluster.client().bucket("b").object("wait").get_reader().read_all() == b"abc"


def test_bodies_in_chunks_are_stored(cluster: LocalCluster) -> None:
    answer = requests.put(
        f"{owner_of(cluster, 'chunks')}/v1/objects/b/chunks",
        data=iter([b"a" * 70_000, b"b", b"c" * 3]),
        timeout=60,
    )
    assert answer.status_code == 200
    assert cluster.client().bucket("b").object("chunks").get_reader().read_all() == b"a" * 70_000 + b"bccc"


@pytest.mark.parametrize("size", [0, 1, 300_000, 20_000_000])
def test_requests_and_urllib3_put_through_the_redirect_again_and_again(
    cluster: LocalCluster, size: int
) -> None:
    body = b"z" * size
    url = f"{cluster.endpoint}/v1/objects/b/size-{size}"
    with requests.Session() as session:
        for _ in range(3):
            assert session.put(url, data=body, timeout=60).status_code == 200
        assert session.get(url, timeout=60).content == body
    with urllib3.PoolManager() as pool:
        assert pool.request("PUT", url, body=body).status == 200
        assert pool.request("GET", url).data == body


def test_a_put_that_breaks_off_leaves_the_old_object(cluster: LocalCluster, raw: Any) -> None:
    put(cluster, "stays", b"old")
    connection = raw(owner_of(cluster, "stays"))
    connection.send(
        b"PUT /v1/objects/b/stays HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf"
    )
    connection.sock.shutdown(socket.SHUT_WR)
    assert connection.closed()
    thing = cluster.client().bucket("b").object("stays")
    assert thing.get_reader().read_all() == b"old"
    assert thing.props.obj_version == "1"
    assert len(list((cluster.root / "data").glob("*/*"))) == len(
        [
            entry
            for bucket in cluster.client().cluster().list_buckets()
            for entry in _names(cluster, bucket.name)
        ]
    )


def _names(cluster: LocalCluster, bucket: str) -> list[str]:
    return [entry.name for entry in cluster.client().bucket(bucket).list_all_objects()]


def test_a_reader_keeps_the_version_it_began(cluster: LocalCluster) -> None:
    old, new = b"o" * 30_000_000, b"n" * 30_000_000
    put(cluster, "swap", old)
    answer = requests.get(f"{cluster.endpoint}/v1/objects/b/swap", stream=True, timeout=60)
    first = answer.raw.read(1000)
    put(cluster, "swap", new)
    assert first + answer.raw.read() == old
    assert cluster.client().bucket("b").object("swap").get_reader().read_all() == new


def test_concurrent_writers_leave_one_whole_version(cluster: LocalCluster) -> None:
    bodies = [bytes([value]) * 500_000 for value in range(8)]
    threads = [threading.Thread(target=put, args=(cluster, "race", body)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    thing = cluster.client().bucket("b").object("race")
    assert thing.get_reader().read_all() in bodies
    assert thing.props.obj_version == "8"


def test_objects_are_spread_and_only_their_owner_has_them(cluster: LocalCluster) -> None:
    owners = set()
    for number in range(30):
        put(cluster, f"spread-{number}", b"x")
        owner = owner_of(cluster, f"spread-{number}")
        owners.add(owner)
        for url in cluster.target_urls:
            status = requests.get(f"{url}/v1/objects/b/spread-{number}", timeout=60).status_code
            assert status == (200 if url == owner else 404)
    assert owners == set(cluster.target_urls)


def test_the_sdks_direct_reads_find_the_owner(cluster: LocalCluster) -> None:
    bucket = cluster.client().bucket("b")
    for number in range(10):
        put(cluster, f"direct-{number}", b"%d" % number)
    cluster.reset_stats()
    for number in range(10):
        assert bucket.object(f"direct-{number}").get_reader(direct=True).read_all() == b"%d" % number
    assert cluster.stats().count("GET", 301) == 0


@pytest.mark.parametrize(
    ("method", "path", "message", "name"),
    [
        ("GET", "/v1/objects/b/x?what_is_this=1", None, "what_is_this"),
        ("GET", "/v1/objects/b/x?provider=aws", None, "aws"),
        ("GET", "/v1/objects/b/x?namespace=%23ns", None, "#ns"),
        ("HEAD", "/v1/objects/b/x?latest-ver=true", None, "latest-ver"),
        ("POST", "/v1/buckets/b", {"action": "ec-encode"}, "ec-encode"),
        (
            "POST",
            "/v1/buckets/b?bck_to=ais/@%23/c/",
            {"action": "copy-bck", "value": {"strange": 1}},
            "strange",
        ),
        ("GET", "/v1/buckets/b", {"action": "list", "value": {"flags": "2"}}, "0x2"),
        ("GET", "/v1/buckets/b", {"action": "list", "value": {"target": "t"}}, "target"),
        (
            "DELETE",
            "/v1/buckets/b",
            {"action": "delete-listrange", "value": {"template": "a-@100"}},
            "a-@100",
        ),
        ("PUT", "/v1/buckets/b", {"action": "make-n-copies"}, "make-n-copies"),
        ("GET", "/v1/cluster?what=stats", None, "stats"),
        ("POST", "/v1/objects/b", {"action": "promote"}, "promote"),
        (
            "POST",
            "/v1/buckets/new",
            {"action": "create-bck", "value": {"mirror": {"enabled": True}}},
            "create-bck",
        ),
    ],
)
def test_what_is_not_done_is_501_with_its_name(
    cluster: LocalCluster, method: str, path: str, message: Any, name: str
) -> None:
    answer = requests.request(method, cluster.endpoint + path, json=message, timeout=60)
    assert answer.status_code == 501
    error = json.loads(answer.headers.get("Hdr-Error") or answer.text)
    assert name in error["message"]
    assert error["tcode"] == "ErrUnsupp"


def test_a_bad_action_and_a_bad_body_are_400(cluster: LocalCluster) -> None:
    url = f"{cluster.endpoint}/v1/buckets/b"
    assert requests.post(url, json={"action": "no-such-thing"}, timeout=60).status_code == 400
    assert requests.post(url, data=b"{not json", timeout=60).status_code == 400
    assert requests.post(url, data=b"[]", timeout=60).status_code == 400
    assert requests.get(f"{cluster.endpoint}/v1/objects/b/%ff", timeout=60).status_code == 400


def test_a_wrong_checksum_refuses_the_put_and_keeps_the_old(cluster: LocalCluster) -> None:
    put(cluster, "sum", b"old")
    url = f"{owner_of(cluster, 'sum')}/v1/objects/b/sum"
    headers = {"Ais-Checksum-Type": "xxhash2", "Ais-Checksum-Value": "0" * 16}
    answer = requests.put(url, data=b"new", headers=headers, timeout=60)
    assert (answer.status_code, answer.json()["tcode"]) == (500, "ErrBadCksum")
    assert requests.get(url, timeout=60).content == b"old"


def test_a_client_that_stops_reading_stops_nobody_else(cluster: LocalCluster, raw: Any) -> None:
    put(cluster, "slow", b"s" * 30_000_000)
    connections = [raw(owner_of(cluster, "slow")) for _ in range(20)]
    for connection in connections:
        connection.send(b"GET /v1/objects/b/slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
    begun = time.monotonic()
    assert requests.get(f"{cluster.endpoint}/v1/objects/b/slow", timeout=60).content == b"s" * 30_000_000
    assert time.monotonic() - begun < 20
