"""Listing a bucket page by page, in msgpack for the SDK, in JSON for whoever does not ask for that."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

import msgspec

from .actions import DropEntry
from .archive import Member, NotAnArchiveError, extension_of, opened
from .fields import number
from .names import SHARD_INDEXES, check_prefix, new_id
from .problem import ReplyError, not_implemented
from .reply import Reply
from .routes import Call, route
from .store import Bucket, Object

PAGE_SIZE = 10_000

CACHED, ARCH_DIR, NAME_ONLY, NAME_SIZE, BUCKET_PRESENT = 1 << 0, 1 << 3, 1 << 4, 1 << 5, 1 << 6
SUPPORTED_FLAGS = CACHED | ARCH_DIR | NAME_ONLY | NAME_SIZE | BUCKET_PRESENT

ENTRY_CACHED, ENTRY_IN_ARCHIVE, ENTRY_IS_ARCHIVE, ENTRY_CHUNKED = 1 << 6, 1 << 7, 1 << 9, 1 << 13

Entry = dict[str, Any]


@route(
    "proxy",
    "GET",
    "bucket",
    "list",
    sdk="Bucket.list_objects, .list_objects_iter, .list_all_objects, .list_urls",
)
def list_objects(call: Call) -> Reply:
    """One page: at most `pagesize` entries after the token, sorted by name."""
    bucket = call.source
    wanted = call.fields(
        prefix="",
        pagesize=0,
        uuid="",
        props="",
        continuation_token="",
        flags=int | str,
        start_after="",
    )
    flags = number(str(wanted["flags"] or 0), "list-objects flags")
    if flags & ~SUPPORTED_FLAGS:
        raise not_implemented(f"list-objects flags {flags & ~SUPPORTED_FLAGS:#x}")
    prefix = wanted["prefix"]
    check_prefix(prefix)
    after = max(wanted["continuation_token"], wanted["start_after"])
    size = wanted["pagesize"] or PAGE_SIZE
    if size < 0:
        raise ReplyError(400, f"bad list-objects request: invalid pagesize {size}")
    props = _props(wanted["props"], flags)
    if flags & ARCH_DIR:
        rows = _expanded(call, bucket, prefix, after, props)
    else:
        cluster = call.cluster
        rows = (
            _entry(call, entry, props)
            for entry in bucket.with_prefix(prefix, after)
            if call.bucket != SHARD_INDEXES
            or cluster.holder(call.bucket, entry.name) is cluster.owner(call.bucket, entry.name)
        )
    page = list(islice(rows, size + 1))
    token = page[size - 1]["n"] if len(page) > size else ""
    del page[size:]
    for drop in call.plan.all(DropEntry):
        victim = next((index for index, row in enumerate(page) if fnmatchcase(row["n"], drop.name)), None)
        if victim is not None:
            del page[victim]
    uuid = wanted["uuid"] or new_id()
    if call.request.headers.get("accept") == "application/msgpack":
        body = {"UUID": uuid, "ContinuationToken": token, "Entries": page, "Flags": 0}
        return Reply(200, {"Content-Type": "application/msgpack"}, msgspec.msgpack.encode(body))
    entries = [_in_json(row) for row in page]
    return Reply.json({"uuid": uuid, "continuation_token": token, "entries": entries, "flags": 0})


def _props(text: str, flags: int) -> frozenset[str]:
    """The properties wanted. AIStore ignores unknown ones, and gives name and size when none are named."""
    if flags & NAME_ONLY:
        return frozenset()
    if flags & NAME_SIZE or not text:
        return frozenset(("size",))
    return frozenset(item.strip() for item in text.split(","))


# By property: its key in an entry, and its value; what is empty is left out.
PROPS: dict[str, tuple[str, Callable[[Call, Object], Any]]] = {
    "checksum": ("cs", lambda _, entry: entry.checksum),
    "atime": (
        "a",
        lambda _, entry: time.strftime("%d %b %y %H:%M UTC", time.gmtime(entry.atime_ns // 1_000_000_000)),
    ),
    "version": ("v", lambda _, entry: str(entry.version)),
    "location": ("t", lambda call, entry: call.cluster.location(call.bucket, entry.name)),
    "custom": ("m", lambda _, entry: _custom(entry.custom)),
    "size": ("s", lambda _, entry: entry.size),
    "copies": ("c", lambda *_: 1),
}
LONG_KEYS = {"n": "name", "f": "flags", **{key: prop for prop, (key, _) in PROPS.items()}}
"""Keys of an entry in JSON by those in msgpack."""


def _entry(call: Call, entry: Object, props: frozenset[str]) -> Entry:
    wanted = ((key, tell(call, entry)) for prop, (key, tell) in PROPS.items() if prop in props)
    flags = ENTRY_CACHED | (ENTRY_CHUNKED if entry.parts else 0)
    return {"n": entry.name, **{key: value for key, value in wanted if value}, "f": flags}


def _custom(custom: dict[str, str]) -> str:
    pairs = " ".join(f"{key}:{value}" for key, value in sorted(custom.items()))
    return f"[{pairs}]" if pairs else ""


def _expanded(call: Call, bucket: Bucket, prefix: str, after: str, props: frozenset[str]) -> Iterable[Entry]:
    """Objects and the files in those that are archives, sorted together; a token may name such a file."""
    rows: list[Entry] = []
    for entry in bucket.with_prefix(prefix):
        row = _entry(call, entry, props)
        rows.append(row)
        if not extension_of(entry.name):
            continue
        row["f"] |= ENTRY_IS_ARCHIVE
        for name, _, size in _files_in(call, entry):
            inner: Entry = {"n": f"{entry.name}/{name}"}
            if "size" in props and size:
                inner["s"] = size
            inner["f"] = ENTRY_CACHED | ENTRY_IN_ARCHIVE
            rows.append(inner)
    rows.sort(key=lambda row: row["n"])
    return rows[bisect_right(rows, after, key=lambda row: row["n"]) if after else 0 :]


def _files_in(call: Call, entry: Object) -> tuple[Member, ...]:
    """What is in an archive; nothing in an object that has an archive's name only, as on a real cluster."""
    try:
        with opened(call.store, entry) as archive:
            return archive.files
    except (FileNotFoundError, NotAnArchiveError):
        return ()


def _in_json(row: Entry) -> Entry:
    return {LONG_KEYS[key]: str(value) if key == "s" else value for key, value in row.items()}
