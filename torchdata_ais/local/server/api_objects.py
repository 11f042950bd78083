"""Objects."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from .api_etl import get_transformed
from .archive import Archive, File, Member, archive_of, matching, packed
from .faults import Cut, NewVersion, Plan
from .files import DIGESTS, FileSlice, append_blocks, checksum_of, file_blocks
from .http import Reply
from .names import check_bucket_name, check_object_name, new_id, parse_uname
from .problem import Int, ReplyError, not_implemented, number, object_missing, parts_lost
from .routes import Call, route
from .store import Object


def get_archived(call: Call, entry: Object, file: FileSlice) -> Reply:
    """Answer a GET with `archpath` or `archregx`. `file` stays open."""
    path, regex, mode = (call.query.get(name, "") for name in ("archpath", "archregx", "archmode"))
    if "range" in call.request.headers:
        asked = f"archpath={path}" if path else f"archregx={regex}"
        ranges = call.request.headers["range"]
        message = f"cannot range-read archived content range: {ranges}, arch query: ({asked})"
        raise ReplyError(400, f"{message} - operation not supported", "ErrUnsupp")
    if path and regex:
        both = 'archpath="archpath" (match one) and archregx="archregx" (match many) are mutually exclusive'
        raise ReplyError(400, f"dpq: 'archpath={path}', err: dpq: {both}")
    archive = archive_of(file, entry, call.query.get("archmime", ""))
    if path:
        found = archive.find(path)
        if found is None:
            raise member_missing(call, call.bucket, entry.name, path)
        return Reply(200, {"Content-Type": "application/octet-stream"}, archive.body(found))
    positions = matching([member.name for member in archive.files], regex, mode)
    if not positions:
        asked = f"(archregx={regex}, archmode={mode})"
        raise member_missing(call, call.bucket, entry.name, asked)
    wanted = [archive.files[position] for position in positions]
    own = archive_of(file.part(0, file.size), entry, call.query.get("archmime", ""))
    return Reply(200, {"Content-Type": "application/x-tar"}, packed(".tar", _files(own, wanted)))


def member_missing(call: Call, bucket: str, name: str, path: str) -> ReplyError:
    """No such file in the archive."""
    return ReplyError(404, f"{call.node.tag}: {path} in ais://{bucket}/{name} does not exist", "ErrNotFound")


def _files(archive: Archive, wanted: list[Member]) -> Iterator[File]:
    with archive.file:
        yield from archive.copied(wanted)


_EVERYTHING = ["checksum", "atime", "version", "custom", "location", "copies"]
_TOLD_ANYWAY = {"name", "size", "ec", "chunked"}  # or never, without a value


def redirect(call: Call) -> Reply:
    """The proxy's answer for one object: a redirect, before it reads the body."""
    target = call.cluster.owner(call.bucket, call.name)
    status = 301 if call.request.method == "GET" else 307
    return redirect_to(call, target.url + call.request.target, status)


def redirect_to(call: Call, url: str, status: int) -> Reply:
    """A redirect with AIStore's additions to the query: sender and time."""
    extra = f"pid={call.cluster.proxy.id}&utm={time.time_ns():x}"
    return Reply.redirect(status, f"{url}{'&' if '?' in url else '?'}{extra}", call.request.method)


def lookup(call: Call) -> Object:
    """Return the object, or the target's 404, also if another target has it."""
    entry = call.source.objects.get(call.name)
    if entry is None or call.cluster.holder(call.bucket, call.name) is not call.node:
        if call.source.ec and call.request.method == "GET":
            # A GET tries to recover a missing object from its slices.
            message = (
                f"{call.node.tag}: failed to EC-recover ais://{call.bucket}/{call.name}, err: no metafile"
            )
            raise ReplyError(400, message, "ErrFailedTo")
        raise object_missing(call.node.tag, call.bucket, call.name)
    return entry


def standard_headers(entry: Object) -> dict[str, str]:
    """The headers that describe an object on GET and PUT."""
    version = {"Ais-Version": str(entry.version)} if entry.version else {}  # system buckets have none
    return {"Ais-Atime": str(entry.atime_ns), **_checksum_headers(entry), **version}


def _checksum_headers(entry: Object) -> dict[str, str]:
    """The checksum; none of an object of a bucket without checksums."""
    value = {"Ais-Checksum-Value": entry.checksum} if entry.checksum else {}
    return {"Ais-Checksum-Type": entry.kind, **value}


