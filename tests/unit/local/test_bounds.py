"""Promises 6 and 7 for the embedded cluster: no request stops it, makes it grow, or goes without an answer."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from aistore.sdk.errors import AISError
from helpers.waiting import until

import torchdata_ais.local
from torchdata_ais.local import LocalCluster
from torchdata_ais.testing import shard_bytes

pytestmark = [
    pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process are Linux's"),
]
MIB = 1 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=1) as running:
        running.client().bucket("b").create()
        yield running


@pytest.fixture
def limited() -> Iterator[LocalCluster]:
    """A cluster that the test may spoil."""
    with LocalCluster(targets=1) as running:
        running.client().bucket("b").create()
        yield running


def limit(cluster: LocalCluster, what: int, number: int) -> None:
    resource.prlimit(cluster.pid, what, (number, resource.prlimit(cluster.pid, what)[1]))


def memory(cluster: LocalCluster, name: str = "VmHWM") -> int:
    lines = Path(f"/proc/{cluster.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


# -- files


def test_more_connections_than_files_stop_it_only_while_they_last(limited: LocalCluster) -> None:
    limit(limited, resource.RLIMIT_NOFILE, 256)
    with ExitStack() as stack:
        for _ in range(200):
            for url in (limited.endpoint, limited.target_urls[0]):
                parts = urlsplit(url)
                sock = socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=60)
                stack.enter_context(sock)
        until(lambda: len(list(Path(f"/proc/{limited.pid}/fd").iterdir())) >= 255)
        assert limited.running
    for url in (limited.endpoint, limited.target_urls[0]):
        assert requests.get(f"{url}/v1/health", timeout=60).status_code == 200
    limited.client().bucket("b").object("o").get_writer().put_content(b"x")
    assert limited.running


def test_a_cluster_that_can_accept_nothing_any_more_ends_and_says_so() -> None:
    program = (
        "import runpy, socket, sys, time\n"
        "runpy.run_path(sys.argv[1], run_name='program')['load']()\n"
        "from _ais_local_server import serving, state\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "serving.serve(None, state.Node('proxy', 'id', 0), listener)\n"
        "listener.shutdown(2)\n"
        "time.sleep(30)\n"
    )
    server = Path(torchdata_ais.local.__file__).parent / "server" / "__main__.py"
    done = subprocess.run([sys.executable, "-c", program, str(server)], capture_output=True, timeout=60)
    assert done.returncode == 1
    assert b"Invalid argument" in done.stderr


# -- the disk


def data_files(cluster: LocalCluster) -> int:
    return len([path for path in (cluster.root / "data").glob("*/*") if path.stat().st_size])


def test_a_full_disk_is_507_with_the_systems_number_and_leaves_nothing(limited: LocalCluster) -> None:
    bucket = limited.client().bucket("b")
    limit(limited, resource.RLIMIT_FSIZE, MIB)
    thing = bucket.object("large")
    begun = time.monotonic()
    with pytest.raises(AISError, match=r"(?s)507.*Errno 27.*EFBIG"):
        thing.get_writer().put_content(b"x" * (3 * MIB))
    upload = bucket.object("parts").multipart_upload().create()
    with pytest.raises(AISError, match="507"):
        upload.add_part(1).put_content(b"x" * (3 * MIB))
    writer = bucket.object("appended").get_writer()
    handle = writer.append_content(b"begin")
    with pytest.raises(AISError, match="507"):
        writer.append_content(b"x" * (3 * MIB), handle=handle)
    writer.append_content(b", end", handle=handle)
    writer.append_content(b"", handle=handle, flush=True)
    assert bucket.object("appended").get_reader().read_all() == b"begin, end"
    bucket.object("small").get_writer().put_content(b"y")
    assert [entry.name for entry in bucket.list_all_objects()] == ["appended", "small"]
    assert data_files(limited) == 2
    assert time.monotonic() - begun < 60  # not the SDK's minute and a half of retries


def test_an_object_larger_than_the_disk_is_507_before_its_body_is_read(limited: LocalCluster) -> None:
    for url in (limited.endpoint, limited.target_urls[0]):
        parts = urlsplit(url)
        with socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=60) as sock:
            length = 9 * 10**17
            sock.sendall(b"PUT /v1/objects/b/o HTTP/1.1\r\nHost: %s\r\n" % parts.netloc.encode())
            sock.sendall(b"Content-Length: %d\r\n\r\n" % length)
            answer = b"".join(iter(lambda: sock.recv(65536), b""))  # until the server closes
        assert answer.startswith(b"HTTP/1.1 507 ")
        assert b"ENOSPC" in answer
    assert data_files(limited) == 0


def test_what_cannot_be_written_down_has_not_happened(tmp_path: Path) -> None:
    with LocalCluster(targets=1, root=tmp_path) as cluster:
        bucket = cluster.client().bucket("b").create()
        bucket.object("before").get_writer().put_content(b"old")
        limit(cluster, resource.RLIMIT_FSIZE, (tmp_path / "journal.jsonl").stat().st_size + 10)
        for name in ("before", "new"):
            with pytest.raises(AISError, match="507"):
                bucket.object(name).get_writer().put_content(b"new")
        with pytest.raises(AISError, match="507"):
            cluster.client().bucket("c").create()
        assert bucket.object("before").get_reader().read_all() == b"old"
        limit(cluster, resource.RLIMIT_FSIZE, 100 * MIB)
        bucket.object("after").get_writer().put_content(b"1")
    with LocalCluster(targets=1, root=tmp_path) as cluster:
        bucket = cluster.client().bucket("b")
        assert [entry.name for entry in bucket.list_all_objects()] == ["after", "before"]
        assert bucket.object("before").get_reader().read_all() == b"old"
        assert [found.name for found in cluster.client().cluster().list_buckets()] == ["b"]


# -- requests


@pytest.mark.ci
@pytest.mark.parametrize("pattern", ["(a+)+$", "(.*a){30}"])
def test_a_regular_expression_without_end_holds_up_nobody(cluster: LocalCluster, pattern: str) -> None:
    shard = shard_bytes({"a" * 60 + "!.txt": b"1"})
    cluster.client().bucket("b").object("s.tar").get_writer().put_content(shard)
    answers: list[requests.Response] = []
    url = f"{cluster.endpoint}/v1/objects/b/s.tar"

    def ask() -> None:
        answers.append(requests.get(url, params={"archregx": pattern}, timeout=60))

    thread = threading.Thread(target=ask)
    thread.start()
    asked = 0
    while thread.is_alive():
        begun = time.monotonic()
        assert requests.get(f"{cluster.endpoint}/v1/health", timeout=60).status_code == 200
        assert time.monotonic() - begun < 5
        asked += 1
        time.sleep(0.05)
    thread.join()
    assert asked
    assert answers[0].status_code in (200, 400, 404), answers[0].text
    if answers[0].status_code == 400:
        assert "takes longer than 3 s" in answers[0].json()["message"]


def test_a_regular_expression_finds_what_it_should(cluster: LocalCluster) -> None:
    shard = shard_bytes({"0.txt": b"zero", "1.txt": b"one", "10.jpg": b"ten"})
    cluster.client().bucket("b").object("s.tar").get_writer().put_content(shard)
    found = {}
    for pattern in (r"^1.*", "txt", r"1?0\.(jpg|txt)$", "[", r"(?<x", "\\"):
        answer = requests.get(
            f"{cluster.endpoint}/v1/objects/b/s.tar", params={"archregx": pattern}, timeout=60
        )
        found[pattern] = [
            name for name in ("0.txt", "1.txt", "10.jpg") if name.encode() in answer.content[::1]
        ]
        assert answer.status_code == (200 if found[pattern] else 404)
    assert list(found.values()) == [["1.txt", "10.jpg"], ["0.txt", "1.txt"], ["0.txt", "10.jpg"], [], [], []]


def act(cluster: LocalCluster, verb: str, action: str, value: Any) -> requests.Response:
    return requests.request(
        verb, f"{cluster.endpoint}/v1/buckets/b", json={"action": action, "value": value}, timeout=20
    )


@pytest.mark.parametrize(
    "template",
    [
        "a{0..9999999999}", "a{0..99999}{0..99999}{0..99999}", "{0..999999999999999999}", "{0..9" + "9" * 5000 + "}",
        "{1..1}" * 40, "{0..10000000}", "{5..1}", "{0..9..0}", "{a..b}", "{}",
    ],
)  # fmt: skip
def test_a_template_of_too_many_names_is_refused_in_no_memory(cluster: LocalCluster, template: str) -> None:
    before = memory(cluster)
    for verb, action, more in (
        ("DELETE", "delete-listrange", {}),
        ("POST", "copy-listrange", {"tobck": {"name": "b"}}),
        ("PUT", "archive", {"archname": "x.tar"}),
    ):
        answer = act(cluster, verb, action, {"template": template, **more})
        assert answer.status_code == 400, answer.text
    assert memory(cluster) - before < 20 * MIB


def test_many_names_take_no_memory(cluster: LocalCluster) -> None:
    cluster.client().bucket("b").object("a7").get_writer().put_content(b"x")
    before = memory(cluster)
    assert act(cluster, "DELETE", "delete-listrange", {"template": "a{0..9}{0..19999}"}).status_code == 200
    assert act(cluster, "DELETE", "delete-listrange", {"template": "a{0..9}"}).status_code == 200
    assert memory(cluster) - before < 20 * MIB
    assert "a7" not in [entry.name for entry in cluster.client().bucket("b").list_all_objects()]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"pagesize": -1}, "pagesize"), ({"pagesize": 1e30}, "pagesize"), ({"pagesize": "many"}, "pagesize"),
        ({"pagesize": 10**30}, "pagesize"), ({"prefix": 7}, "prefix"), ({"prefix": ["x"]}, "prefix"),
        ({"flags": "0x8"}, "flags"), ({"flags": "-1"}, "flags"), ({"flags": {}}, "flags"),
        ({"continuation_token": 5}, "continuation_token"), ({"props": {"a": 1}}, "props"), ([], "value"),
        ("text", "value"), (True, "value"),
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_400_and_named(cluster: LocalCluster, value: Any, says: str) -> None:
    answer = act(cluster, "GET", "list", value)
    assert answer.status_code == 400
    assert says in answer.json()["message"]
    assert (cluster.root / "server.log").read_text() == ""


@pytest.mark.parametrize("what", ["deep", "wide", "objects"])
def test_deep_and_wide_json_costs_no_more_than_its_bytes(cluster: LocalCluster, what: str) -> None:
    many = 3_000_000
    body = {
        "deep": b"[" * many + b"]" * many,
        "wide": b"[" + b"[]," * many + b"[]]",
        "objects": b"[" + b'{"a":{}},' * (many // 3) + b"{}]",
    }[what]
    before = memory(cluster)
    url = f"{cluster.endpoint}/v1/buckets/b"
    for text in (body, b'{"action":"list","value":' + body + b"}", b'{"action":' + body + b"}"):
        answer = requests.get(url, data=text, timeout=60)
        assert answer.status_code == 400, answer.text
    moss = b'{"in":' + body + b"}"
    answer = requests.get(f"{cluster.endpoint}/v1/ml/moss/b", data=moss, timeout=60)
    assert answer.status_code == (501 if what == "objects" else 400), answer.text
    assert memory(cluster) - before < 8 * len(body) + 30 * MIB
    assert requests.get(f"{cluster.endpoint}/v1/health", timeout=60).status_code == 200
