"""Sources of shards as a program names them: buckets of the SDK, prefixes, templates, URLs and paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.store import (
    Cluster,
    ClusterNames,
    StoreOptions,
    given_options,
    options_with,
    resolve_options,
)
from torchdata_ais.urls import parse_url, redact


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


def options_of(sources: list[Any], cluster: Cluster, named: ClusterNames) -> StoreOptions | None:
    """Return how to reach the cluster that is named; what is not said of it, the sources may say."""
    given = given_options(cluster, **named)
    bucket = next((source for source in sources if hasattr(source, "client")), None)
    token = named.get("token")
    if given is not None and (token is None or named.get("endpoint") or named.get("client")):
        return options_with(bucket.client, given) if bucket is not None and not given.endpoint else given
    if bucket is not None:
        return resolve_options(client=bucket.client, token=token)
    return given if token is None else resolve_options(endpoint=_one_host(sources), token=token)


def _one_host(sources: list[Any]) -> str | None:
    """Return the address in object URLs that the program wrote, if all sources are such, of one host."""
    try:
        hosts = {parse_url(source).endpoint if isinstance(source, str) else "" for source in sources}
    except UsageError:
        return None  # said when the source is listed
    return hosts.pop() or None if len(hosts) == 1 else None


def describe(source: Any) -> str:
    """Return what `repr` shows of a source."""
    if isinstance(source, (str, Path)):
        return repr(redact(str(source)))
    name = getattr(source, "name", None)
    return f"{type(source).__name__}({name!r})" if name else type(source).__name__