@route(
    "target",
    "GET",
    "object",
    query="archpath archregx archmode archmime etl_name etl_args etl_pipeline latest-ver",
    sdk="Object.get_reader",
)
def get(call: Call) -> Reply:
    """The object, a range of it, its files as an archive, or its transform."""
    if call.query.get("etl_name") or call.query.get("etl_pipeline"):
        return get_transformed(call, lookup(call))
    for name in ("ais-blob-download", "ais-blob-chunk", "ais-blob-workers"):
        if name in call.request.headers:
            raise not_implemented(f"header {name!r}")
    archived = call.query.get("archpath") or call.query.get("archregx")
    entry, file = _open_object(call, once=not archived)
    with ExitStack() as stack:
        stack.callback(file.close)
        if archived:
            return get_archived(call, entry, file)
        _new_version(call, entry)
        entry.atime_ns = time.time_ns()
        status, headers = 200, standard_headers(entry)
        wanted = call.request.headers.get("range")
        if wanted is not None:
            first, last = parse_range(wanted, entry.size, f"ais://{call.bucket}/{call.name}")
            file.offset, file.size = first, last - first + 1
            status, headers = 206, {"Accept-Ranges": "bytes", **headers}
            headers["Content-Range"] = f"bytes {first}-{last}/{entry.size}"
        if entry.left >= 0:
            call.plan = Plan((*call.plan, Cut(max(0, entry.left - file.offset))))
        stack.pop_all()  # the answer closes it
        return Reply(status, headers | {"Content-Type": "application/octet-stream"}, file)


def _open_object(call: Call, *, once: bool) -> tuple[Object, FileSlice]:
    """Return the object and its open file, also during a replacement.

    A node that has not noticed yet that an object lost its parts sends `once` the rest of it, and breaks off.
    """
    while True:
        entry = lookup(call)
        try:
            if once and entry.left >= 0 and not entry.reloaded:
                entry.reloaded = True
                return entry, call.store.open_as_known(entry)
            return entry, call.store.open(entry)
        except FileNotFoundError:
            if call.source.objects.get(call.name) is entry:
                raise ReplyError(500, f"{call.node.tag}: the data file of {call.name} is gone") from None


_RANGE = re.compile(r"\s*([0-9]{0,18})\s*-\s*([0-9]{0,18})\s*")


def parse_range(text: str, size: int, cname: str) -> tuple[int, int]:
    """Return first and last byte of a `Range` header, or AIStore's 416."""
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
        message = f"size={size}: not satisfiable range [{spec}]"
        raise ReplyError(416, message, "ErrRangeNotSatisfiable", {"Content-Range": f"bytes */{size}"})
    return first, min(last, size - 1)


def _new_version(call: Call, entry: Object) -> None:
    """Replace the object after its file was opened, if a fault wants that."""
    change = call.plan.last(NewVersion)
    if change is None:
        return
    if change.same_bytes:
        call.store.copy(entry, call.bucket, call.name)
        return
    inverted = bytes(255 - value for value in range(256))
    blocks = (block.translate(inverted) for block in file_blocks(call.store.path(entry)))
    call.store.put(call.bucket, call.name, blocks)


@route("target", "HEAD", "object", query="props presence", sdk="Object.head, Object.props")
def head(call: Call) -> Reply:
    """The properties requested by `props`, or all of them; a bad one is a 400."""
    if call.query.get("presence", "0") not in ("", "0", "2"):
        raise not_implemented(f"query parameter 'presence'={call.query['presence']}")
    entry = lookup(call)
    if entry.reloaded:
        raise ReplyError(400, str(parts_lost(entry.size, entry.left)), "ErrLmetaCorrupted")
    wanted = call.query.get("props")
    props = [item.strip() for item in wanted.split(",") if item.strip()] if wanted else _EVERYTHING
    described = _described(call, entry, dated="last-modified" in props)
    for prop in sorted(set(props) - described.keys() - _TOLD_ANYWAY):
        raise ReplyError(400, f'invalid property "{prop}" in props list', headers={"Ais-Present": "true"})
    headers = {"Ais-Present": "true"}
    for prop, rows in described.items():
        headers |= rows if prop in props else {}
    if not wanted:
        headers |= {"Ais-Bucket-Name": call.bucket, "Ais-Bucket-Provider": "ais", "Ais-Name": call.name}
    return Reply(200, headers | {"Content-Length": str(entry.size)})


