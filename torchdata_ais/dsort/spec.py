"""What a dSort job shall do, typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torchdata_ais.dsort.server_spec import bucket_of, translate_spec
from torchdata_ais.errors import UsageError
from torchdata_ais.shard_names import archive_ending
from torchdata_ais.urls import Location, parse_url


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
    """By what a field of each sample says.

    Attributes:
        field: Its name, such as ``cls``.
        kind: What its text is: ``"int"``, ``"float"`` or ``"string"``.
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
        description: Shown beside the job.

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
        """Return the specification that the server takes, without a key map that is not stored yet.

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
