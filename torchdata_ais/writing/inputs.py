"""What can be converted: a source gives items in a fixed order, can begin anywhere, and loads each as a sample."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import xxhash

from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.shard_names import is_shard
from torchdata_ais.store import StoreOptions, list_objects, open_blocks
from torchdata_ais.urls import ObjectURL, parse_url, redact
from torchdata_ais.writing._read import read_samples

__all__ = [
    "ListSource",
    "ShardSource",
    "Source",
    "SourceNames",
    "SourceOptions",
    "find_shards",
    "is_table",
    "read_bytes",
    "shards_in",
]

Kind = Literal["auto", "images", "table", "shards"]

_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")


class SourceNames(TypedDict, total=False):
    """The single names of `SourceOptions`."""

    kind: Kind
    columns: Mapping[str, str] | None
    root: str | os.PathLike[str] | None
    shuffle: bool


@dataclass(frozen=True)
class SourceOptions:
    """What `torchdata_ais.writing.convert` reads, and in which order.

    Attributes:
        kind: ``"images"``, ``"table"`` or ``"shards"``; ``"auto"`` goes by the name.
        columns: What to call the columns of a table: ``{"image_path": "jpg"}``.
        root: What the paths in a table are relative to; default its folder.
        shuffle: Put images or rows into a random order first, so that each shard holds some of every class.

    Raises:
        UsageError: A kind that there is not.

    Example:
        >>> SourceOptions("table", columns={"image_path": "jpg"}).shuffle
        False
    """

    kind: Kind = "auto"
    columns: Mapping[str, str] | None = None
    root: str | os.PathLike[str] | None = None
    shuffle: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("auto", "images", "table", "shards"):
            raise UsageError.at(f"kind={self.kind!r}", todo='use "auto", "images", "table" or "shards"')


class Source(ABC):
    """Items in a fixed order.

    Attributes:
        unit: What progress counts.
        total: How many of them.
        digest: Changes when the source does: a resumed conversion must meet the same.
        notes: What the manifest shall say about it.
        load: Turns an item into a sample; a picklable function, for other processes to call.
    """

    unit: str
    total: int
    digest: str
    notes: dict[str, Any]
    load: Callable[[Any], dict[str, Any]]

    @abstractmethod
    def items(self, cursor: Any = None) -> Iterator[tuple[Any, Any]]:
        """Yield ``(cursor, item)``; a cursor is a JSON value that stands for the place after its item."""

    @abstractmethod
    def done(self, cursor: Any) -> int:
        """Return how many units are over at a cursor."""

    @abstractmethod
    def shuffle(self, permute: Callable[[list[Any]], None]) -> None:
        """Change the order of the items."""


class ListSource(Source):
    """Items that are few enough to be listed; the cursor is a position."""

    def __init__(
        self, unit: str, items: list[Any], digest: str, load: Callable[[Any], dict[str, Any]]
    ) -> None:
        self.unit, self.total, self.digest, self.load = unit, len(items), digest, load
        self.notes = {}
        self._items = items

    def items(self, cursor: Any = None) -> Iterator[tuple[Any, Any]]:
        """Yield ``(position after it, item)``."""
        for index in range(cursor or 0, len(self._items)):
            yield index + 1, self._items[index]

    def done(self, cursor: Any) -> int:
        """Return the position."""
        return int(cursor or 0)

    def shuffle(self, permute: Callable[[list[Any]], None]) -> None:
        """Change the order of the items."""
        permute(self._items)


class ShardSource(Source):
    """The samples of existing shards; the cursor is the shard's position and an offset in it.

    Memory: one sample, what `StoreOptions.prefetch_bytes` allows, and about 100 bytes a sample of one shard, to notice
    keys that come back.
    """

    unit = "shard"

    def __init__(self, shards: Sequence[str], options: StoreOptions) -> None:
        self._shards = list(shards)
        self._options = options
        self.total = len(self._shards)
        digest = xxhash.xxh64()
        for url in self._shards:
            digest.update(f"{parse_url(url).uri} {_facts(url)}\n".encode("utf-8", "surrogateescape"))
        self.digest = digest.hexdigest()
        self.notes = {}
        self.load = dict

    def items(self, cursor: Any = None) -> Iterator[tuple[Any, Any]]:
        """Yield ``(cursor, sample of bytes)``; begins anew at the shard of the cursor, and passes over its head."""
        shard, offset = cursor or (0, 0)
        for index in range(shard, len(self._shards)):
            last = None
            for end, sample in read_samples(self._shards[index], self._options, start=offset):
                if last is not None:
                    yield [index, last[0]], last[1]
                last = end, sample
            if last is not None:  # with its last sample the shard is over
                yield [index + 1, 0], last[1]
            offset = 0

    def done(self, cursor: Any) -> int:
        """Return the number of shards read to the end."""
        return int(cursor[0]) if cursor else 0

    def shuffle(self, permute: Callable[[list[Any]], None]) -> None:  # noqa: ARG002 - refused
        """Refuse: samples of large shards are not here to be shuffled."""
        raise UsageError.at(
            "shards cannot be shuffled while they are converted",
            todo="shuffle on the cluster with dSort, or while reading with .shuffled()",
        )


def find_shards(source: Any, options: Callable[[], StoreOptions]) -> list[str]:
    """Return the shards that paths, URLs, brace templates, prefixes and folders name, in order.

    Raises:
        NotFoundError: There is none.
    """
    found: list[str] = []
    for one in (
        [source] if isinstance(source, str | os.PathLike) or not isinstance(source, Sequence) else source
    ):
        if isinstance(one, str | os.PathLike) and Path(one).is_dir():
            inside = shards_in(one)
            if not inside:
                raise NotFoundError.at("the folder holds no shard", todo="name one that does", url=str(one))
            found += inside
            continue
        name = os.fspath(one) if isinstance(one, os.PathLike) else one
        local = isinstance(name, str) and parse_url(name).kind == "file"
        found += list_objects(name, options=StoreOptions() if local else options())
    return found


def shards_in(folder: str | os.PathLike[str]) -> list[str]:
    """Return the shards that lie in a folder, by their names' ends, sorted."""
    return sorted(str(path) for path in Path(folder).iterdir() if is_shard(path.name))


def is_table(source: Any) -> bool:
    """Return whether the name is that of a table."""
    return isinstance(source, str | os.PathLike) and os.fspath(source).lower().endswith(_TABLES)


def read_bytes(url: str, options: StoreOptions) -> bytes:
    """Return a whole file or object, verified."""
    with open_blocks(url, options) as blocks:
        return b"".join(blocks)


def _facts(url: str) -> str:
    if isinstance(url, ObjectURL) and (url.checksum or url.size is not None):
        return f"{url.size} {url.checksum}"
    place = parse_url(url)
    if place.kind == "file":
        try:
            return str(os.stat(place.name).st_size)  # noqa: PTH116 - text in
        except FileNotFoundError:
            raise NotFoundError.at("there is no such shard", todo="check the path", url=redact(url)) from None
    return ""
