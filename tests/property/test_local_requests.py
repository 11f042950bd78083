"""Promises 6, 7 and 9 for the embedded cluster: each request is answered, and never by a fault of ours."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from helpers.examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchdata_ais.local import LocalCluster, coverage_table
from torchdata_ais.testing import shard_bytes

pytestmark = pytest.mark.timeout(300)

# Each row of the table of what is answered: method, path, action, query parameters.
ROWS = [
    [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
    for line in coverage_table().splitlines()[2:]
]
PATHS = {
    "/v1/buckets/bucket": "/v1/buckets/b",
    "/v1/objects/bucket/object": "/v1/objects/b/s.tar",
    "/v1/etl/name": "/v1/etl/some-name",
    "/v1/ml/moss[/bucket]": "/v1/ml/moss/b",
}
FIELDS = [
    "prefix", "pagesize", "uuid", "props", "continuation_token", "flags", "start_after", "objnames", "template",
    "prepend", "dry_run", "force", "latest-ver", "tobck", "coer", "num-workers", "archname", "isbn", "aate", "mime",
    "cached", "present", "ID", "Kind", "kind", "show_active", "id", "pipeline", "request_timeout", "ext", "in", "onob",
    "strm", "objname", "bucket", "provider", "archpath", "start", "length", "opaque", "input_bck", "output_bck",
    "input_extension", "input_format", "output_format", "output_shard_size", "algorithm", "name", "namespace",
    "communication", "init_timeout", "runtime", "env", "command", "part-number", "seed", "extension", "decreasing",
    "max_mem_usage", "value", "action",
]  # fmt: skip
ODD = [
    "", "b", "c", "ais", "s.tar", "a.txt", "*", "-1", "0", "1e30", "NaN", "9" * 30, "9" * 5000, "+5", "1_0", "\0", "\n",
    "ü", "💥", "../x", "~/x", "a/", "{0..9999999999}", "{0..3}", "{3..0}", "{a}", "{", "%06d", "%099999999d", "@100",
    "(a+)+$", "[", "^a", ".tar", ".tgz", ".zip", ".lz4", "hpush://", "upper", "1KB", "1e9TB", "ais/@#/c/", "ais/@#//",
    "aws/@#/c/o", "true", "regexp", "wdskey", "name,size", "append", "flush", "x" * 2000, "alphanumeric", "content",
]  # fmt: skip
TEXTS = st.one_of(st.sampled_from(ODD), st.text(max_size=12))
VALUES: Any = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.integers(-(10**40), 10**40), st.floats(), TEXTS,
        st.sampled_from([1 << 63, -(1 << 63), 1 << 62, 10**30, 1e300]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(FIELDS) | TEXTS, inner, max_size=6)
    ),
    max_leaves=16,
)  # fmt: skip
BODIES = st.one_of(
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6).map(
        lambda value: json.dumps(value).encode()
    ),
    st.binary(max_size=40),
    st.sampled_from([b"", b"[" * 200_000, b'{"a":' * 50_000, b'{"action":"\\ud800"}', b'"\xff"', b"{}" * 2]),
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=1, etl=True) as running:
        yield running


class Asker:
    """Sends one request a connection, with the secret of the cluster, and looks at the answer."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.nodes = [urlsplit(url).netloc for url in (cluster.endpoint, *cluster.target_urls)]

    def ask(self, node: str, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
        connection = http.client.HTTPConnection(node, timeout=60)
        try:
            headers = {**headers, "Authorization": f"Bearer {self.cluster.token}"}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def refill(self) -> None:
        """See to it that there is something that requests can be about."""
        for bucket in ("b", "c"):
            self.ask(self.nodes[0], "POST", f"/v1/buckets/{bucket}", b'{"action":"create-bck"}', {})
        self.ask(self.nodes[1], "PUT", "/v1/objects/b/s.tar", shard_bytes({"a.txt": b"1", "b.txt": b"2"}), {})


def resident(cluster: LocalCluster) -> int:
    lines = Path(f"/proc/{cluster.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) >> 10


@st.composite
def requests_to(draw: Any) -> tuple[str, str, bytes, dict[str, str]]:
    line, action, parameters, _ = draw(st.sampled_from(ROWS))
    method, path = line.split()
    path = PATHS.get(path, path)
    pairs = []
    if path in ("/v1/cluster", "/v1/daemon", "/v1/reverse/daemon"):
        pairs.append(("what", action))
    elif path.startswith(("/v1/etl/", "/v1/sort")) and action:
        path += f"/{action}"
    elif path.startswith("/v1/objects") and method == "PUT" and action:
        pairs.append((action, draw(TEXTS)))
    for name in draw(
        st.lists(st.sampled_from([*parameters.split(), "provider", "namespace", "x"]), max_size=4)
    ):
        pairs.append((name, draw(TEXTS)))
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in pairs)
    body = draw(BODIES)
    if draw(st.booleans()):
        value = draw(st.one_of(VALUES, st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6)))
        body = json.dumps({"action": action, "value": value}).encode()
    headers = {"Range": draw(TEXTS)} if draw(st.integers(0, 9)) == 0 else {}
    headers = {name: value for name, value in headers.items() if value.isascii() and value.isprintable()}
    return method, path + (f"?{query}" if query else ""), body, headers


