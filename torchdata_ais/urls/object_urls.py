"""http URLs of objects, as programs make them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.urls.location import no_cluster
from torchdata_ais.urls.parsing import bucket_place
from torchdata_ais.urls.templates import expand_template


def object_url(
    cluster: Any,
    bucket: Any,
    name: str,
    *,
    provider: str = "ais",
    namespace: str = "",
    etl_name: str | None = None,
    etl_args: str | Mapping[str, Any] | None = None,
) -> str:
    """Return the http URL of an object, optionally as an inline transform gives it.

    Args:
        cluster: See `torchdata_ais.store.Cluster`.
        bucket: The bucket's name, a bucket URI such as ``gcp://imagenet``, or an SDK bucket.
        name: The object's name, as it is (not percent-encoded).
        provider: Provider or URI scheme; ignored if `bucket` is a URI.
        namespace: ``@uuid#name``.
        etl_name: The transform to apply on the cluster.
        etl_args: Arguments for it; a mapping is sent as JSON.

    Raises:
        UsageError: No cluster is named, or `bucket` is none.

    Example:
        >>> object_url("http://h:51080/", "gcp://imagenet", "a b.tar", etl_name="crop")
        'http://h:51080/v1/objects/imagenet/a%20b.tar?provider=gcp&etl_name=crop'
    """
    if not isinstance(name, str):
        raise UsageError.at(f"an object has a name, not {name!r:.40}", todo="pass text")
    place = bucket_place(bucket, provider, namespace)
    params = etl_query(etl_name, etl_args)
    return replace(place, name=name, endpoint=_endpoint_of(cluster), params=params).url()


def etl_query(
    name: str | None, args: str | Mapping[str, Any] | None = None, pipeline: Sequence[str] | None = None
) -> dict[str, str]:
    """Return what says in a request for an object which transform is to make what comes, and which ones after it.

    Example:
        >>> etl_query("crop", {"size": 8})
        {'etl_name': 'crop', 'etl_args': '{"size":8}'}
    """
    query = {"etl_name": name} if name else {}
    if pipeline:
        query["etl_pipeline"] = ",".join(pipeline)
    if args:
        query["etl_args"] = args if isinstance(args, str) else json.dumps(args, separators=(",", ":"))
    return query


def expand_object_urls(
    cluster: Any,
    bucket: Any,
    template: str,
    etl_name: str | None = None,
    *,
    provider: str = "ais",
    namespace: str = "",
    etl_args: str | Mapping[str, Any] | None = None,
) -> list[str]:
    """Return the http URLs of the objects that a brace template names, in the order of a shell.

    Nothing is asked of the cluster: names that do not exist are among them. The arguments are those of `object_url`.

    Example:
        >>> expand_object_urls("http://h:51080", "gcp://imagenet", "val-{08..09}.tar", etl_name="crop")
        ['http://h:51080/v1/objects/imagenet/val-08.tar?provider=gcp&etl_name=crop', 'http://h:51080/v1/objects/imagenet/val-09.tar?provider=gcp&etl_name=crop']
    """
    more: dict[str, Any] = {"namespace": namespace, "etl_name": etl_name, "etl_args": etl_args}
    return [
        object_url(cluster, bucket, name, provider=provider, **more) for name in expand_template(template)
    ]


def _endpoint_of(cluster: Any) -> str:
    """Return ``http://host:port`` of an address, of an SDK client, or of the environment."""
    found = cluster
    if cluster is None:  # whoever reads these URLs has its user name and password from there, too
        scheme, mark, rest = os.environ.get("AIS_ENDPOINT", "").partition("://")
        host, slash, path = rest.partition("/")
        found = scheme + mark + host.rpartition("@")[2] + slash + path
    if not isinstance(found, str):
        request = getattr(cluster, "_request_client", cluster)
        address = getattr(cluster, "endpoint", None) or getattr(request, "base_url", "")
        found = str(address).rstrip("/").removesuffix("/v1")
    if not found:
        raise no_cluster()
    return found.rstrip("/")
