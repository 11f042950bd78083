"""Export of an index for other tools."""

from __future__ import annotations

import json
import os
import posixpath
import struct
from itertools import starmap
from os.path import commonprefix
from typing import Literal

from torchdata_ais.errors import UsageError
from torchdata_ais.index import (
    Folder,
    IndexedSamples,
    ShardEntry,
    ShardSamples,
    entry_of,
    folder_at,
    stored_text,
)
from torchdata_ais.index.build.foreign_formats import members_of, unfitting
from torchdata_ais.samples import is_apple_double, split_name
from torchdata_ais.store import StoreOptions
from torchdata_ais.urls import below_fault, parse_url, redact, shown_name

Form = Literal["energon", "dali", "wids"]

_META = ".nv-meta"


def export_index(
    index: IndexedSamples, form: Form, where: str | os.PathLike[str] | None, options: StoreOptions
) -> list[str]:
    """Write the index in another tool's format; see `SampleIndex.export`."""
    if index.joins:
        raise UsageError.at("export() of an index that is joined", todo="export each of the indexes")
    if form != "dali" and index.is_selection:
        raise UsageError.at(
            f"a selection cannot be written for {form}, whose indexes name whole shards",
            todo='export the whole index, or export("dali")',
        )
    home = _home(index)
    files = _Files(home if where is None else os.fspath(where), options)
    if form == "wids":
        files.write("shardindex.json", _wids(index, home))
        return files.written
    counts: dict[str, int] = {}
    for entry, samples in starmap(entry_of, index.parts.tables()):
        name = entry.name[len(home) :].lstrip("/")
        if not samples.keys:
            continue  # which neither tool takes
        counts[name] = len(samples.keys)
        if form == "dali":
            files.write(f"{name.removesuffix('.tar')}.idx", _dali(entry, samples, options))
        else:
            offsets = [*samples.starts, samples.ends[-1]]
            files.write(f"{name}.idx", struct.pack(f"<{len(offsets)}Q", *offsets))
    if form == "energon":
        files.write(f"{_META}/.info.json", json.dumps({"shard_counts": counts}, indent=2).encode())
        if not files.has(f"{_META}/split.yaml"):  # JSON is YAML, too
            parts = {"split_parts": {"train": list(counts), "val": [], "test": []}}
            files.write(f"{_META}/split.yaml", json.dumps(parts, indent=2).encode())
    return files.written


class _Files:
    """Files below a folder or prefix."""

    def __init__(self, root: str, options: StoreOptions) -> None:
        self._root, self._options = root or ".", options
        self.written: list[str] = []

    def has(self, path: str) -> bool:
        """Return whether there is such a file."""
        folder, name = self._placed(path)
        return folder.has(name)

    def _placed(self, path: str) -> tuple[Folder, str]:
        below, _, name = path.rpartition("/")
        if below_fault(path):
            raise UsageError.at(
                f"{shown_name(path)} would be written outside of {redact(self._root)}",
                todo="index the shards by names without ..",
                url=redact(self._root),
            )
        return folder_at(posixpath.join(self._root, below) if below else self._root, self._options), name

    def write(self, name: str, data: bytes) -> None:
        folder, base = self._placed(name)
        path = posixpath.join(self._root, name) if self._root != "." else name
        if path in self.written:
            raise UsageError.at(
                f"{path} would be written twice", todo="export indexes of one name each", url=path
            )
        folder.write(base, data)
        self.written.append(path)


def _home(index: IndexedSamples) -> str:
    """Return the common folder or prefix of all shards."""
    folders = [row.name.rpartition("/")[0].split("/") for row in index.shards]
    if not folders:
        raise UsageError.at("an index without shards", todo="export one that has some")
    home = "/".join(commonprefix(folders))  # noqa: RUF071 - of names in paths
    if parse_url(f"{home}/x").kind not in ("file", "object"):
        raise UsageError.at(
            "the shards lie in no folder or bucket together", todo="export the index of each by itself"
        )
    return home


def _wids(index: IndexedSamples, home: str) -> bytes:
    rows = []
    for row in index.shards:
        size = {} if row.size is None else {"filesize": row.size}
        rows.append({"url": row.name[len(home) :].lstrip("/"), "nsamples": row.samples, **size})
    whole = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "base": home, "shardlist": rows}
    return json.dumps(whole, indent=2).encode()


def _dali(entry: ShardEntry, samples: ShardSamples, options: StoreOptions) -> bytes:
    """Return a wds2idx file: first byte and size of each field of a sample."""
    wanted = dict.fromkeys(samples.keys)
    found: dict[str, list[tuple[str, int, int, str]]] = {key: [] for key in wanted}
    for name, size, _, _, after in members_of(entry.name, options):
        parts = split_name(name)
        if size is None or parts is None or is_apple_double(name) or stored_text(parts[0]) not in found:
            continue
        if any(letter.isspace() for letter in name):
            raise UsageError.at(
                f"DALI reads no names with spaces: {name!r}",
                todo="rename the members",
                url=entry.name,
                member=name,
            )
        field = name[len(parts[0]) + 1 :]
        found[stored_text(parts[0])].append((field, after - size - -size % 512, size, name))
    lines = [f"v1.2 {len(samples.keys)}"]
    for key, fields, sizes in zip(samples.keys, samples.fields, samples.sizes, strict=True):
        there = found[key]
        if [(stored_text(one[0].lower()), one[2]) for one in there] != list(zip(fields, sizes, strict=True)):
            raise unfitting("export", entry.name, f"the sample {key!r} is another one than was indexed", key)
        lines.append(" ".join(f"{field} {at} {size} {name}" for field, at, size, name in there))
    return "\n".join([*lines, ""]).encode("utf-8", "surrogateescape")
