"""Objects written in several requests: appended piece by piece, or uploaded in numbered parts."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import msgspec
import xxhash

from .fields import Int, number
from .files import append_blocks, file_blocks
from .names import new_id
from .problem import ReplyError
from .reply import Reply
from .routes import Call, route
from .uploads import Append


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
    appends = call.cluster.uploads.appends
    existing = call.source.objects.get(call.name)
    key = handle.rpartition("|")[2]
    state = appends.get(key)
    if kind == "flush":
        return _flush(call, key)
    if handle and state is None:
        raise _unknown_handle(handle)
    blocks = call.request.body.blocks()
    if state is None:
        before = file_blocks(call.store.path(existing)) if existing is not None else ()
        with call.store.new_file() as (file, path):
            state = Append(file, path)
            state.size = append_blocks(path, itertools.chain(before, blocks), state.digest)
        key = new_id(16)
        appends[key] = state
    else:
        digest = state.digest.copy()
        try:
            state.size += append_blocks(state.path, blocks, digest)
        except BaseException:  # as if this piece had never come
            os.truncate(state.path, state.size)
            raise
        state.digest = digest
    return Reply(200, {"Ais-Append-Handle": f"{call.node.id}|{state.path}|xxhash2|{key}"})


def _flush(call: Call, key: str) -> Reply:
    appends = call.cluster.uploads.appends
    state = appends.pop(key, None)
    if state is None:
        raise _unknown_handle(key)
    try:
        call.store.commit(call.bucket, call.name, state.number, state.size, state.digest.hexdigest())
    except BaseException:
        appends[key] = state
        raise
    return Reply()


def _unknown_handle(handle: str) -> ReplyError:
    return ReplyError(
        400, f"failed to finalize append-file operation: empty source in the {{{handle}}} handle"
    )


@route("target", "POST", "object", "mpt-upload", sdk="MultipartUpload.create")
def begin_parts(call: Call) -> Reply:
    """Begin an upload in parts."""
    call.store.bucket(call.bucket)
    upload_id = new_id(10)
    call.cluster.uploads.parts[upload_id] = {}
    return Reply.text(upload_id)


@route("target", "PUT", "object", "uploadId", query="uploadId partNumber", sdk="MultipartUpload.add_part")
def put_part(call: Call) -> Reply:
    """Store one part; the same number again replaces it."""
    parts = _parts(call)
    asked = call.query.get("partNumber", "")
    what = f"o[{call.bucket}/{call.name}(-)]: uploadID {call.query['uploadId']!r}: the part number"
    place = number(asked, what)
    with call.store.new_file() as (_, path):
        append_blocks(path, call.request.body.blocks(), xxhash.xxh64())
    old = parts.get(place)
    parts[place] = path
    if old is not None:
        old.unlink(missing_ok=True)
    return Reply()


@route("target", "POST", "object", "mpt-complete", query="uploadId", sdk="MultipartUpload.complete")
def complete_parts(call: Call) -> Reply:
    """Put the listed parts together, in the order of their numbers."""
    parts = _parts(call)
    numbers = sorted(part.number for part in call.value(list[_Listed]) or [])
    if numbers != sorted(parts):
        asked = f"requested {len(numbers)} parts, have {len(parts)}"
        raise ReplyError(400, f"partial completion is not allowed: {asked}")
    blocks = (block for number in numbers for block in file_blocks(parts[number]))
    call.store.put(call.bucket, call.name, blocks)
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
    parts = call.cluster.uploads.parts.get(upload_id)
    if parts is None:
        raise ReplyError(404, f"o[{call.bucket}/{call.name}(-)]: {upload_id} does not exist", "ErrNotFound")
    return parts


def _forget(call: Call) -> None:
    for path in call.cluster.uploads.parts.pop(call.query["uploadId"], {}).values():
        path.unlink(missing_ok=True)
