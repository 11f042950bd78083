"""The manifest of a series of shards: what was written, and where an interrupted series goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from torchdata_ais.error_text import Remedy
from torchdata_ais.errors import NotFoundError, StateError
from torchdata_ais.store import StoreOptions, head_object, open_blocks
from torchdata_ais.urls import parse_url, redact
from torchdata_ais.writing.targets import open_target

_VERSION = 1


@dataclass(frozen=True)
class ShardInfo:
    """One finished shard.

    Attributes:
        name: Its path or URL, as the pattern gave it.
        samples: How many it holds.
        size: Its bytes, as stored.
        checksum: XXH64 of these bytes, 16 hexadecimal digits: what AIStore keeps for the object, too.
        keys: XXH64 of its keys in order: tells a resumed run whether the same samples come again.
        cursor: What the caller noted with its last sample (`ShardWriter.cursor`), or None.
    """

    name: str
    samples: int
    size: int
    checksum: str
    keys: str = ""
    cursor: Any = None

    def is_there(self, options: Callable[[], StoreOptions]) -> bool:
        """Return whether the shard still is where it was written: size, and for objects the checksum."""
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
    """A series of shards; stored as JSON, each time a shard is finished, whole or not at all.

    Attributes:
        settings: What decides where one shard ends and the next begins.
        shards: The finished ones, in order.
        complete: Whether the series was closed.
        notes: What else the caller wants to keep, such as the names of the classes.

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
        """Return the one stored there, or None.

        Raises:
            StateError: What is there is no manifest.
        """
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
