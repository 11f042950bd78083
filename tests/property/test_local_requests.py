"""Promises 6, 7 and 9 for the embedded cluster: whatever a request says, it is answered, and never by a fault of ours."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchdata_ais.local import LocalCluster
from torchdata_ais.local.coverage import coverage_table
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
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6).map(lambda value: json.dumps(value).encode()),
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
        connection = http.client.HTTPConnection(node, timeout=15)
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
    method, path, action, parameters, _ = draw(st.sampled_from(ROWS))
    path = PATHS.get(path, path)
    pairs = []
    if path in ("/v1/cluster", "/v1/daemon", "/v1/reverse/daemon"):
        pairs.append(("what", action))
    elif path.startswith(("/v1/etl/", "/v1/sort")) and action:
        path += f"/{action}"
    elif path.startswith("/v1/objects") and method == "PUT" and action:
        pairs.append((action, draw(TEXTS)))
    for name in draw(st.lists(st.sampled_from([*parameters.split(), "provider", "namespace", "x"]), max_size=4)):
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

    @settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
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
    assert resident(cluster) - before < 100
    assert asker.ask(asker.nodes[0], "GET", "/v1/health", b"", {}) == 200
    assert (cluster.root / "server.log").read_text() == ""
