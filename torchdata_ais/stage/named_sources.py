"""Sources of shards as a program names them: buckets of the SDK, prefixes, templates, URLs and paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchdata_ais.store import (
    Cluster,
    StoreOptions,
    given_options,
    options_with,
    resolve_options,
)
from torchdata_ais.urls import redact


def place_named(source: Any, prefix: str, template: str | None) -> str:
    """Return a source and what was said of it as one place."""
    if isinstance(source, (str, Path)):
        text = str(source)
    else:  # a bucket of the SDK
        text = f"{getattr(source, 'provider', 'ais')}://{getattr(source, 'name', source)}"
    more = template or prefix
    return f"{text.rstrip('/')}/{more}" if more else text


def key_of(source: Any) -> str | None:
    """Return what tells a source from others, in every process alike; None if that is not known."""
    if isinstance(source, (str, Path)):
        return str(source)
    if type(source).__name__ == "Bucket":
        return f"{getattr(source, 'provider', '')}://{getattr(source, 'namespace', '')}/{getattr(source, 'name', '')}"
    return None


def options_of(sources: list[Any], cluster: Cluster) -> StoreOptions | None:
    """Return the options of the cluster; an SDK bucket supplies those that `cluster` leaves open."""
    given = given_options(cluster)
    bucket = next((source for source in sources if hasattr(source, "client")), None)
    if bucket is None or (given is not None and given.endpoint):
        return given
    return resolve_options(client=bucket.client) if given is None else options_with(bucket.client, given)


def describe(source: Any) -> str:
    """Return what `repr` shows of a source."""
    if isinstance(source, (str, Path)):
        return repr(redact(str(source)))
    name = getattr(source, "name", None)
    return f"{type(source).__name__}({name!r})" if name else type(source).__name__
