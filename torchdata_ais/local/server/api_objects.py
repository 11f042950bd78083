"""Objects: redirect at the proxy; head, get, put, patch, delete and copy at the target that owns them."""

from __future__ import annotations

import re
import time

from .api_archived import get_archived
from .api_etl import get_transformed
from .names import check_bucket_name, check_object_name, parse_uname
from .problem import ReplyError, not_implemented, object_missing
from .reply import FileSlice, Reply
from .routes import ROUTES, Call, Route, route
from .store import Object, file_blocks

HEAD_PROPS = frozenset(
    [
        "name",
        "size",
        "checksum",
        "atime",
        "version",
        "custom",
        "last-modified",
        "etag",
        "location",
        "copies",
        "ec",
        "chunked",
    ]
)
_CHECKSUM_TYPE = "xxhash2"


def redirect(call: Call) -> Reply:
    """The proxy's answer to everything about one object: ask the target that owns it. Reads no body."""
    call.cluster.store.bucket(call.bucket)
    target = call.cluster.owner(call.bucket, call.name)
    method = call.request.method
    return redirect_to(call, target.url + call.request.target, 301 if method == "GET" else 307)


def redirect_to(call: Call, url: str, status: int) -> Reply:
    """A redirect with what AIStore adds to the query: who sent it, and when."""
    extra = f"pid={call.cluster.proxy_id}&utm={time.time_ns():x}"
    return Reply.redirect(status, f"{url}{'&' if '?' in url else '?'}{extra}", call.request.method)


def mirror_object_routes() -> None:
    """Give the proxy a redirect for each request of an object that targets answer."""
    for row in list(ROUTES.values()):
        if row.role == "target" and row.resource == "object":
            key = ("proxy", row.method, "object", row.key)
            ROUTES[key] = Route("proxy", row.method, "object", row.key, row.query, row.sdk, redirect)


def lookup(call: Call) -> Object:
    """Return the object, or the target's 404: also when another target owns it, as this one lacks it."""
    entry = call.cluster.store.bucket(call.bucket).objects.get(call.name)
    if entry is None or call.cluster.owner(call.bucket, call.name) is not call.node:
        raise object_missing(call.node.tag, call.bucket, call.name)
    return entry


def standard_headers(entry: Object) -> list[tuple[str, str]]:
    """The headers that describe an object on GET and PUT."""
    return [
        ("Ais-Atime", str(entry.atime_ns)),
        ("Ais-Checksum-Type", _CHECKSUM_TYPE),
        ("Ais-Checksum-Value", entry.checksum),
        *([("Ais-Version", str(entry.version))] if entry.version else []),  # system buckets have none
    ]


@route(
    "target",
    "GET",
    "object",
    query="archpath archregx archmode archmime etl_name etl_args etl_pipeline latest-ver",
    sdk="Object.get_reader",
)
def get(call: Call) -> Reply:
    """The object, a range of it, files of the archive it is, or what an ETL makes of it."""
    if call.query.get("etl_name") or call.query.get("etl_pipeline"):
        return get_transformed(call, lookup(call))
    for name in ("ais-blob-download", "ais-blob-chunk", "ais-blob-workers"):
        if name in call.request.headers:
            raise not_implemented(f"header {name!r}")
    entry, fd = open_object(call)
    if call.query.get("archpath") or call.query.get("archregx"):
        return get_archived(call, entry, fd)
    new_version(call, entry)
    entry.atime_ns = time.time_ns()
    headers = standard_headers(entry)
    wanted = call.request.headers.get("range")
    if wanted is None:
        headers.append(("Content-Type", "application/octet-stream"))
        return Reply(200, headers, FileSlice(fd, 0, entry.size))
    body = FileSlice(fd, 0, entry.size)
    try:
        first, last = parse_range(wanted, entry.size, f"ais://{call.bucket}/{call.name}")
    except ReplyError:
        body.close()
        raise
    body.offset, body.size = first, last - first + 1
    headers = [
        ("Accept-Ranges", "bytes"),
        *headers,
        ("Content-Range", f"bytes {first}-{last}/{entry.size}"),
        ("Content-Type", "application/octet-stream"),
    ]
    return Reply(206, headers, body)


def open_object(call: Call) -> tuple[Object, int]:
    """Return the object and its open file, also when it is being replaced at this moment."""
    while True:
        entry = lookup(call)
        try:
            return entry, call.cluster.store.open(entry)
        except FileNotFoundError:
            if call.cluster.store.bucket(call.bucket).objects.get(call.name) is entry:
                raise ReplyError(500, f"{call.node.tag}: the data file of {call.name} is gone") from None


_RANGE = re.compile(r"\s*([0-9]{0,18})\s*-\s*([0-9]{0,18})\s*")


def parse_range(text: str, size: int, cname: str) -> tuple[int, int]:
    """Return first and last byte of a `Range` header, or the 416 AIStore gives."""
    if not text.startswith("bytes="):
        raise ReplyError(416, f'read range "{text}" is invalid (prefix)')
    spec = text[len("bytes=") :]
    if "," in spec:
        raise ReplyError(416, f"cannot multi-range read {cname} - operation not supported", "ErrUnsupp")
    match = _RANGE.fullmatch(spec)
    if match is None or match.group(1) == match.group(2) == "":
        raise ReplyError(416, f'read range "{text}" is invalid (-)')
    start, end = match.groups()
    if not start:
        return size - min(int(end), size), size - 1  # of nothing, too, as AIStore does
    first, last = int(start), int(end) if end else size - 1
    if end and last < first:
        raise ReplyError(416, f'read range "{spec}" is invalid (end)')
    if first >= size:
        raise _unsatisfiable(spec, size)
    return first, min(last, size - 1)


