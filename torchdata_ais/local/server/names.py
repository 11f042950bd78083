"""Names, ids and nodes."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import xxhash

from .problem import ReplyError, bad_bucket_name, invalid_path

SHARD_INDEXES = ".sys-shardidx"  # the bucket of the indexes that the job ``index-shard`` makes
_BUCKET = re.compile(r"(?:[A-Za-z0-9_-]|\.(?!\.))+")
_ALPHABET = string.ascii_letters + string.digits
_MAX_NAME = 1024


def check_bucket_name(name: str) -> None:
    """Refuse invalid bucket names, as AIStore does."""
    if not _BUCKET.fullmatch(name):
        raise bad_bucket_name()


def check_object_name(name: str) -> None:
    """Refuse names that are empty, end in a slash, or could leave the bucket."""
    bad = not name or name.endswith("/") or name.startswith("~/")
    if bad or (("." in name) and any(part in (".", "..") for part in name.split("/"))):
        raise invalid_path("object name", name)
    if len(name.encode()) > _MAX_NAME:
        raise ReplyError(400, f"object name is too long: {len(name.encode())} > {_MAX_NAME}(max length)")


def check_prefix(prefix: str) -> None:
    """Refuse a prefix of names that could leave the bucket."""
    if prefix.startswith("~/") or any(part in (".", "..") for part in prefix.split("/")):
        problem = invalid_path("prefix", prefix)
        raise ReplyError(400, f"bad list-objects request: {problem.message}", problem.tcode)


def object_uname(bucket: str, name: str) -> str:
    """The name of an object in the whole cluster, as in AIStore's clients."""
    return f"ais/@#/{bucket}/{name}"


def index_name(bucket: str, name: str) -> str:
    """The name of the index of a shard, in the bucket `SHARD_INDEXES`."""
    return f"{object_uname(bucket, name)}.idx"


def shard_of(name: str) -> tuple[str, str] | None:
    """Return bucket and name of the shard of an index of this name, if any.

    The index is in the bucket `SHARD_INDEXES`.

    Example:
        >>> shard_of(index_name("b", "x/s.tar")), shard_of("note.txt")
        (('b', 'x/s.tar'), None)
    """
    if not (name.startswith("ais/@#/") and name.endswith(".idx")):
        return None
    bucket, _, shard = name.removeprefix("ais/@#/").removesuffix(".idx").partition("/")
    return (bucket, shard) if bucket and shard else None


def parse_uname(uname: str) -> tuple[str, str]:
    """Split ``ais/@#/bucket/object`` into bucket and object, which may be ""."""
    parts = uname.split("/", 3)
    if len(parts) < 3 or parts[0] != "ais" or parts[1] != "@#":
        raise ReplyError(
            501,
            f"the bucket {uname!r}: only ais:// without a namespace - operation not supported",
            "ErrUnsupp",
        )
    return parts[2], parts[3] if len(parts) > 3 else ""


def new_id(length: int = 9) -> str:
    """A short random id of letters and digits."""
    return "".join(random.choices(_ALPHABET, k=length))


HOST = "127.0.0.1"

_DIGEST_SEED = 1103515245
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Node:
    """A proxy or a target, as the others know it."""

    role: str
    id: str
    port: int

    @property
    def tag(self) -> str:
        """Its name in messages."""
        return f"{self.role[0]}[{self.id}]"

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{HOST}:{self.port}"

    @cached_property
    def digest(self) -> int:
        """Its number in the placement of objects."""
        return _digest_of(self.id)


def owner_of(targets: Sequence[Node], uname: str) -> Node:
    """The target of the object: the one with the highest random weight."""
    if len(targets) == 1:
        return targets[0]
    digest = _digest_of(uname)
    return max(targets, key=lambda node: _weight(node.digest ^ digest))


def _digest_of(name: str) -> int:
    """AIStore's hash of node ids and object names, to place objects."""
    return xxhash.xxh64_intdigest(name.encode(), seed=_DIGEST_SEED)


def _weight(seed: int) -> int:
    """AIStore's placement: xoshiro256** once, with a state of splitmix64."""
    word = (_splitmix(_splitmix(seed)) * 5) & _MASK
    return (((word << 7) | (word >> 57)) * 9) & _MASK


def _splitmix(seed: int) -> int:
    z = (seed + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
