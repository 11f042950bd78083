"""Replays recorded exchanges of a real AIStore cluster and compares answer with answer.

What cannot be the same twice (ids, ports, times, statistics) is learnt from the answers and translated in
later requests, or compared by form only.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import re
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

RECORDED = Path(__file__).with_name("exchanges.jsonl")

# Compared by presence only.
VOLATILE_HEADERS = {
    "date", "ais-atime", "ais-cluster-uptime", "ais-node-uptime", "location", "ais-location", "ais-mirror-paths",
    "ais-append-handle", "ais-xaction-id", "ais-bucket-props", "ais-bucket-summ", "hdr-error",
}  # fmt: skip
# JSON leaves compared by type only.
VOLATILE_KEYS = {
    "remote_addr", "uuid", "UUID", "a", "t", "id", "start-time", "end-time", "end_time", "ctlmsg", "stats", "glob.id",
    "is_idle", "node_ip_addr", "daemon_port", "direct_url", "daemon_id", "id_digest", "creation_time", "version",
    "bid", "created", "size_on_disk", "total_disks_size", "used_pct", "started_time", "finish_time", "elapsed",
    "started_meta_sorting", "started_shard_creation", "finished_shard_creation", "loc-bytes", "extracted_size",
}  # fmt: skip
# Keys of the real node that this cluster has no use for.
OPTIONAL_KEYS = {"verifying_key"}


# Groups in which this cluster differs from the recorded one on purpose, or because the recorded one was not empty.
DIFFERENT = {
    "bucket-list": "the recorded cluster had three more buckets",
    "jobs-status": "the recorded cluster had done more jobs before",
    "jobs-running": "jobs are done before their request is answered, so none is running",
    "batch-stream-raise-missing": "the real one sends a tar that ends early; this one answers 404",
}


def load() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDED.read_text().splitlines()]


def body_of(value: Any) -> bytes:
    if not value:
        return b""
    if "json" in value:
        return json.dumps(value["json"]).encode()
    if "text" in value:
        return value["text"].encode()
    return base64.b64decode(value["b64"])


@dataclass
class Answer:
    status: int
    reason: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Replay:
    """Sends recorded requests to `proxy`/`target` and keeps what was learnt on the way."""

    proxy: str
    target: str
    ids: dict[str, str] = field(default_factory=dict)
    location: str = ""
    append_handle: str = ""

    def send(self, row: dict[str, Any]) -> Answer:
        url = self.url_of(row)
        parts = urlsplit(url)
        headers = {k: v for k, v in row["headers"].items() if k.lower() not in ("content-length", "host")}
        connection = http.client.HTTPConnection(parts.netloc, timeout=60)
        body = self.translate(body_of(row["body"]).decode("latin-1")).encode("latin-1") or None
        path = url.split(parts.netloc, 1)[1]
        try:
            connection.request(row["method"], path, body, headers)
            response = connection.getresponse()
            raw = response.read()
            got = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, response.reason, got, raw)
        finally:
            connection.close()

    def url_of(self, row: dict[str, Any]) -> str:
        url: str = row["url"]
        if "utm=" in url:  # it was redirected here: go where our proxy says
            return self.location
        url = url.replace("PROXY", self.proxy.removeprefix("http://"))
        url = url.replace("TARGET", self.target.removeprefix("http://"))
        url = re.sub(
            r"append_handle=[^&]+", lambda _: "append_handle=" + quote(self.append_handle, safe=""), url
        )
        return self.translate(url)

    def translate(self, text: str) -> str:
        for recorded, ours in self.ids.items():
            text = text.replace(recorded, ours)
        return text

    def learn(self, row: dict[str, Any], answer: Answer) -> None:
        self.location = answer.headers.get("location", "")
        self.append_handle = answer.headers.get("ais-append-handle", "")
        recorded = row["response"]
        text = recorded.get("text", "")
        if row["status"] in (200, 202) and re.fullmatch(r"[\w-]{8,16}", text):
            self.ids[text] = answer.body.decode()
        if "msgpack" in recorded:
            self.ids[recorded["msgpack"]["UUID"]] = msgspec.msgpack.decode(answer.body)["UUID"]
        if "Ais-Xaction-Id" in row["response_headers"]:
            self.ids[row["response_headers"]["Ais-Xaction-Id"]] = answer.headers.get("ais-xaction-id", "")


def differences(row: dict[str, Any], answer: Answer) -> list[str]:
    """Everything in which our answer is not the recorded one."""
    out: list[str] = []
    if (row["status"], row["reason"]) != (answer.status, answer.reason):
        out.append(f"status {answer.status} {answer.reason}, recorded {row['status']} {row['reason']}")
    recorded = {name.lower(): value for name, value in row["response_headers"].items()}
    if set(recorded) != set(answer.headers):
        out.append(f"headers {sorted(set(answer.headers) ^ set(recorded))} on one side only")
    for name in set(recorded) & set(answer.headers) - VOLATILE_HEADERS:
        if not _same_header(name, recorded[name], answer.headers[name], row):
            out.append(f"header {name}: {answer.headers[name]!r}, recorded {recorded[name]!r}")
    for name in ("hdr-error", "ais-bucket-props", "ais-bucket-summ"):
        if name in recorded and name in answer.headers:
            out += _compare(json.loads(recorded[name]), json.loads(answer.headers[name]), name)
    if "location" in recorded and "location" in answer.headers:
        out += _compare_locations(recorded["location"], answer.headers["location"])
    if row["method"] != "HEAD":
        out += _compare_bodies(row, answer)
    return out


def _same_header(name: str, recorded: str, ours: str, row: dict[str, Any]) -> bool:
    if name == "content-length":
        # A body with ids, addresses and numbers in it is as long as these are.
        binary = "b64" in row["response"] or "octet-stream" in str(row["response_headers"])
        return row["status"] >= 300 or not binary or recorded == ours
    if name == "content-type" and "boundary=" in recorded:
        return ours.startswith("multipart/mixed; boundary=")
    return recorded == ours


def _compare_locations(recorded: str, ours: str) -> list[str]:
    def form(url: str) -> tuple[str, list[tuple[str, str]]]:
        parts = urlsplit(url)
        path = re.sub(r"/moss/([^/]+)/.*", r"/moss/\1/XID", parts.path)
        query = parse_qsl(parts.query, keep_blank_values=True)
        hidden = {"pid", "utm", "append_handle", "uploadId"}
        return unquote(path), sorted((k, "" if k in hidden else v) for k, v in query)

    return [] if form(recorded) == form(ours) else [f"redirect to {form(ours)}, recorded {form(recorded)}"]


def _compare_bodies(row: dict[str, Any], answer: Answer) -> list[str]:
    recorded = row["response"]
    if row["status"] != answer.status:
        return [f"body {answer.body[:300]!r}"]
    if row["status"] in (301, 307):
        return (
            []
            if bool(recorded.get("text")) == bool(answer.body)
            else ["one redirect has a body, one has none"]
        )
    if "msgpack" in recorded:
        return _compare(recorded["msgpack"], msgspec.msgpack.decode(answer.body), "page")
    if "json" in recorded and isinstance(recorded["json"], dict | list):
        return _compare(recorded["json"], json.loads(answer.body), "body")
    text = recorded.get("text", "")
    if "content-type" in {n.lower() for n in row["response_headers"]} and re.fullmatch(r"[\w-]{8,16}", text):
        return [] if re.fullmatch(rb"[\w,-]{8,}", answer.body) else [f"not an id: {answer.body[:100]!r}"]
    kind = row["response_headers"].get("Content-Type", "")
    want = body_of(recorded)
    if "multipart" in kind:
        return _compare_multipart(want, answer.body)
    if "x-tar" in kind:
        return _compare_tars(want, answer.body)
    return (
        [] if want == answer.body else [f"body of {len(answer.body)} bytes, recorded {len(want)}, not equal"]
    )


def _compare_multipart(recorded: bytes, ours: bytes) -> list[str]:
    def parts(raw: bytes) -> list[tuple[bytes, bytes]]:
        boundary = raw[: raw.index(b"\r\n")]
        return [tuple(part[2:-2].split(b"\r\n\r\n", 1)) for part in raw.split(boundary)[1:-1]]  # type: ignore[misc]

    (meta_head, meta), (archive_head, archive) = parts(recorded)
    (our_meta_head, our_meta), (our_archive_head, our_archive) = parts(ours)
    out = _compare(json.loads(meta), json.loads(our_meta), "metadata") + _compare_tars(archive, our_archive)
    if (
        re.sub(rb"\[.*\]", b"", archive_head) != re.sub(rb"\[.*\]", b"", our_archive_head)
        or meta_head != our_meta_head
    ):
        out.append("heads of the parts differ")
    return out


def _compare_tars(recorded: bytes, ours: bytes) -> list[str]:
    def members(raw: bytes) -> list[tuple[Any, ...]]:
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            return [
                (m.name, m.size, m.mode, m.uid, m.gid, m.type, tar.extractfile(m).read())  # type: ignore[union-attr]
                for m in tar
            ]

    if len(recorded) != len(ours):
        return [f"a tar of {len(ours)} bytes, recorded {len(recorded)}"]
    return [] if members(recorded) == members(ours) else ["members differ"]


def _compare(recorded: Any, ours: Any, where: str) -> list[str]:
    if isinstance(recorded, dict) and isinstance(ours, dict):
        if set(recorded) == {"t-ID"} or (recorded and set(recorded) <= {"p-ID", "t-ID"}):
            recorded, ours = {"ID": next(iter(recorded.values()))}, {"ID": next(iter(ours.values()), None)}
        missing = (set(recorded) ^ set(ours)) - OPTIONAL_KEYS
        out = [f"{where}: keys {sorted(missing)} on one side only"] if missing else []
        for key in set(recorded) & set(ours):
            if key in VOLATILE_KEYS:
                if type(recorded[key]) is not type(ours[key]):
                    out.append(f"{where}.{key}: {ours[key]!r}, recorded {recorded[key]!r}")
            else:
                out += _compare(recorded[key], ours[key], f"{where}.{key}")
        return out
    if isinstance(recorded, list) and isinstance(ours, list):
        if len(recorded) != len(ours):
            return [f"{where}: {len(ours)} items, recorded {len(recorded)}"]
        return [
            text
            for i, (a, b) in enumerate(zip(recorded, ours, strict=True))
            for text in _compare(a, b, f"{where}[{i}]")
        ]
    if isinstance(recorded, str) and isinstance(ours, str):
        return [] if _plain(recorded) == _plain(ours) else [f"{where}: {ours!r}, recorded {recorded!r}"]
    return [] if recorded == ours else [f"{where}: {ours!r}, recorded {recorded!r}"]


def _plain(text: str) -> str:
    text = re.sub(r"\b([pt])\[[^\]]*\]", r"\1[ID]", text)
    text = re.sub(r"/ml/moss/([^/]+)/.*", r"/ml/moss/\1/XID", text)
    return re.sub(r"(from|to) (HOST|127\.0\.0\.1)(:\d+)?", r"\1 HOST", text)
