"""Which objects a specification reads and writes, told by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchdata_ais.shard_names import archive_ending
from torchdata_ais.store import StoreOptions, list_objects
from torchdata_ais.urls import Location, ObjectURL, expand_template, parse_url

_NUMBER = re.compile(r"%(?:0?\d+)?d|@\d*")


@dataclass(frozen=True)
class Names:
    """Names in one bucket: a set of them, or what matches patterns.

    Attributes:
        bucket: The bucket, as ``ais://name``.
        exact: The names, in order; None if patterns tell.
        patterns: Regular expressions for whole names.
    """

    bucket: Location
    exact: tuple[str, ...] | None
    patterns: tuple[str, ...] = ()

    def listed(self, options: StoreOptions) -> list[ObjectURL]:
        """Return those that exist, in the order given, else by name."""
        found = {
            parse_url(url).name: url
            for url in list_objects(self.bucket.uri.rstrip("/"), options=options, allow_empty=True)
        }
        if self.exact is not None:
            return [found[name] for name in self.exact if name in found]
        wanted = [re.compile(pattern) for pattern in self.patterns]
        return [url for name, url in sorted(found.items()) if any(rule.fullmatch(name) for rule in wanted)]


def inputs_of(spec: Mapping[str, Any]) -> Names:
    """Return what the (translated) specification reads."""
    bucket = _place(spec["input_bck"])
    extension = spec.get("input_extension") or ""
    form = spec["input_format"]
    names = list(form.get("objnames") or ())
    template = form.get("template") or ""
    if not names and "{" in template:
        names = list(expand_template(template))
    if names:
        return Names(bucket, tuple(name if archive_ending(name) else name + extension for name in names))
    if _NUMBER.search(template):
        return Names(bucket, None, (_pattern(template, extension),))
    return Names(bucket, None, (re.escape(template) + ".*" + re.escape(extension),))  # a prefix


def outputs_of(spec: Mapping[str, Any], templates: tuple[str, ...] = ()) -> Names:
    """Return what the (translated) specification writes; `templates` are those of a key map."""
    bucket = _place(spec.get("output_bck") or spec["input_bck"])
    extension = spec.get("output_extension") or spec.get("input_extension") or ""
    templates = templates or (spec.get("output_format") or "",)
    return Names(bucket, None, tuple(_pattern(template, extension) for template in templates))


def _pattern(template: str, extension: str) -> str:
    """Return a regular expression for the names that a template gives."""
    if not archive_ending(template):
        template += extension
    pieces = re.split(rf"({_NUMBER.pattern}|\{{[^{{}}]*\}})", template)
    return "".join(r"\d+" if index % 2 else re.escape(piece) for index, piece in enumerate(pieces))


def _place(bucket: Mapping[str, Any]) -> Location:
    space = bucket.get("namespace") or {}
    namespace = f"@{space.get('uuid', '')}#{space.get('name', '')}" if any(space.values()) else ""
    return Location("object", "", bucket["name"], bucket.get("provider") or "ais", namespace)