def _unsatisfiable(spec: str, size: int) -> ReplyError:
    message = f"size={size}: not satisfiable range [{spec}]"
    return ReplyError(416, message, "ErrRangeNotSatisfiable", (("Content-Range", f"bytes */{size}"),))


def new_version(call: Call, entry: Object) -> None:
    """Replace the object after its file was opened, if a fault wants that."""
    change = call.plan.new_version if call.plan else None
    if change is None:
        return
    store = call.cluster.store
    if change.same_bytes:
        store.copy(entry, call.bucket, call.name)
        return
    inverted = bytes(255 - value for value in range(256))
    blocks = (block.translate(inverted) for block in file_blocks(store.path(entry)))
    store.put(call.bucket, call.name, blocks)


@route("target", "HEAD", "object", query="props presence", sdk="Object.head, Object.props")
def head(call: Call) -> Reply:
    """The properties asked for by `props`, or all of them; a bad one is a 400."""
    if call.query.get("presence", "0") not in ("", "0", "2"):
        raise not_implemented(f"query parameter 'presence'={call.query['presence']}")
    entry = lookup(call)
    size = ("Content-Length", str(entry.size))
    if not call.query.get("props"):
        names = [("Ais-Bucket-Name", call.bucket), ("Ais-Bucket-Provider", "ais"), ("Ais-Name", call.name)]
        everything = frozenset(("checksum", "atime", "version", "custom", "location", "copies"))
        return Reply(200, [*_head_headers(call, entry, everything), *names, size])
    props = frozenset(item.strip() for item in call.query["props"].split(",") if item.strip())
    for prop in sorted(props - HEAD_PROPS):
        raise ReplyError(400, f'invalid property "{prop}" in props list', headers=(("Ais-Present", "true"),))
    return Reply(200, [*_head_headers(call, entry, props), size])


def _head_headers(call: Call, entry: Object, props: frozenset[str]) -> list[tuple[str, str]]:
    headers = [("Ais-Present", "true")]
    if "atime" in props:
        headers.append(("Ais-Atime", str(entry.atime_ns)))
    if "checksum" in props:
        headers += [("Ais-Checksum-Type", _CHECKSUM_TYPE), ("Ais-Checksum-Value", entry.checksum)]
    if "version" in props:
        headers.append(("Ais-Version", str(entry.version)))
    if "custom" in props and entry.custom:
        pairs = ", ".join(f"{key}={value}" for key, value in sorted(entry.custom.items()))
        headers.append(("Ais-Custom-Md", " ".join(pairs.splitlines())))
    if "location" in props:
        headers.append(("Ais-Location", call.cluster.location(call.bucket, call.name)))
    if "copies" in props:
        headers += [("Ais-Mirror-Copies", "1"), ("Ais-Mirror-Paths", str(call.cluster.root))]
    if "last-modified" in props:
        mtime = call.cluster.store.path(entry).stat().st_mtime
        headers.append(("Last-Modified", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(mtime))))
    if "etag" in props:
        headers.append(("Etag", f'"{entry.checksum}"'))
    return headers


@route("target", "PUT", "object", sdk="ObjectWriter.put_content, .put_file")
def put(call: Call) -> Reply:
    """Store the body. A checksum that the client sent is compared with the one computed on the way."""
    if call.cluster.owner(call.bucket, call.name) is not call.node:
        raise ReplyError(400, f"{call.node.tag}: ais://{call.bucket}/{call.name} belongs to another target")
    store = call.cluster.store
    store.bucket(call.bucket)
    expected = _expected_checksum(call)
    return Reply(
        200, standard_headers(store.put(call.bucket, call.name, call.request.body.blocks(), expected))
    )


def _expected_checksum(call: Call) -> str:
    kind = call.request.headers.get("ais-checksum-type", _CHECKSUM_TYPE)
    if kind != _CHECKSUM_TYPE:
        raise not_implemented(f"checksum type {kind!r}")
    return call.request.headers.get("ais-checksum-value", "")


@route("target", "DELETE", "object", sdk="Object.delete")
def delete(call: Call) -> Reply:
    """Remove the object."""
    owned = call.cluster.owner(call.bucket, call.name) is call.node
    if not owned or not call.cluster.store.delete(call.bucket, call.name):
        raise ReplyError(404, f"ais://{call.bucket}/{call.name} doesn't exist")
    return Reply()


@route("target", "PATCH", "object", query="set-new-custom", sdk="ObjectWriter.set_custom_props")
def patch(call: Call) -> Reply:
    """Add custom properties, or replace them all."""
    entry = lookup(call)
    fresh = call.value(dict[str, str]) or {}
    if call.query.get("set-new-custom", "false").lower() != "true":
        fresh = {**entry.custom, **fresh}
    call.cluster.store.set_custom(call.bucket, entry, fresh)
    return Reply()


@route("target", "PUT", "object", "object_to", query="object_to latest-ver synchronize", sdk="Object.copy")
def copy(call: Call) -> Reply:
    """Copy the object to another name, in this or another bucket."""
    entry = lookup(call)
    bucket, name = parse_uname(call.query["object_to"])
    check_bucket_name(bucket)
    check_object_name(name)
    call.cluster.store.bucket(bucket)
    call.cluster.store.copy(entry, bucket, name)
    return Reply()
