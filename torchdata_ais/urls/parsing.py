"""What URLs and paths name, taken apart.

Two kinds of names stand side by side. *Object URIs* (``ais://bucket/name``, ``s3://bucket/name``) say what an
object is; the name after the bucket is taken letter by letter, nothing in it is an escape or a query.
*Object URLs* (``http://proxy:51080/v1/objects/bucket/name?provider=ais``) say where to fetch it; names are
percent-encoded there. Everything else is a local file (``/data/s.tar``, ``file:///data/s.tar``, ``file:s.tar``), a
plain web file (``http://host/s.tar``) or standard input (``-``). torchdata's ``aws:bucket/name`` is refused, since it
is a file's name as well: it is written ``aws://bucket/name`` or ``./aws:bucket/name``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from torchdata_ais.errors import UsageError
from torchdata_ais.redaction import redact
from torchdata_ais.urls.location import OBJECTS_PATH, PROVIDERS, Location, ObjectURL


def parse_url(url: str | Location) -> Location:
    """Return what `url` names.

    Args:
        url: An object URI, an object URL, another web URL, ``file:``, a local path, or ``-``. A `Location` is
            returned as it is: what was parsed once is handed down.

    Raises:
        UsageError: No bucket, an unknown scheme, another host's file, a ``pipe:`` command, or an empty string.

    Example:
        >>> parse_url("ais://pets/train-000.tar")
        Location(kind='object', name='train-000.tar', bucket='pets', provider='ais', namespace='', endpoint='', params={})
        >>> parse_url("http://h:51080/v1/objects/pets/a%20b.tar?provider=ais&etl_name=x").params
        {'etl_name': 'x'}
        >>> parse_url("/data/s.tar").kind, parse_url("file:s.tar").name
        ('file', 's.tar')
    """  # noqa: E501 - the output of a doctest cannot be folded
    if isinstance(url, Location):
        return url
    return replace(_parse(url), written=url if isinstance(url, ObjectURL) else ObjectURL(url))


def _parse(url: str) -> Location:
    if not url:
        raise UsageError.at(
            "an empty string is no URL", todo="pass ais://bucket/object, an object URL or a path"
        )
    if url == "-":
        return Location("stdin", "-")
    if url.startswith("pipe:"):
        raise UsageError.at(
            "expected a URL or a path, got a command, and no text is run",
            todo="pass the URL or path of the data itself, or to torchdata_ais.webdataset a command of the program:"
            ' Command(["zcat", "s.tar.gz"])',
            url=url,
        )
    scheme, colon, rest = url.partition("://")
    if not colon:
        scheme, colon, rest = url.partition(":")
        if colon and scheme in PROVIDERS:
            raise UsageError.at(
                f"{redact(url)!r} is a bucket as torchdata wrote it, without slashes",
                todo=redact(f"write {scheme}://{rest.lstrip('/')}, or ./{url} for a local file of that name"),
                url=redact(url),
            )
        if not colon or scheme not in ("file", "FILE"):
            return Location("file", url)
    scheme = scheme.lower()
    if scheme == "file":
        return _parse_file(url)
    if scheme in ("http", "https"):
        return _parse_http(url)
    if scheme not in PROVIDERS:
        raise UsageError.at(
            f"unknown scheme {scheme!r}",
            todo=f"use one of {', '.join(PROVIDERS)}, http, https, file, or a local path",
            url=redact(url),
        )
    namespace = ""
    if rest[:1] in ("@", "#"):
        namespace, _, rest = rest.partition("/")
        if namespace.startswith("#"):
            namespace = "@" + namespace
        if "#" not in namespace:
            namespace += "#"
    bucket, _, name = rest.partition("/")
    if not bucket:
        raise UsageError.at("the URL names no bucket", todo=f"write {scheme}://bucket/object", url=url)
    return Location("object", name, bucket, PROVIDERS[scheme], namespace)


def _parse_file(url: str) -> Location:
    """Take ``file:path``, ``file:/path``, ``file:///path`` and ``file://localhost/path`` apart."""
    parts = urlsplit(url)
    if parts.netloc.lower() not in ("", "localhost"):
        raise UsageError.at(
            f"the URL names the host {parts.netloc.rpartition('@')[2]!r}, and files are read on this machine",
            todo="write file:///path, with three slashes, or file:path",
            url=redact(url),
        )
    if not parts.path:
        raise UsageError.at("the URL names no file", todo="write file:///path", url=redact(url))
    return Location("file", unquote(parts.path))


def _parse_http(url: str) -> Location:
    parts = urlsplit(url)
    if not parts.netloc:
        raise UsageError.at("the URL names no host", todo="write http://host:port/...", url=url)
    start = parts.path.find(OBJECTS_PATH)
    if start < 0:
        return Location("http", url)
    bucket, _, name = parts.path[start + len(OBJECTS_PATH) :].partition("/")
    if not bucket or not name:
        raise UsageError.at(
            "the URL names no bucket and object",
            todo="write http://host:port/v1/objects/bucket/object?provider=ais",
            url=redact(url),
        )
    params = dict(parse_qsl(parts.query, keep_blank_values=True))
    provider = params.pop("provider", "ais") or "ais"
    namespace = params.pop("namespace", "")
    endpoint = f"{parts.scheme}://{parts.netloc}{parts.path[:start]}"
    return Location(
        "object", unquote(name), bucket, PROVIDERS.get(provider, provider), namespace, endpoint, params
    )


def bucket_place(bucket: Any, provider: str = "ais", namespace: str = "") -> Location:
    """Return where a bucket is: one given by name, by URI (what stands after the bucket is its name), or by the SDK.

    Raises:
        UsageError: It is none of these.
    """
    if isinstance(bucket, str) and "://" in bucket:
        place = parse_url(bucket)
        if place.kind == "object":
            return place
    elif isinstance(bucket, str) and bucket:
        return Location("object", "", bucket, PROVIDERS.get(provider, provider), namespace)
    elif hasattr(bucket, "name") and hasattr(bucket, "provider"):
        space = bucket.namespace.get_path() if getattr(bucket, "namespace", None) else ""
        provider = str(getattr(bucket.provider, "value", bucket.provider))
        return Location("object", "", bucket.name, provider, space)
    raise UsageError.at(f"{bucket!r} is no bucket", todo="pass a name, ais://bucket, or an SDK bucket")