def _described(call: Call, entry: Object, *, dated: bool) -> dict[str, dict[str, str]]:
    """Headers by the property that they contain."""
    custom = ", ".join(f"{key}={value}" for key, value in sorted(entry.custom.items()))
    mtime = time.gmtime(call.store.path(entry).stat().st_mtime if dated else 0)
    return {
        "atime": {"Ais-Atime": str(entry.atime_ns)},
        "checksum": _checksum_headers(entry),
        "version": {"Ais-Version": str(entry.version)},
        "custom": {"Ais-Custom-Md": " ".join(custom.splitlines())} if custom else {},
        "location": {"Ais-Location": call.cluster.location(call.bucket, call.name)},
        "copies": {"Ais-Mirror-Copies": "1", "Ais-Mirror-Paths": str(call.cluster.root)},
        "last-modified": {"Last-Modified": time.strftime("%a, %d %b %Y %H:%M:%S GMT", mtime)},
        "chunked": {
            "Ais-Chunks-Count": str(len(entry.parts)),
            "Ais-Chunks-Max-Chunk-Size": str(max(entry.parts)),
        }
        if entry.parts
        else {},
        "etag": {"Etag": f'"{entry.checksum}"'},
    }


@route("target", "PUT", "object", sdk="ObjectWriter.put_content, .put_file")
def put(call: Call) -> Reply:
    """Store the body, if it is new and has the checksum that the client sent.

    The answer for bytes that are there already is bare, as of a real node.
    """
    if call.cluster.owner(call.bucket, call.name) is not call.node:
        raise ReplyError(400, f"{call.node.tag}: ais://{call.bucket}/{call.name} belongs to another target")
    kind = call.request.headers.get("ais-checksum-type", "xxhash2")
    if kind not in DIGESTS:
        raise not_implemented(f"checksum type {kind!r}")
    expected = call.request.headers.get("ais-checksum-value", "")
    own = call.source.checksum
    there = call.source.objects.get(call.name)
    if there and expected and (kind, expected) == (there.kind, there.checksum) and not there.reloaded:
        call.request.body.drain()
        return Reply()
    with call.store.new_file() as (number, path):
        size, checksum = append_blocks(path, call.request.body.blocks(), kind)
        if expected not in ("", checksum):
            text = f"BAD DATA CHECKSUM: {kind}({expected} != {checksum}) (context: ais://{call.bucket}/{call.name})"
            raise ReplyError(500, text, "ErrBadCksum")
        if own != kind:
            checksum = checksum_of(path, own)
        entry = call.store.commit(call.bucket, call.name, number, size, checksum, kind=own)
    return Reply(200, standard_headers(entry))


@route("target", "DELETE", "object", sdk="Object.delete")
def delete(call: Call) -> Reply:
    """Remove the object."""
    owned = call.cluster.owner(call.bucket, call.name) is call.node
    if not owned or not call.store.delete(call.bucket, call.name):
        raise ReplyError(404, f"ais://{call.bucket}/{call.name} doesn't exist")
    return Reply()


@route("target", "PATCH", "object", query="set-new-custom", sdk="ObjectWriter.set_custom_props")
def patch(call: Call) -> Reply:
    """Add custom properties, or replace them all."""
    entry = lookup(call)
    fresh = call.value(dict[str, str]) or {}
    if call.query.get("set-new-custom", "false").lower() != "true":
        fresh = {**entry.custom, **fresh}
    call.store.set_custom(call.bucket, entry, fresh)
    return Reply()


@route("target", "PUT", "object", "object_to", query="object_to latest-ver synchronize", sdk="Object.copy")
def copy(call: Call) -> Reply:
    """Copy the object to another name, in this or another bucket."""
    entry = lookup(call)
    bucket, name = parse_uname(call.query["object_to"])
    check_bucket_name(bucket)
    check_object_name(name)
    call.store.bucket(bucket)
    call.store.copy(entry, bucket, name)
    return Reply()


class _Listed(msgspec.Struct):
    """One part, as the request that completes an upload names it."""

    number: Int = msgspec.field(name="part-number")


