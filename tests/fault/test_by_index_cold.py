"""By index out of a bucket behind AIStore: objects that are not in the cluster are read by ranges, never as a whole."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import pytest
from helpers.raw_server import RawServer, Request

from torchdata_ais import AISSampleReader, SampleIndex
from torchdata_ais._util.formatting import bytes_text
from torchdata_ais.testing import shard_bytes

RANDOM = random.Random(8)
PER_SHARD, SHARDS = 60, 3
SAMPLES = {f"{s}-{n:02d}": RANDOM.randbytes(3000) for s in range(SHARDS) for n in range(PER_SHARD)}


class Backend:
    """A cluster before a bucket of the cloud: what it has not yet, GetBatch answers by placeholders, as recorded."""

    def __init__(self, *, warms: bool) -> None:
        self.shards = {
            f"s-{s}.tar": shard_bytes(
                {f"{key}.bin": data for key, data in SAMPLES.items() if key.startswith(f"{s}-")}
            )
            for s in range(SHARDS)
        }
        self.warms = warms  # whether a range brings an object into the cluster
        self.warm: set[str] = set()
        self.wholes: list[str] = []
        self.ranges = self.batches = self.sent = 0
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> None:
        path = unquote(urlsplit(request.target).path)
        assert path == "/v1/daemon" or "provider=aws" in request.target
        with self._lock:
            if path.startswith("/v1/ml/moss/b"):
                headers, body = self._batch(_body_of(request))
            elif path.startswith("/v1/buckets/b"):
                headers, body = self._listing(_body_of(request))
            else:
                headers, body = self._object(request, path.removeprefix("/v1/objects/b/"))
            self.sent += len(body)
        head = "\r\n".join([*headers, f"Content-Length: {len(body)}"])
        request.send(f"HTTP/1.1 {head}\r\n\r\n".encode() + (b"" if request.method == "HEAD" else body))

    def _object(self, request: Request, name: str) -> tuple[list[str], bytes]:
        data = self.shards[name]
        if not request.ranged:
            self.wholes.append(name)
            return ["200 OK"], data
        self.ranges += 1
        if self.warms:
            self.warm.add(name)
        first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last or len(data) - 1) + 1]
        return ["206 Partial", f"Content-Range: bytes {first}-{int(first) + len(part) - 1}/{len(data)}"], part

    def _listing(self, _: bytes) -> tuple[list[str], bytes]:
        entries = [{"n": name, "s": len(data)} for name, data in self.shards.items()]
        page = {"UUID": "page", "ContinuationToken": "", "Flags": 0, "Entries": entries}
        return ["200 OK", "Content-Type: application/msgpack"], msgspec.msgpack.encode(page)

    def _batch(self, wanted: bytes) -> tuple[list[str], bytes]:
        self.batches += 1
        members = []
        for one in json.loads(wanted)["in"]:
            name = one["objname"]
            begin = one.get("start", 0)
            if name in self.warm:
                members.append((f"b/{name}", self.shards[name][begin : begin + one["length"]]))
            else:
                members.append((f"__404__/b/{name}", b""))
        return ["200 OK", "Content-Type: application/x-tar"], shard_bytes(members)


def _body_of(request: Request) -> bytes:
    body = b""
    while len(body) < int(request.headers["content-length"]):
        body += request.sock.recv(65536)
    return body


@pytest.fixture(params=[False, True], ids=["stays cold", "warms"])
def backend(request: pytest.FixtureRequest) -> Iterator[tuple[Backend, RawServer]]:
    found = Backend(warms=request.param)
    with RawServer(found) as server:
        yield found, server


def test_who_indexes_a_cold_bucket_is_told_what_is_fetched(
    backend: tuple[Backend, RawServer], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    cloud, server = backend
    index = SampleIndex.build("s3://b/s-", cluster=server.endpoint)
    size = sum(row.size or 0 for row in index.shards)
    (said,) = [record.message for record in caplog.records if "prefetch job" in record.message]
    assert f"3 shards with {bytes_text(size)}, s3://b/s-0.tar first, are read whole" in said
    assert sorted(cloud.wholes) == sorted(cloud.shards)  # each once, as every byte is looked at


@pytest.mark.parametrize("shuffle", ["samples", None])
def test_promise_1_cold_objects_are_read_by_ranges_and_never_as_a_whole(
    backend: tuple[Backend, RawServer], shuffle: Any, tmp_path: Path
) -> None:
    cloud, server = backend
    index = SampleIndex.build("s3://b/s-{0..2}.tar", cluster=server.endpoint, method="read")
    index.save(tmp_path / "index")
    cloud.wholes.clear()
    cloud.warm.clear()
    cloud.sent = cloud.ranges = cloud.batches = 0
    opened = SampleIndex.open(tmp_path / "index", shards_from="s3://b/", cluster=server.endpoint)
    some = opened.select(range(0, len(opened), 3))
    got = {sample["__key__"]: bytes(sample["bin"]) for sample in AISSampleReader(some, shuffle=shuffle)}
    assert got == {reference.key: SAMPLES[reference.key] for reference in some}
    assert cloud.wholes == []
    assert cloud.ranges > 0
    if shuffle == "samples":
        assert cloud.batches > 0  # asked for first: what is there already comes so
    assert cloud.sent < 1.2 * sum(reference.size for reference in some) + 50 * 10240
