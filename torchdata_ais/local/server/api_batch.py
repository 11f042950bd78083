"""GetBatch: objects, ranges and archived files in one tar, in order.

All entries are looked up before the first byte is sent. So a missing one is an error status. It is never, as on a real
cluster in streaming mode, a tar that ends early and looks whole: such answers are faults, to be switched on
(`_spoiled`). Files are opened one after the other. An object that is replaced in that moment breaks the connection,
which no client takes for an end.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from .api_objects import member_missing, redirect_to
from .archive import File, opened, packed
from .faults import Action, EmptyEntry, EndBatch, Placeholder, SwapEntries, WholeObject
from .files import FileSlice
from .http import Reply
from .names import new_id
from .problem import Int, ReplyError, not_implemented, object_missing
from .routes import Call, route
from .store import Object, Store

TYPES = {
    ".tar": "application/x-tar",
    ".tgz": "application/gzip",
    ".tar.gz": "application/gzip",
    ".zip": "application/zip",
}
_UNKNOWN = re.compile(r"unknown field `(.*?)`( - at)?")  # in the words of msgspec


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


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    """The request."""

    entries: list[_Entry] | None = msgspec.field(name="in", default=None)
    mime: str | None = None
    coer: bool | None = None
    onob: bool | None = None
    strm: bool | None = None


@dataclass
class _Part:
    """One entry of the answer, and the file of the archive that it becomes."""

    request: _Entry
    bucket: str
    file: File
    error: str = ""
    is_injected: bool = False


@route("proxy", "GET", "batch", query="coloc", sdk="Batch.get")
def redirect_batch(call: Call) -> Reply:
    """Send the client to a target; any can assemble."""
    entries = _read(call).entries
    if not entries:
        raise ReplyError(400, "moss: empty input")
    for entry in entries:
        start, length = entry.start or 0, entry.length or 0
        if start < 0 or length < -1 or (start and not length):
            asked = "" if length == -1 else f",length={length}"
            range_ = f'start={start}{asked} (oname: "{entry.objname}")'
            raise ReplyError(400, f"unmarshalerDecoder: not satisfiable range [{range_}]")
        bucket = entry.bucket or call.bucket
        if not bucket:
            raise ReplyError(400, f'missing bucket specification for object "{entry.objname}"')
        call.store.bucket(bucket)
    target = call.cluster.owner(entries[0].bucket or call.bucket, entries[0].objname)
    path, _, query = call.request.target.partition("?")
    job = call.cluster.jobs.for_batch(call.bucket).id
    assembly = f"{path.rstrip('/')}/{job}/{new_id(13)}/{len(call.cluster.targets)}"
    return redirect_to(call, f"{target.url}{assembly}" + (f"?{query}" if query else ""), 307)


@route("target", "GET", "batch", query="coloc")
def get_batch(call: Call) -> Reply:
    """Assemble and send the archive."""
    batch = _read(call)
    call.cluster.jobs.for_batch(call.bucket)
    mime = batch.mime or ".tar"
    mime = mime if mime.startswith(".") else f".{mime}"
    if mime not in TYPES:
        raise ReplyError(400, f'unknown mime type "{mime}"', "errUnknownMime")
    entries = _spoiled(batch.entries or [], call.plan)
    parts = [_part(call, entry, action, only_names=bool(batch.onob)) for entry, action in entries]
    for part in parts:
        if part.error and not part.is_injected and not batch.coer:
            raise ReplyError(404, part.error, "ErrNotFound")
    archive = packed(mime, (part.file for part in parts))
    if batch.strm:
        return Reply(200, {"Content-Type": TYPES[mime]}, archive, chunked=True)
    return _multipart(call, parts, archive)


def _read(call: Call) -> _Batch:
    """Return the request; a feature that this cluster does not have is named."""
    try:
        return call.body(_Batch)
    except ReplyError as problem:
        unknown = _UNKNOWN.search(problem.message)
        if unknown is None:
            raise
        owner = "an entry of GetBatch" if unknown[2] else "GetBatch"
        raise not_implemented(f"field {unknown[1]!r:.100} of {owner}") from problem


def _spoiled(entries: list[_Entry], actions: Iterable[Action]) -> list[tuple[_Entry, Action | None]]:
    """Return the entries after the faults, and the treatment of each."""
    out: list[tuple[_Entry, Action | None]] = [(entry, None) for entry in entries]

    def there(entry: int) -> bool:
        return -len(out) <= entry < len(out)

    for action in actions:
        match action:
            case EndBatch(after):
                del out[after:]
            case SwapEntries(one, other) if there(one) and there(other):
                out[one], out[other] = out[other], out[one]
            case WholeObject(number) | Placeholder(number) | EmptyEntry(number) if there(number):
                out[number] = (out[number][0], action)
    return out


def _part(call: Call, entry: _Entry, action: Action | None, *, only_names: bool) -> _Part:
    if entry.provider not in ("ais", "", None):
        raise not_implemented(f"provider {entry.provider!r:.100}")
    bucket = entry.bucket or call.bucket
    path = entry.objname + (f"/{entry.archpath}" if entry.archpath else "")
    name = path if only_names else f"{bucket}/{path}"
    if isinstance(action, WholeObject):
        entry = msgspec.structs.replace(entry, start=0, length=0)
    try:
        if isinstance(action, Placeholder):
            missing = object_missing(call.node.tag, bucket, entry.objname)
            raise member_missing(call, bucket, entry.objname, entry.archpath) if entry.archpath else missing
        if isinstance(action, EmptyEntry):
            return _Part(entry, bucket, File(name, 0, ()))
        return _Part(entry, bucket, _found(call, entry, bucket, name))
    except ReplyError as problem:
        if problem.status != 404:
            raise
        placeholder = File(f"__404__/{name}", 0, ())
        return _Part(entry, bucket, placeholder, problem.message, isinstance(action, Placeholder))


def _found(call: Call, entry: _Entry, bucket: str, name: str) -> File:
    store = call.store
    found = store.bucket(bucket).objects.get(entry.objname)
    if found is None:
        raise object_missing(call.node.tag, bucket, entry.objname)
    start, length = entry.start or 0, entry.length or 0
    if not entry.archpath:
        offset, size = _window(found.size, start, length)
        return File(name, size, _blocks(store, found, offset, size), found.atime_ns // 1_000_000_000)
    with opened(store, found) as archive:
        member = archive.find(entry.archpath)
        if member is None:
            raise member_missing(call, bucket, found.name, entry.archpath)
        skip, size = _window(member.size, start, length)
        if archive.extension == ".tar":
            return File(name, size, _blocks(store, found, member.offset + skip, size))
        return File(name, size, (next(archive.read([member]))[skip : skip + size],))


def _window(size: int, start: int, length: int) -> tuple[int, int]:
    """Offset and size of the wanted bytes, all of which must exist."""
    if not start and not length:
        return 0, size
    end = size if length < 0 else start + length
    if length == 0 or not 0 <= start < size or end > size:
        asked = f"size={size}: not satisfiable range [start={start},length={length}]"
        raise ReplyError(400, asked, "ErrRangeNotSatisfiable")
    return start, end - start


def _blocks(store: Store, entry: Object, offset: int, size: int) -> Iterator[bytes]:
    """Yield a part of an object, which is opened for the first block."""
    with store.open(entry) as file:
        yield from FileSlice(file.fd, offset, size).blocks()


def _multipart(call: Call, parts: list[_Part], archive: Iterator[bytes]) -> Reply:
    job = next(
        (piece for piece in call.request.path.split("/") if piece.startswith("gbt-")), f"gbt-{new_id()}"
    )
    boundary = secrets.token_hex(30)
    metadata = msgspec.json.encode({"uuid": job, "out": [_described(part) for part in parts]}).decode()

    def body() -> Iterator[bytes]:
        yield (
            f'--{boundary}\r\nContent-Disposition: form-data; name="metadata"\r\n\r\n{metadata}\n\r\n--{boundary}\r\n'
            f'Content-Disposition: form-data; name="archive"; filename="get-batch[{job}]"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        yield from archive
        yield f"\r\n--{boundary}--\r\n".encode()

    return Reply(200, {"Content-Type": f"multipart/mixed; boundary={boundary}"}, body())


def _described(part: _Part) -> dict[str, object]:
    asked = part.request
    path = {"archpath": asked.archpath} if asked.archpath else {}
    more = {"opaque": asked.opaque, "err_msg": part.error}
    out = {"objname": asked.objname, **path, "bucket": part.bucket, "provider": "ais"}
    return {**out, **{name: text for name, text in more.items() if text}, "size": part.file.size}
