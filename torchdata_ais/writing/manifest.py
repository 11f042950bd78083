"""Manifest, name pattern and index of a series of shards."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import xxhash

from torchdata_ais._util.files import naming
from torchdata_ais.errors import NotFoundError, StateError, UsageError
from torchdata_ais.errors.text import Remedy
from torchdata_ais.index import IndexWriter, ShardEntry, ShardSamples, folder_at, index_place
from torchdata_ais.store import StoreOptions, file_url, head_object, list_objects, open_blocks
from torchdata_ais.urls import parse_url, redact
from torchdata_ais.writing.packing import Packed
from torchdata_ais.writing.targets import open_target

_VERSION = 1


@dataclass(frozen=True)
class ShardInfo:
    """One finished shard.

    Attributes:
        name: Its path or URL, as the pattern gave it.
        samples: How many it holds.
        size: Its bytes, as stored.
        checksum: XXH64 of these bytes, 16 hexadecimal digits: as AIStore keeps for the object.
        keys: XXH64 of its keys in order: a resumed run compares the samples by it.
        cursor: The caller's value with its last sample (`ShardWriter.cursor`), or None.
    """

    name: str
    samples: int
    size: int
    checksum: str
    keys: str = ""
    cursor: Any = None

    def is_there(self, options: Callable[[], StoreOptions]) -> bool:
        """Report whether the shard is unchanged: size, and objects' checksum."""
        place = parse_url(self.name)
        if place.kind == "object":
            try:
                found = head_object(place, options())
            except NotFoundError:
                return False
            return found.checksum == self.checksum and found.size in (None, self.size)
        try:
            return os.stat(place.name).st_size == self.size  # noqa: PTH116 - text in
        except FileNotFoundError:
            return False


@dataclass
class Manifest:
    """A series of shards, stored as JSON after each finished shard.

    Attributes:
        settings: The settings that determine the ends of shards.
        shards: The finished ones, in order.
        complete: Whether the series was closed.
        notes: Further values of the caller, such as the names of the classes.

    Example:
        >>> manifest = Manifest({}, [ShardInfo("s-000.tar", 10, 20480, "e1"), ShardInfo("s-001.tar", 4, 10240, "e2")])
        >>> manifest.samples, manifest.size
        (14, 30720)
    """

    settings: dict[str, Any]
    shards: list[ShardInfo] = field(default_factory=list)
    complete: bool = False
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Samples in all shards."""
        return sum(shard.samples for shard in self.shards)

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        return sum(shard.size for shard in self.shards)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values, totals included."""
        return {
            "version": _VERSION,
            "complete": self.complete,
            "samples": self.samples,
            "size": self.size,
            "settings": self.settings,
            "notes": self.notes,
            "shards": [asdict(shard) for shard in self.shards],
        }

    def save(self, where: str, options: Callable[[], StoreOptions]) -> None:
        """Store it as a file or an object, in place of an older one."""
        target = open_target(where, options)
        try:
            target.write(json.dumps(self.to_json(), indent=1).encode())
            target.publish()
        except BaseException:
            target.discard()
            raise

    @classmethod
    def load(cls, where: str, options: Callable[[], StoreOptions]) -> Manifest | None:
        """Return the stored manifest, or None; raise for any other file."""
        place = parse_url(where)
        try:
            with open_blocks(place, options() if place.kind == "object" else StoreOptions()) as blocks:
                text = b"".join(blocks)
        except NotFoundError:
            return None
        try:
            content = json.loads(text)
            if content["version"] != _VERSION:
                raise ValueError(f"version {content['version']}")
            shards = [ShardInfo(**shard) for shard in content["shards"]]
            return cls(content["settings"], shards, content["complete"], content["notes"])
        except (ValueError, KeyError, TypeError) as error:
            raise StateError.at(
                f"this is no manifest of shards ({type(error).__name__}: {error})",
                todo=Remedy("name another manifest=", "remove the file to begin anew"),
                url=redact(where),
            ) from error


NUMBER = re.compile(r"%[-+ 0]*\d*[di]")
"""The place of the number."""


def check_pattern(pattern: str) -> None:
    """Raise `UsageError` if `pattern` names no series of shards."""
    if not NUMBER.search(pattern) or parse_url(pattern).kind not in ("file", "object"):
        raise UsageError.at(
            f"the target {redact(pattern)!r} is no pattern of shards",
            todo="write out/train-%06d.tar or ais://bucket/train-%06d.tar",
        )


