"""Objects written in several requests: appended piece by piece, or uploaded in numbered parts."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import msgspec

from .fields import Int, number
from .files import append_blocks, file_blocks
from .names import new_id
from .problem import ReplyError
from .reply import Reply
from .routes import Call, route


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
    """Add the body to an object in the making; ``append_type=flush`` makes it the object."""
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
    """The hidden file that the handle, or its key alone, stands for."""
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
