"""Names of buckets and objects, and ids of nodes and jobs."""

from __future__ import annotations

import random
import re
import string

from .problem import ReplyError, bad_bucket_name, invalid_path

SHARD_INDEXES = ".sys-shardidx"
"""The bucket of the indexes that the job ``index-shard`` makes."""

_BUCKET = re.compile(r"(?:[A-Za-z0-9_-]|\.(?!\.))+")
_ALPHABET = string.ascii_letters + string.digits
_MAX_NAME = 1024


def check_bucket_name(name: str) -> None:
    """Refuse what AIStore refuses as the name of a bucket."""
    if not _BUCKET.fullmatch(name):
        raise bad_bucket_name()


def check_object_name(name: str) -> None:
    """Refuse names that are empty, end in a slash, begin with ``~/``, or have ``.`` or ``..`` as a part."""
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
    """The name of an object in the whole cluster, as AIStore's clients build it."""
    return f"ais/@#/{bucket}/{name}"


def index_name(bucket: str, name: str) -> str:
    """The name of the index of a shard, in the bucket `SHARD_INDEXES`."""
    return f"{object_uname(bucket, name)}.idx"


def shard_of(name: str) -> tuple[str, str] | None:
    """Return bucket and name of the shard whose index has this name in the bucket `SHARD_INDEXES`, if one has.

    Example:
        >>> shard_of(index_name("b", "x/s.tar")), shard_of("note.txt")
        (('b', 'x/s.tar'), None)
    """
    if not (name.startswith("ais/@#/") and name.endswith(".idx")):
        return None
    bucket, _, shard = name.removeprefix("ais/@#/").removesuffix(".idx").partition("/")
    return (bucket, shard) if bucket and shard else None


def parse_uname(uname: str) -> tuple[str, str]:
    """Split ``ais/@#/bucket/object`` (the object may be missing) into bucket and object."""
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