@route(
    "target",
    "PUT",
    "object",
    "append_type",
    query="append_type append_handle",
    sdk="ObjectWriter.append_content",
)
def append(call: Call) -> Reply:
    """Add the body to an unfinished object; ``append_type=flush`` ends it."""
    kind, handle = call.query["append_type"], call.query.get("append_handle", "")
    if kind not in ("append", "flush"):
        message = (
            f'invalid operation "{kind}" (expecting either "append" or "flush") - check "append_type" query'
        )
        raise ReplyError(400, message)
    appends = call.cluster.appends
    existing = call.source.objects.get(call.name)
    key = handle.rpartition("|")[2]
    if kind == "flush":
        path = _begun(call, key)
        call.store.put(call.bucket, call.name, file_blocks(path))
        appends.pop(key, None)
        path.unlink(missing_ok=True)
        return Reply()
    blocks = call.request.body.blocks()
    if not handle:
        before = file_blocks(call.store.path(existing)) if existing is not None else ()
        with call.store.new_file() as (_, path):
            append_blocks(path, itertools.chain(before, blocks))
        key = new_id(16)
        appends[key] = path
    else:
        path = _begun(call, handle)
        size = path.stat().st_size
        try:
            append_blocks(path, blocks)
        except BaseException:  # as if this piece had never come
            os.truncate(path, size)
            raise
    return Reply(200, {"Ais-Append-Handle": f"{call.node.id}|{path}|xxhash2|{key}"})


def _begun(call: Call, handle: str) -> Path:
    """The hidden file of the handle, or of its key alone."""
    path = call.cluster.appends.get(handle.rpartition("|")[2])
    if path is None:
        why = f"empty source in the {{{handle}}} handle"
        raise ReplyError(400, f"failed to finalize append-file operation: {why}")
    return path


@route("target", "POST", "object", "mpt-upload", sdk="MultipartUpload.create")
def begin_parts(call: Call) -> Reply:
    """Begin an upload in parts."""
    upload_id = new_id(10)
    call.cluster.parts[upload_id] = {}
    return Reply.text(upload_id)


@route("target", "PUT", "object", "uploadId", query="uploadId partNumber", sdk="MultipartUpload.add_part")
def put_part(call: Call) -> Reply:
    """Store one part; the same number again replaces it."""
    parts = _parts(call)
    asked = call.query.get("partNumber", "")
    what = f"o[{call.bucket}/{call.name}(-)]: uploadID {call.query['uploadId']!r}: the part number"
    place = number(asked, what)
    with call.store.new_file() as (_, path):
        append_blocks(path, call.request.body.blocks())
    old = parts.pop(place, None)
    parts[place] = path  # in the order of arrival
    if old is not None:
        old.unlink(missing_ok=True)
    return Reply()


@route("target", "POST", "object", "mpt-complete", query="uploadId", sdk="MultipartUpload.complete")
def complete_parts(call: Call) -> Reply:
    """Put the listed parts together, in the order of their numbers.

    The object is chunked. Its checksum is a CRC32C if they came in another order, as on a real cluster.
    """
    parts = _parts(call)
    numbers = sorted(part.number for part in call.value(list[_Listed]) or [])
    if numbers != sorted(parts):
        asked = f"requested {len(numbers)} parts, have {len(parts)}"
        raise ReplyError(400, f"partial completion is not allowed: {asked}")
    blocks = (block for number in numbers for block in file_blocks(parts[number]))
    kind = call.source.checksum if list(parts) == numbers else "crc32c"
    sizes = [parts[number].stat().st_size for number in numbers]
    with call.store.new_file() as (number, path):
        size, checksum = append_blocks(path, blocks, kind)
        call.store.commit(call.bucket, call.name, number, size, checksum, kind=kind, parts=sizes)
    _forget(call)
    return Reply()


@route("target", "DELETE", "object", "mpt-abort", query="uploadId", sdk="MultipartUpload.abort")
def abort_parts(call: Call) -> Reply:
    """Give an upload up."""
    _parts(call)
    _forget(call)
    return Reply()


def _parts(call: Call) -> dict[int, Path]:
    upload_id = call.query.get("uploadId", "")
    parts = call.cluster.parts.get(upload_id)
    if parts is None:
        raise ReplyError(404, f"o[{call.bucket}/{call.name}(-)]: {upload_id} does not exist", "ErrNotFound")
    return parts


def _forget(call: Call) -> None:
    for path in call.cluster.parts.pop(call.query["uploadId"], {}).values():
        path.unlink(missing_ok=True)