def shards_there(pattern: str, store: Callable[[], StoreOptions]) -> list[tuple[int, str]]:
    """Return numbers and names of shards there; none if folders have numbers."""
    place = parse_url(pattern)
    if place.kind == "file":
        folder = Path(place.name).parent
        if NUMBER.search(str(folder)):
            return []
        with naming(str(folder)):
            names = [path.name for path in folder.iterdir()]
        wanted = numbered(Path(place.name).name)
    elif is_web(pattern):
        return []
    else:
        wanted = numbered(place.name)
        head = pattern[: NUMBER.search(pattern).start()]  # type: ignore[union-attr]  # searched by check_pattern
        names = [parse_url(url).name for url in list_objects(head, options=store(), allow_empty=True)]
    matches = ((name, wanted.fullmatch(name)) for name in names)
    return [(int(found[1]), name) for name, found in matches if found]


def numbered(pattern: str) -> re.Pattern[str]:
    """Return the expression that finds the number in a name of the pattern."""
    return re.compile(r"(\d+)".join(re.escape(part) for part in NUMBER.split(pattern.replace("%%", "%"))))


def gives(pattern: str, name: str, first: int) -> bool:
    """Return whether a number from `first` on makes `name` of the pattern."""
    found = numbered(pattern).fullmatch(name)
    return found is not None and int(found[1]) >= first and pattern % int(found[1]) == name


def is_web(pattern: str) -> bool:
    """Return whether ``%`` in the pattern may encode a character of a URL."""
    return pattern.lower().startswith(("http://", "https://"))


class Taker(Protocol):
    """Interface of an `IndexWriter` for a series of shards."""

    def add(self, shard: ShardEntry, samples: ShardSamples) -> None:
        """Take the next shard."""

    def finish(self, *, source: str = "") -> Any:
        """Take that there are no more."""


_SMALL = 32 << 10  # bytes of a sample that are copied together sooner than hashed block by block


class SeriesIndex:
    """Records position and fields of each sample, and stores the index.

    It goes to the path `where`, next to the shards (True), or to an object that takes its shards. `options` is called
    for paths in a cluster.

    Memory: one part of the index (64 MiB), and the rows of the shard under way.
    """

    def __init__(self, where: bool | str | Taker, pattern: str, options: Callable[[], StoreOptions]) -> None:
        if not isinstance(where, bool | str) and not hasattr(where, "add"):
            raise UsageError.at(
                f"index={where!r:.60} says no place",
                todo="pass index=True, or a folder or bucket for the index",
            )
        self._pattern = pattern
        self._writer = where if not isinstance(where, bool | str) else _stored(where, pattern, options)
        self._options = options
        self.begin_shard()

    def begin_shard(self) -> None:
        """Forget the samples of a shard that was not finished."""
        self._rows: list[tuple[str, int, int, tuple[str, ...], tuple[int, ...], int]] = []

    def add(self, sample: Packed, start: int) -> None:
        """Note a sample that begins at byte `start` of the shard under way."""
        if sample.size < _SMALL:
            digest = xxhash.xxh64_intdigest(b"".join(sample.blocks))
        else:
            running = xxhash.xxh64()
            for block in sample.blocks:
                running.update(block)
            digest = running.intdigest()
        self._rows.append((sample.key, start, start + sample.size, sample.fields, sample.sizes, digest))

    def finish_shard(self, info: ShardInfo) -> None:
        """Take the shard that was just published."""
        place = parse_url(info.name)
        if place.kind == "object":
            entry = ShardEntry(place.uri, info.size, info.checksum)
        else:
            entry = _of_file(place.name, info.size)
        keys, starts, ends, fields, sizes, digests = map(list, zip(*self._rows, strict=True))
        self._writer.add(entry, ShardSamples(keys, starts, ends, fields, sizes, digests))
        self.begin_shard()

    def take_up(self, shards: Sequence[ShardInfo]) -> None:
        """Read the finished shards of a resumed series for their samples."""
        from torchdata_ais.index.build import index_shard

        for shard in shards:
            is_remote = parse_url(shard.name).kind == "object"
            self._writer.add(*index_shard(shard.name, self._options() if is_remote else StoreOptions()))

    def close(self) -> None:
        """Store the index."""
        self._writer.finish(source=self._pattern)


def _stored(where: bool | str, pattern: str, options: Callable[[], StoreOptions]) -> IndexWriter:
    place = where if isinstance(where, str) else index_place(f"{pattern.partition('%')[0]}*")
    is_remote = parse_url(place).kind == "object"
    return IndexWriter(folder_at(place, options() if is_remote else StoreOptions()))


def _of_file(path: str, size: int) -> ShardEntry:
    try:
        found = file_url(path)
    except NotFoundError:  # moved by `post`
        return ShardEntry(path, size)
    return ShardEntry(path, found.size, None, found.version)
