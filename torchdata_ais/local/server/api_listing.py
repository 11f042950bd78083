"""Listing a bucket page by page, in msgpack."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from .archive import NotAnArchive, is_archive
from .names import new_id
from .problem import Problem, not_implemented
from .reply import Reply
from .routes import Call, route
from .store import Object

PAGE_SIZE = 10_000

CACHED, ARCH_DIR, NAME_ONLY, NAME_SIZE = 1 << 0, 1 << 3, 1 << 4, 1 << 5
NOT_CACHED, BUCKET_PRESENT = 1 << 9, 1 << 6
SUPPORTED_FLAGS = CACHED | ARCH_DIR | NAME_ONLY | NAME_SIZE | BUCKET_PRESENT

ENTRY_CACHED, ENTRY_IN_ARCHIVE, ENTRY_IS_ARCHIVE = 1 << 6, 1 << 7, 1 << 9

PROPS = frozenset("name size version checksum atime cached status copies ec custom location chunked".split())


@route("proxy", "GET", "bucket", "list", sdk="Bucket.list_objects, .list_objects_iter, .list_all_objects, .list_urls")
def list_objects(call: Call) -> Reply:
    """One page: at most `pagesize` objects after the token, sorted by name."""
    bucket = call.cluster.store.bucket(call.bucket)
    wanted = call.fields(
        prefix="", pagesize=0, uuid="", props="", continuation_token="", flags="0", target="", start_after="", time_format=""
    )
    if wanted["target"]:
        raise not_implemented("field 'target' of action 'list'")
    flags = int(wanted["flags"] or 0)
    if flags & ~SUPPORTED_FLAGS:
        raise not_implemented(f"list-objects flags {flags & ~SUPPORTED_FLAGS:#x}")
    props = _props(wanted["props"], flags)
    names = bucket.names()
    prefix = str(wanted["prefix"])
    after = max(wanted["continuation_token"], wanted["start_after"])
    start = bisect_right(names, after) if after else 0
    if prefix > after:
        start = max(start, bisect_right(names, prefix) - (prefix in bucket.objects))
    size = int(wanted["pagesize"]) or PAGE_SIZE
    entries: list[dict[str, Any]] = []
    token = ""
    taken = 0
    for name in names[start:]:
        if not name.startswith(prefix):
            break
        if taken == size:
            token = last
            break
        entry = bucket.objects.get(name)
        if entry is None:
            continue
        last = name
        taken += 1
        entries.extend(_entries(call, entry, props, flags))
    for glob in call.plan.drop_entries if call.plan else ():
        victim = next((entry for entry in entries if fnmatchcase(entry["n"], glob)), None)
        if victim is not None:
            entries.remove(victim)
    page = {
        "UUID": wanted["uuid"] or new_id(),
        "ContinuationToken": token,
        "Entries": entries,
        "Flags": 0,
    }
    return Reply(200, [("Content-Type", "application/msgpack")], msgspec.msgpack.encode(page))


def _props(text: str, flags: int) -> frozenset[str]:
    if flags & NAME_ONLY:
        return frozenset(("name",))
    props = frozenset(item.strip() for item in text.split(",") if item.strip())
    for prop in props - PROPS:
        raise Problem(400, f'invalid property "{prop}" in props list')
    if flags & NAME_SIZE or not props:
        return frozenset(("name", "size"))
    return props


def _entries(call: Call, entry: Object, props: frozenset[str], flags: int) -> Iterator[dict[str, Any]]:
    """An object's entry and, with the ARCH_DIR flag, those of the files in it."""
    expand = bool(flags & ARCH_DIR) and is_archive(entry.name)
    row: dict[str, Any] = {"n": entry.name}
    if "checksum" in props:
        row["cs"] = entry.checksum
    if "atime" in props:
        row["a"] = time.strftime("%d %b %y %H:%M UTC", time.gmtime(entry.atime_ns // 1_000_000_000))
    if "version" in props:
        row["v"] = str(entry.version)
    if "location" in props:
        row["t"] = call.cluster.location(call.bucket, entry.name)
    if "custom" in props and entry.custom:
        row["m"] = "[" + " ".join(f"{key}:{value}" for key, value in sorted(entry.custom.items())) + "]"
    if "size" in props and entry.size:
        row["s"] = entry.size
    if "copies" in props:
        row["c"] = 1
    row["f"] = ENTRY_CACHED | (ENTRY_IS_ARCHIVE if expand else 0)
    yield row
    if not expand:
        return
    for name, size in _files_in(call, entry):
        inner: dict[str, Any] = {"n": f"{entry.name}/{name}"}
        if "size" in props and size:
            inner["s"] = size
        inner["f"] = ENTRY_CACHED | ENTRY_IN_ARCHIVE
        yield inner


def _files_in(call: Call, entry: Object) -> list[tuple[str, int]]:
    """What is in an archive; nothing in an object that has an archive's name only, as on a real cluster."""
    try:
        fd = call.cluster.store.open(entry)
    except FileNotFoundError:
        return []
    try:
        archive = call.cluster.archives.load(fd, entry.file, entry.name)
        return [(name, size) for name, _, size in archive.files]
    except NotAnArchive:
        return []
    finally:
        os.close(fd)
