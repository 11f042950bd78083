"""Specification of a dSort job."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torchdata_ais._util.arguments import checked
from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.urls import Location, parse_url
from torchdata_ais.urls.parsing import archive_ending

# Field names of AIStore's dSort article, and those of the server.
_SHORT = {"extension": "input_extension", "bck": "input_bck"}
_KINDS = ("", "alphanumeric", "none", "md5", "shuffle", "content")
_CONTENT = ("int", "float", "string")


@checked
def translate_spec(spec: Mapping[str, object]) -> dict[str, Any]:
    """Return a JSON specification in the words of the server.

    ``extension`` and ``bck`` become ``input_extension`` and ``input_bck``, a text as ``input_format`` becomes a
    template. ``dsorter_type`` is set, because the server refuses its own default. All other fields are copied.

    Raises:
        UsageError: A field under both of its names, or no input bucket.

    Example:
        >>> spec = translate_spec({"extension": ".tar", "bck": {"name": "images"}, "input_format": "samples-{00..18}"})
        >>> spec["input_extension"], spec["input_format"], spec["dsorter_type"]
        ('.tar', {'template': 'samples-{00..18}'}, 'dsort_general')
    """
    new: dict[str, Any] = {}
    for field, value in spec.items():
        name = _SHORT.get(field, field)
        if name in new or (name != field and name in spec):
            raise UsageError.at(f"the specification has both {field!r} and {name!r}", todo="leave one out")
        new[name] = value
    for name in ("input_bck", "output_bck"):
        if isinstance(new.get(name), Mapping):
            new[name] = {"provider": "ais", **new[name]}
        elif new.get(name):
            raise UsageError.at(
                f"the specification has {name}={new[name]!r:.60}", todo=f'write "{name}": {{"name": "..."}}'
            )
    if not (new.get("input_bck") or {}).get("name"):
        raise UsageError.at(
            "the specification names no input bucket", todo='add "input_bck": {"name": "..."}'
        )
    shards = new.get("input_format", "")
    if isinstance(shards, str):
        new["input_format"] = {"template": shards}
    algorithm = dict(new.get("algorithm") or {})
    if algorithm.get("seed") is not None:
        algorithm["seed"] = str(algorithm["seed"])
    new["algorithm"] = algorithm
    if isinstance(new.get("output_shard_size"), int):
        new["output_shard_size"] = str(new["output_shard_size"])
    new.setdefault("dsorter_type", "dsort_general")
    return new


def check_spec(spec: Mapping[str, Any]) -> None:
    """Raise `UsageError` for a (translated) specification that cannot work.

    The server closes the connection without a message.
    """
    algorithm = spec["algorithm"]
    kind = algorithm.get("kind", "")
    if kind not in _KINDS:
        raise UsageError.at(f"there is no algorithm {kind!r}", todo=f"use one of {', '.join(_KINDS[1:])}")
    if kind == "content":
        if not str(algorithm.get("extension", "")).startswith("."):
            raise UsageError.at(
                "sorting by content needs a field", todo='add "extension": ".cls" to algorithm'
            )
        if algorithm.get("content_key_type") not in _CONTENT:
            raise UsageError.at(
                "sorting by content needs to know its kind",
                todo=f'add "content_key_type" to algorithm: one of {", ".join(_CONTENT)}',
            )
    if not re.fullmatch(r"\d*", algorithm.get("seed") or ""):
        raise UsageError.at(f"seed={algorithm['seed']!r} is no number", todo="use 0 or more")
    size = str(spec.get("output_shard_size") or "")
    if not re.fullmatch(r"(?i)\d+(\.\d+)? *([kmgt]?i?b?)", size):
        raise UsageError.at(f"output_shard_size={size!r} is no size", todo='write bytes, or "100MB"')
    output = spec.get("output_format") or ""
    if not spec.get("ekm_file") and not re.search(r"[{%@]", output):
        raise UsageError.at(
            f"the name of the new shards, {output!r}, has no place for their number",
            todo="write one such as shuffled-%06d.tar",
        )


@checked
def load_spec(path: str | Path) -> dict[str, Any]:
    """Return the content of a specification in a JSON or YAML file."""
    file = Path(path)
    if not file.is_file():
        raise NotFoundError.at("no such file", url=str(path))
    text = file.read_text(encoding="utf-8")
    try:
        if file.suffix.lower() in (".yaml", ".yml"):
            import yaml  # type: ignore[import-untyped, unused-ignore]

            spec = yaml.safe_load(text)
        else:
            spec = json.loads(text)
    except Exception as error:
        raise UsageError.at(f"the file is neither JSON nor YAML: {error}", url=str(path)) from error
    if not isinstance(spec, dict):
        raise UsageError.at("the file holds no specification", todo="write one JSON object", url=str(path))
    return spec


def bucket_of(place: Location) -> dict[str, Any]:
    """Return the server's words for the bucket of a place."""
    bucket: dict[str, Any] = {"name": place.bucket, "provider": place.provider}
    if place.namespace:
        uuid, _, name = place.namespace.removeprefix("@").partition("#")
        bucket["namespace"] = {"uuid": uuid, "name": name}
    return bucket


