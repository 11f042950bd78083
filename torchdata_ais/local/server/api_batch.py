"""GetBatch: many objects, ranges and archived files in one tar, in the order asked for.

Everything is looked up before the first byte goes out, so what cannot be had is an error status and never,
as on a real cluster in streaming mode, a tar that ends early and looks whole. Files are opened one after the
other: an object that is replaced in that moment breaks the connection, which no client takes for an end.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from .api_archived import member_missing
from .api_objects import redirect_to
from .archive import TAR_END, Archive, NotAnArchiveError, contents, tar_header, zip_of
from .names import new_id
from .problem import ReplyError, not_implemented, object_missing
from .reply import Reply
from .routes import Call, Int, route

FORMATS = (".tar", ".tgz", ".tar.gz", ".zip")
BLOCK_BYTES = 1 << 20
_UNKNOWN = re.compile(r"unknown field `(.*?)`")  # in the words of msgspec


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """One entry of the request."""

    objname: str = ""
    bucket: str | None = None
    provider: str | None = None
    uname: str | None = None
    archpath: str | None = None
    start: Int | None = None
    length: Int | None = None
    opaque: str | None = None


class _Batch(msgspec.Struct):
    """The request."""

    entries: list[_Entry] | None = msgspec.field(name="in", default=None)
    mime: str | None = None
    coer: bool | None = None
    onob: bool | None = None
    strm: bool | None = None


@dataclass
class _Part:
    """One entry of the answer: its name in the tar, its size, and how to read it."""

    request: _Entry
    bucket: str
    name: str
    size: int
    mtime: int
    blocks: Callable[[], Iterator[bytes]]
    error: str = ""


@route("proxy", "GET", "batch", query="coloc", sdk="Batch.get")
def redirect_batch(call: Call) -> Reply:
    """Send the client to a target; any can assemble."""
    if call.query.get("coloc") == "2":
        raise not_implemented("query parameter 'coloc'=2")
    entries = _read(call).entries
    if not entries:
        raise ReplyError(400, "moss: empty input")
    for entry in entries:
        bucket = entry.bucket or call.bucket
        if not bucket:
            raise ReplyError(400, f'missing bucket specification for object "{entry.objname}"')
        call.cluster.store.bucket(bucket)
    target = call.cluster.owner(entries[0].bucket or call.bucket, entries[0].objname)
    path, _, query = call.request.target.partition("?")
    job = f"{path.rstrip('/')}/gbt-{new_id()}/{new_id(13)}/{len(call.cluster.targets)}"
    return redirect_to(call, f"{target.url}{job}" + (f"?{query}" if query else ""), 307)


@route("target", "GET", "batch", query="coloc")
def get_batch(call: Call) -> Reply:
    """Assemble and send the archive."""
    batch = _read(call)
    mime = batch.mime or ".tar"
    mime = mime if mime.startswith(".") else f".{mime}"
    if mime not in FORMATS:
        raise ReplyError(400, f'unknown mime type "{mime}"', "errUnknownMime")
    parts = [_part(call, entry, only_names=bool(batch.onob)) for entry in batch.entries or []]
    if not batch.coer:
        _raise_first(parts)
    archive = _archive(parts, mime)
    if batch.strm:
        kind = {".tar": "application/x-tar", ".zip": "application/zip"}.get(mime, "application/gzip")
        return Reply(200, [("Content-Type", kind)], archive, chunked=True)
    return _multipart(call, parts, archive)


def _read(call: Call) -> _Batch:
    """The request; what it has and this cluster does not know is named."""
    known = _Batch.__struct_encode_fields__
    for field in call.message:
        if field not in known:
            raise not_implemented(f"field {field!r:.100} of GetBatch")
    try:
        return call.body(_Batch)
    except ReplyError as problem:
        unknown = _UNKNOWN.search(problem.message)
        if unknown is None:
            raise
        raise not_implemented(f"field {unknown[1]!r:.100} of an entry of GetBatch") from problem


def _raise_first(parts: list[_Part]) -> None:
    for part in parts:
        if part.error:
            raise ReplyError(404, part.error, "ErrNotFound")


def _part(call: Call, entry: _Entry, *, only_names: bool) -> _Part:
    if entry.provider not in ("ais", "", None):
        raise not_implemented(f"provider {entry.provider!r:.100}")
    bucket = entry.bucket or call.bucket
    path = entry.objname + (f"/{entry.archpath}" if entry.archpath else "")
    name = path if only_names else f"{bucket}/{path}"
    try:
        return _found(call, entry, bucket, name)
    except ReplyError as problem:
        if problem.status != 404:
            raise
        return _Part(entry, bucket, f"__404__/{name}", 0, 0, lambda: iter(()), problem.message)


def _found(call: Call, entry: _Entry, bucket: str, name: str) -> _Part:
    store = call.cluster.store
    found = store.bucket(bucket).objects.get(entry.objname)
    if found is None:
        raise object_missing(call.node.tag, bucket, entry.objname)
    start, length = entry.start or 0, entry.length or 0
    mtime = found.atime_ns // 1_000_000_000
    if not entry.archpath:
        offset, size = _window(found.size, start, length)
        return _Part(entry, bucket, name, size, mtime, lambda: _file_blocks(store.open(found), offset, size))
    fd = store.open(found)
    try:
        archive: Archive = call.cluster.archives.load(fd, found.file, found.name)
        member = archive.find(entry.archpath)
        if member is None:
            raise member_missing(call, bucket, found.name, entry.archpath)
        skip, size = _window(member[2], start, length)
        if archive.extension == ".tar":
            offset = member[1] + skip
            return _Part(entry, bucket, name, size, 0, lambda: _file_blocks(store.open(found), offset, size))
        content = next(contents(fd, archive, [member]))[skip : skip + size]
        return _Part(entry, bucket, name, size, 0, lambda: iter((content,)))
    except NotAnArchiveError as cause:
        raise ReplyError(400, f"archive/tar: invalid tar header ({cause})") from cause
    finally:
        os.close(fd)


def _window(size: int, start: int, length: int) -> tuple[int, int]:
    """Offset and size of the wanted bytes (length -1: to the end); all of them must be there."""
    if not start and not length:
        return 0, size
    end = size if length < 0 else start + length
    if length == 0 or not 0 <= start < size or end > size:
        asked = f"size={size}: not satisfiable range [start={start},length={length}]"
        raise ReplyError(400, asked, "ErrRangeNotSatisfiable")
    return start, end - start


def _file_blocks(fd: int, offset: int, size: int) -> Iterator[bytes]:
    try:
        end = offset + size
        while offset < end:
            block = os.pread(fd, min(BLOCK_BYTES, end - offset), offset)
            if not block:
                raise OSError("a data file became shorter")
            offset += len(block)
            yield block
    finally:
        os.close(fd)


def _archive(parts: list[_Part], mime: str) -> Iterator[bytes]:
    if mime == ".zip":
        return iter((zip_of((part.name, b"".join(part.blocks())) for part in parts),))
    tar = _tar(parts)
    return tar if mime == ".tar" else _gzipped(tar)


def _tar(parts: list[_Part]) -> Iterator[bytes]:
    for part in parts:
        head = tar_header(part.name, part.size, part.mtime)
        tail = bytes(-part.size % 512)
        if part.size <= BLOCK_BYTES:
            yield head + b"".join(part.blocks()) + tail
        else:
            yield head
            yield from part.blocks()
            yield tail
    yield TAR_END


def _gzipped(blocks: Iterator[bytes]) -> Iterator[bytes]:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as stream:
        for block in blocks:
            stream.write(block)
            yield out.getvalue()
            out.seek(0)
            out.truncate()
    yield out.getvalue()


def _multipart(call: Call, parts: list[_Part], archive: Iterator[bytes]) -> Reply:
    job = next(
        (piece for piece in call.request.path.split("/") if piece.startswith("gbt-")), f"gbt-{new_id()}"
    )
    boundary = secrets.token_hex(30)
    metadata = json.dumps(
        {"uuid": job, "out": [_described(part) for part in parts]}, separators=(",", ":"), ensure_ascii=False
    )

    def body() -> Iterator[bytes]:
        yield (
            f'--{boundary}\r\nContent-Disposition: form-data; name="metadata"\r\n\r\n{metadata}\n\r\n--{boundary}\r\n'
            f'Content-Disposition: form-data; name="archive"; filename="get-batch[{job}]"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        yield from archive
        yield f"\r\n--{boundary}--\r\n".encode()

    return Reply(200, [("Content-Type", f"multipart/mixed; boundary={boundary}")], body())


def _described(part: _Part) -> dict[str, Any]:
    asked = part.request
    out: dict[str, Any] = {"objname": asked.objname}
    if asked.archpath:
        out["archpath"] = asked.archpath
    out |= {"bucket": part.bucket, "provider": "ais"}
    if asked.opaque:
        out["opaque"] = asked.opaque
    if part.error:
        out["err_msg"] = part.error
    out["size"] = part.size
    return out
