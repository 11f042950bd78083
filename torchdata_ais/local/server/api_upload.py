"""Objects written in several requests: appended piece by piece, or uploaded in numbered parts."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from .names import new_id
from .problem import ReplyError
from .reply import Reply
from .routes import Call, Int, number, route
from .store import file_blocks, write_all

__all__ = ["Uploads"]


@dataclass
class _Append:
    """An object that grows: its hidden file, and the hash so far."""

    number: int
    path: Path
    size: int = 0
    digest: Any = field(default_factory=xxhash.xxh64)


class _Listed(msgspec.Struct):
    """One part, as the request that completes an upload names it."""

    number: Int = msgspec.field(name="part-number")


class Uploads:
    """What has been begun and neither finished nor given up."""

    def __init__(self) -> None:
        self.appends: dict[str, _Append] = {}
        self.parts: dict[str, dict[int, Path]] = {}
        self.lock = threading.Lock()


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
    uploads = call.cluster.uploads
    call.cluster.store.bucket(call.bucket)
    key = handle.rpartition("|")[2]
    if kind == "flush":
        return _flush(call, key)
    state = uploads.appends.get(key) if handle else _begin(call)
    if state is None:
        raise _unknown_handle(handle)
    digest, size = state.digest.copy(), state.size
    try:
        with state.path.open("ab", buffering=0) as file:
            for block in call.request.body.blocks():
                write_all(file.fileno(), block)
                digest.update(block)
                size += len(block)
    except BaseException:  # as if this piece had never come
        os.truncate(state.path, state.size)
        if not handle:
            state.path.unlink()
        raise
    state.digest, state.size = digest, size
    if not handle:
        key = new_id(16)
        uploads.appends[key] = state
    return Reply(200, [("Ais-Append-Handle", f"{call.node.id}|{state.path}|xxhash2|{key}")])


def _begin(call: Call) -> _Append:
    store = call.cluster.store
    state = _Append(*store.new_file())
    before = store.bucket(call.bucket).objects.get(call.name)
    try:
        with state.path.open("wb", buffering=0) as file:
            for block in file_blocks(store.path(before)) if before is not None else ():
                write_all(file.fileno(), block)
                state.digest.update(block)
                state.size += len(block)
    except BaseException:
        state.path.unlink(missing_ok=True)
        raise
    return state


def _flush(call: Call, key: str) -> Reply:
    with call.cluster.uploads.lock:
        state = call.cluster.uploads.appends.pop(key, None)
    if state is None:
        raise _unknown_handle(key)
    digest = state.digest.hexdigest()
    try:
        call.cluster.store.commit(call.bucket, call.name, state.number, state.size, digest)
    except BaseException:
        call.cluster.uploads.appends[key] = state
        raise
    return Reply()


def _unknown_handle(handle: str) -> ReplyError:
    return ReplyError(
        400, f"failed to finalize append-file operation: empty source in the {{{handle}}} handle"
    )


@route("target", "POST", "object", "mpt-upload", sdk="MultipartUpload.create")
def begin_parts(call: Call) -> Reply:
    """Begin an upload in parts."""
    call.cluster.store.bucket(call.bucket)
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
    _, path = call.cluster.store.new_file()
    try:
        with path.open("wb", buffering=0) as file:
            for block in call.request.body.blocks():
                write_all(file.fileno(), block)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
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
    call.cluster.store.put(call.bucket, call.name, blocks)
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
