"""What has been begun in several requests, and neither finished nor given up."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash


@dataclass
class Append:
    """An object that grows: its hidden file, and the hash so far."""

    number: int
    path: Path
    size: int = 0
    digest: Any = field(default_factory=xxhash.xxh64)


@dataclass
class Uploads:
    """Objects that grow by their handles, and the parts of others by the ids of their uploads."""

    appends: dict[str, Append] = field(default_factory=dict)
    parts: dict[str, dict[int, Path]] = field(default_factory=dict)