@dataclass(frozen=True)
class Shuffle:
    """A random order of all samples.

    The embedded cluster gives the same order for the same seed. A real one (5.0) does not: it reads the shards
    concurrently, and shuffles them as they came. Where the order must be had again, keep the output, or shuffle while
    loading.
    """

    seed: int | None = None

    def algorithm(self) -> dict[str, Any]:
        """Return the server's words for it."""
        return {"kind": "shuffle"} if self.seed is None else {"kind": "shuffle", "seed": str(self.seed)}


@dataclass(frozen=True)
class ByName:
    """By the keys of the samples."""

    decreasing: bool = False

    def algorithm(self) -> dict[str, Any]:
        """Return the server's words for it."""
        return {"kind": "alphanumeric", "decreasing": self.decreasing}


@dataclass(frozen=True)
class ByContent:
    """Order by the value of a field of each sample.

    Attributes:
        field: Its name, such as ``cls``.
        kind: The type of its text: ``"int"``, ``"float"`` or ``"string"``.
        decreasing: The largest first.
    """

    field: str
    kind: Literal["int", "float", "string"] = "string"
    decreasing: bool = False

    def algorithm(self) -> dict[str, Any]:
        """Return the server's words for it."""
        extension = "." + self.field.lstrip(".")
        return {
            "kind": "content",
            "extension": extension,
            "content_key_type": self.kind,
            "decreasing": self.decreasing,
        }


@dataclass(frozen=True)
class Unchanged:
    """The order of the input: only the sizes of the shards change."""

    def algorithm(self) -> dict[str, Any]:
        """Return the server's words for it."""
        return {"kind": "none"}


Order = Shuffle | ByName | ByContent | Unchanged


@dataclass(frozen=True)
class DsortSpec:
    """A dSort job.

    Attributes:
        source: The shards to read: ``ais://pets/samples-{00..18}.tar``, all that begin with a prefix
            (``ais://pets/samples-``), or a list of object URIs of one bucket.
        target: The shards to write: ``ais://pets/shuffled-%06d.tar`` or ``ais://pets/shuffled-{000..999}.tar``.
            With `key_map` only the bucket counts.
        shard_size: Of each new shard, before the last: bytes, or text with a unit (``"100MB"``: binary units).
            A shard ends with the first sample that reaches it.
        order: `Shuffle`, `ByName`, `ByContent` or `Unchanged`.
        key_map: Which samples go where: keys by the template of the shards' names, as in
            ``{"cats-%d.tar": ["a", "b"], "dogs-%d.tar": ["c"]}``; or the http URL of such a map as JSON. The targets
            fetch it, and refuse addresses of private networks: then pass the URL of a public place.
        extension: Of the input shards, if their names in `source` have none.
        description: Shown with the job.

    Example:
        >>> spec = DsortSpec("ais://pets/s-{0..3}.tar", "ais://sorted/s-%d.tar", "1GB", ByContent("cls", "int"))
        >>> spec.to_server()["algorithm"]
        {'kind': 'content', 'extension': '.cls', 'content_key_type': 'int', 'decreasing': False}
    """

    source: str | Sequence[str]
    target: str
    shard_size: int | str = "100MB"
    order: Order = Shuffle()
    key_map: Mapping[str, Sequence[str]] | str | None = None
    extension: str = ".tar"
    description: str = ""

    def to_server(self) -> dict[str, Any]:
        """Return the specification for the server.

        A key map that is not stored yet is left out.

        Raises:
            UsageError: Source or target is not in a bucket, or a value is out of range.
        """
        sources = [self.source] if isinstance(self.source, str) else list(self.source)
        places = [_in_bucket(source, "source") for source in sources]
        if not places or any(bucket_of(place) != bucket_of(places[0]) for place in places):
            raise UsageError.at("the sources of one job must be in one bucket", todo="run one job for each")
        target = _in_bucket(self.target, "target")
        names = [place.name for place in places]
        return translate_spec(
            {
                "input_bck": bucket_of(places[0]),
                "input_format": {"template": names[0]}
                if isinstance(self.source, str)
                else {"objnames": names},
                "input_extension": archive_ending(names[0]) or self.extension,
                "output_bck": bucket_of(target),
                "output_format": target.name,
                "output_extension": archive_ending(target.name) or archive_ending(names[0]) or self.extension,
                "output_shard_size": str(self.shard_size),
                "algorithm": self.order.algorithm(),
                "description": self.description,
                **({"ekm_file": self.key_map, "ekm_file_sep": ""} if isinstance(self.key_map, str) else {}),
            }
        )


def _in_bucket(text: str, role: str) -> Location:
    place = parse_url(text)
    if place.kind != "object" or place.endpoint:
        raise UsageError.at(f"the {role} {text!r} is not in a bucket", todo="write ais://bucket/name")
    return place
