"""What a request for a distributed sort says, checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from .api_groups import BucketRef, bucket_of
from .archive import EXTENSIONS, extension_of
from .fields import Int, typed
from .names import check_object_name
from .problem import ReplyError, not_implemented
from .routes import Call
from .store import Bucket, Object
from .template import endless, expand, is_range

KINDS = ("", "alphanumeric", "none", "md5", "shuffle", "content")


CONTENT_KINDS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "string": str}


class _Names(msgspec.Struct):
    """Which shards are sorted."""

    template: str | None = None
    objnames: list[str] | None = None


class Algorithm(msgspec.Struct):
    """How they are sorted."""

    kind: str | None = None
    decreasing: bool | None = None
    seed: str | Int | None = None
    extension: str | None = None
    content_key_type: str | None = None


_KNOWN: dict[str, Any] = {
    "input_bck": BucketRef,
    "output_bck": BucketRef,
    "input_extension": "",
    "output_extension": "",
    "input_format": _Names,
    "output_format": "",
    "output_shard_size": str | int,
    "algorithm": Algorithm,
    # What steers the real one's resources: what comes out does not depend on it.
    "description": msgspec.Raw,
    "max_mem_usage": msgspec.Raw,
    "extract_concurrency_max_limit": msgspec.Raw,
    "create_concurrency_max_limit": msgspec.Raw,
    "dsorter_type": msgspec.Raw,
}


@dataclass
class Spec:
    """A request after all checks."""

    source: str
    to: str
    shards: list[Object]
    extension: str
    names: str
    shard_bytes: int
    algorithm: Algorithm


def parse_spec(call: Call) -> Spec:
    """Return the request after all checks."""
    spec = typed(call.message, "dsort", _KNOWN)
    if spec["input_bck"] is None or not spec["input_bck"].name:
        raise _bad("input_bck", "missing source bucket")
    source = bucket_of(spec["input_bck"])
    to = bucket_of(spec["output_bck"]) if spec["output_bck"] and spec["output_bck"].name else source
    bucket = call.store.bucket(source)
    call.store.bucket(to)
    size = _parse_size(str(spec["output_shard_size"] or "0"))
    if not size:
        raise not_implemented("dsort without output_shard_size")
    algorithm = spec["algorithm"] or Algorithm()
    if (algorithm.kind or "") not in KINDS:
        raise _bad("algorithm", f"invalid algorithm, expecting one of: {list(KINDS)}")
    if algorithm.kind == "content" and not (algorithm.extension or "").startswith("."):
        raise _bad("algorithm", "algorithm: invalid extension")
    if (algorithm.content_key_type or "string") not in CONTENT_KINDS:
        raise _bad("algorithm", f"invalid content_key_type, expecting one of: {list(CONTENT_KINDS)}")
    extension = spec["input_extension"]
    shards = list(_inputs(spec["input_format"] or _Names(), extension, bucket))
    output = spec["output_format"]
    out_ext = extension_of(output) or spec["output_extension"] or extension or ".tar"
    if out_ext not in EXTENSIONS:
        raise _bad("output_extension", f"invalid extension, expecting one of: {list(EXTENSIONS)}")
    if out_ext == ".tar.lz4":
        raise not_implemented("archives in .tar.lz4")
    check_object_name(next(endless(output)))  # refuse a bad template now
    return Spec(source, to, shards, out_ext, output, size, algorithm)


def _bad(field: str, why: str) -> ReplyError:
    return ReplyError(400, f'[dsort] parse-spec: "{field}" {why}', "wrapError")


def _inputs(wanted: _Names, extension: str, bucket: Bucket) -> Iterator[Object]:
    template = wanted.template or ""
    if not wanted.objnames and not is_range(template):
        yield from (entry for entry in bucket.with_prefix(template) if entry.name.endswith(extension))
        return
    for name in wanted.objnames or expand(template):
        entry = bucket.objects.get(name if extension_of(name) else name + extension)
        if entry is not None:
            yield entry


_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([KMGT]?)I?B?", re.IGNORECASE)


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise _bad("output_shard_size", f'invalid size "{text:.100}"')
    return int(float(match.group(1)) * 1024 ** " KMGT".index(match.group(2).upper() or " "))