def test_every_request_gets_an_answer_that_is_not_our_fault(cluster: LocalCluster) -> None:
    asker = Asker(cluster)
    asker.refill()
    before = resident(cluster)

    @settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
    @given(requests_to(), st.integers(0, 1))
    def one(request: tuple[str, str, bytes, dict[str, str]], node: int) -> None:
        method, path, body, headers = request
        begun = time.monotonic()
        status = asker.ask(asker.nodes[node], method, path, body, headers)
        assert 200 <= status < 500 or status == 501, status
        assert time.monotonic() - begun < 12
        if method == "DELETE":
            asker.refill()

    one()
    nothing_has_happened(asker, before)


def nothing_has_happened(asker: Asker, before_mib: int) -> None:
    assert resident(asker.cluster) - before_mib < 100
    assert asker.ask(asker.nodes[0], "GET", "/v1/health", b"", {}) == 200
    assert (asker.cluster.root / "server.log").read_text() == ""


# Right requests, of which one value is then replaced.
BUCKET = {"name": "c", "provider": "ais", "namespace": {"uuid": "", "name": ""}}
COPY = {
    "prefix": "s",
    "prepend": "x-",
    "dry_run": True,
    "force": False,
    "latest-ver": False,
    "num-workers": 2,
}
RIGHT: list[tuple[str, str, dict[str, Any]]] = [
    ("GET", "/v1/buckets/b", {"action": "list", "value": {
        "prefix": "s", "pagesize": 3, "uuid": "u", "props": "name,size", "continuation_token": "a", "flags": "8",
        "start_after": "a"}}),
    ("POST", "/v1/buckets/b?bck_to=ais/@%23/c/", {"action": "copy-bck", "value": COPY}),
    ("POST", "/v1/buckets/b", {"action": "copy-listrange", "value": {
        **COPY, "template": "s{0..3}", "tobck": BUCKET, "coer": True}}),
    ("DELETE", "/v1/buckets/b", {"action": "delete-listrange", "value": {"objnames": ["x", "y"], "num-workers": 1}}),
    ("PUT", "/v1/buckets/b", {"action": "archive", "value": {
        "objnames": ["s.tar"], "archname": "all.tar", "mime": ".tar", "tobck": BUCKET, "isbn": True, "aate": False,
        "coer": True}}),
    ("GET", "/v1/ml/moss/b", {
        "in": [{"objname": "s.tar", "bucket": "b", "provider": "ais", "archpath": "a.txt", "start": 0, "length": 1,
                "opaque": "b3BhcXVl"}],
        "mime": ".tar", "coer": True, "onob": True, "strm": False}),
    ("POST", "/v1/sort", {
        "input_bck": {"name": "b"}, "output_bck": BUCKET, "input_extension": ".tar", "output_format": "t-{0..9}",
        "input_format": {"template": "s", "objnames": None}, "output_shard_size": "1KB", "max_mem_usage": "80%",
        "algorithm": {"kind": "shuffle", "seed": "5", "extension": ".txt", "decreasing": True,
                      "content_key_type": "int"}}),
    ("PUT", "/v1/etl", {
        "name": "some-name", "communication": "hpush://", "init_timeout": "5s", "obj_timeout": "5s",
        "support_direct_put": True, "runtime": {"image": "i", "command": ["c"], "env": [
            {"name": "ETL_CLASS_PAYLOAD", "value": "eA=="}, {"name": "PACKAGES", "value": "numpy"}]}}),
    ("POST", "/v1/buckets/b", {"action": "etl-listrange", "value": {
        **COPY, "id": "some-name", "pipeline": ["x"], "request_timeout": "5s", "ext": {"tar": "tgz"},
        "objnames": ["s.tar"], "tobck": BUCKET}}),
    ("GET", "/v1/cluster?what=status", {"ID": "x", "Kind": "dsort", "DaemonID": "", "Bck": BUCKET}),
    ("GET", "/v1/cluster?what=status_all", {"kind": "dsort", "node": "", "show_active": True}),
    ("PUT", "/v1/cluster", {"action": "stop", "value": {"ID": "x", "Kind": "y"}}),
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values within a value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@st.composite
def nearly_right(draw: Any) -> tuple[str, str, bytes]:
    method, path, message = draw(st.sampled_from(RIGHT))
    place = draw(st.sampled_from(list(places(message))))
    return method, path, json.dumps(replaced(message, place, draw(VALUES))).encode()


def test_one_wrong_value_in_a_right_request_is_refused_or_right(cluster: LocalCluster) -> None:
    asker = Asker(cluster)
    asker.refill()
    before = resident(cluster)

    @settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
    @given(nearly_right())
    def one(request: tuple[str, str, bytes]) -> None:
        method, path, body = request
        begun = time.monotonic()
        for node in asker.nodes:
            status = asker.ask(node, method, path, body, {})
            assert 200 <= status < 500 or status == 501, status
        assert time.monotonic() - begun < 12
        if method == "DELETE":
            asker.refill()

    one()
    nothing_has_happened(asker, before)
