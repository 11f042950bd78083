"""Names of objects and of archive members: parsing, building, brace templates.

Two kinds of names stand side by side. *Object URIs* (``ais://bucket/name``, ``s3://bucket/name``) say what an
object is; the name after the bucket is taken letter by letter, nothing in it is an escape or a query.
*Object URLs* (``http://proxy:51080/v1/objects/bucket/name?provider=ais``) say where to fetch it; names are
percent-encoded there. Everything else is a local file (``/data/s.tar``, ``file:///data/s.tar``, ``file:s.tar``), a
plain web file (``http://host/s.tar``) or standard input (``-``). torchdata's ``aws:bucket/name`` is ``aws://bucket/name``;
a local file of such a name is ``./aws:bucket/name``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from braceexpand import UnbalancedBracesError, braceexpand  # type: ignore[attr-defined]
from typing_extensions import Self

from torchdata_ais.errors import UsageError
from torchdata_ais.redaction import redact, redact_text

__all__ = [
    "PROVIDERS",
    "Location",
    "MemberPath",
    "ObjectURL",
    "bucket_place",
    "expand_object_urls",
    "expand_template",
    "no_cluster",
    "object_url",
    "parse_url",
    "redact",
    "shown_url",
]

PROVIDERS: Mapping[str, str] = {
    "ais": "ais",
    "s3": "aws",
    "aws": "aws",
    "gs": "gcp",
    "gcp": "gcp",
    "az": "azure",
    "azure": "azure",
    "oci": "oci",
}
"""URI scheme -> the provider's name in AIStore's requests (``provider=``)."""

_OBJECTS = "/v1/objects/"
_MEMBER = re.compile(
    r"^(.*?(?:\.tar(?:\.\w+)?(?:\?[^/]*)?|\.tgz(?:\?[^/]*)?|\?provider=[^/]*))/(.*)$", re.DOTALL
)


class ObjectURL(str):
    """The http URL of an object, with what the listing knew about it.

    Every string method returns a plain ``str``: whoever takes an `ObjectURL` must cope with a ``str``.

    Attributes:
        size: Bytes, or None.
        checksum: XXH64 of the whole object as 16 hexadecimal digits, or None.
        version: The object's version, or None.

    Example:
        >>> url = ObjectURL("http://h:1/v1/objects/b/s.tar?provider=ais", size=10240, version="1")
        >>> url.size, url.upper().startswith("HTTP"), type(url.upper()).__name__
        (10240, True, 'str')
    """

    __slots__ = ("checksum", "size", "version")

    size: int | None
    checksum: str | None
    version: str | None

    def __new__(
        cls, url: str, size: int | None = None, checksum: str | None = None, version: str | None = None
    ) -> Self:
        """Return `url` with what is known about the object."""
        self = super().__new__(cls, url)
        self.size = size
        self.checksum = checksum
        self.version = version
        return self

    def __repr__(self) -> str:
        return repr(redact(str(self)))  # the text itself has to be fetched with all that stands in it

    def __reduce__(self) -> tuple[type[Self], tuple[str, int | None, str | None, str | None]]:
        return type(self), (str(self), self.size, self.checksum, self.version)


class MemberPath(str):
    """The path of an archive member: ``<url>/<member>``.

    Attributes:
        url: The shard.
        member: The member's name in it.
        offset: Where the member's header begins, in bytes of the (decompressed) shard; -1 if not known.
        ends: ``"run"`` if this is the last member of its sample, ``"shard"`` if it is also the last of its shard,
            else ``""``.
        shard: The position of the shard in the order of the epoch; -1 if not known.

    Example:
        >>> path = MemberPath.of("ais://b/s.tar", "cat/000.jpg", 512)
        >>> path, path.member, path.offset
        ('ais://b/s.tar/cat/000.jpg', 'cat/000.jpg', 512)
        >>> MemberPath("http://h/v1/objects/b/s.tar?provider=ais/cat/000.jpg").member
        'cat/000.jpg'
    """

    __slots__ = ("ends", "member", "offset", "shard", "url")

    url: str
    member: str
    offset: int
    ends: str
    shard: int

    def __new__(cls, path: str, offset: int = -1) -> Self:
        """Split a plain path after the first ``.tar/``, ``.tgz/``, ``.tar.xx/`` or ``?provider=xx/``."""
        self = super().__new__(cls, path)
        found = _MEMBER.match(path)
        self.url, self.member = (found[1], found[2]) if found else ("", path)
        self.offset = offset
        self.ends = ""
        self.shard = -1
        return self

    @classmethod
    def of(cls, url: str, member: str, offset: int, ends: str = "", shard: int = -1) -> Self:
        """Return the path of `member` in the shard `url`; nothing is parsed."""
        self = str.__new__(cls, f"{url}/{member}")
        self.url = url
        self.member = member
        self.offset = offset
        self.ends = ends
        self.shard = shard
        return self

    def __reduce__(self) -> tuple[Any, tuple[str, str, int, str, int]]:
        return MemberPath.of, (self.url, self.member, self.offset, self.ends, self.shard)


@dataclass(frozen=True)
class Location:
    """What a URL or path names, taken apart.

    Attributes:
        kind: ``"object"`` (in AIStore), ``"file"`` (local), ``"http"`` (any other web server) or ``"stdin"``.
        bucket: The bucket, for objects.
        name: The object's name, decoded; for files the path; for web files the URL. A bucket URI has ``""``.
        provider: AIStore's name of the provider: ``ais aws gcp azure oci``.
        namespace: ``@uuid#name`` or ``""``.
        endpoint: ``scheme://host:port`` if the URL names one, else ``""``.
        params: Further query parameters of an object URL (``etl_name``, ``archpath``, ...).
        written: The URL or path itself, with what is known of the object, which must be met when it is read.
    """

    kind: Literal["object", "file", "http", "stdin"]
    name: str
    bucket: str = ""
    provider: str = "ais"
    namespace: str = ""
    endpoint: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    written: ObjectURL = field(default=ObjectURL(""), repr=False, compare=False)

    def __repr__(self) -> str:
        shown = (f"{one.name}={vars(self)[one.name]!r}" for one in fields(self) if one.repr)
        return redact_text(f"Location({', '.join(shown)})")

    @property
    def uri(self) -> str:
        """The short form for people: ``ais://bucket/name``, or the path or URL itself."""
        if self.kind != "object":
            return redact(self.name)
        scheme = {"aws": "s3", "gcp": "gs", "azure": "az"}.get(self.provider, self.provider)
        space = f"{self.namespace}/" if self.namespace else ""
        name = f"/{self.name}" if self.name else ""
        return f"{scheme}://{space}{self.bucket}{name}"

    @property
    def shown(self) -> str:
        """What samples and errors carry: the URL without its secrets, a path as it is."""
        return shown_url(self.written)

    def at(self, endpoint: str) -> Location:
        """Return this location with `endpoint` where it names none."""
        return self if self.endpoint or self.kind != "object" else replace(self, endpoint=endpoint)

    def require_endpoint(self) -> None:
        """Raise if this is in AIStore and no cluster is named.

        Raises:
            UsageError: Neither the URL nor `at` named one.
        """
        if self.kind == "object" and not self.endpoint:
            raise no_cluster(self.uri, self.shown)

    def url(self) -> str:
        """Return the http URL of the object; needs an endpoint. Other kinds return their name."""
        if self.kind != "object":
            return self.name
        params = {"provider": self.provider}
        if self.namespace:
            params["namespace"] = self.namespace
        params.update(self.params)
        path = quote(self.name, safe="/")
        return f"{self.endpoint}{_OBJECTS}{self.bucket}/{path}?{urlencode(params)}"


def no_cluster(place: str = "", url: str | None = None) -> UsageError:
    """Return the error for a call that needs a cluster and has none.

    Args:
        place: What is in that cluster.
        url: Where it is, as the user wrote it.

    Example:
        >>> print(no_cluster())
        No cluster is named. Pass cluster=, or set AIS_ENDPOINT (http://host:51080)
    """
    what = f"{place}: no cluster is named" if place else "no cluster is named"
    return UsageError.at(what, todo="pass cluster=, or set AIS_ENDPOINT (http://host:51080)", url=url)


def parse_url(url: str | Location) -> Location:
    """Return what `url` names.

    Args:
        url: An object URI, an object URL, another web URL, ``file:``, a local path, or ``-``. A `Location` is
            returned as it is: what was parsed once is handed down.

    Raises:
        UsageError: No bucket, an unknown scheme, another host's file, or an empty string.

    Example:
        >>> parse_url("ais://pets/train-000.tar")
        Location(kind='object', name='train-000.tar', bucket='pets', provider='ais', namespace='', endpoint='', params={})
        >>> parse_url("http://h:51080/v1/objects/pets/a%20b.tar?provider=ais&etl_name=x").params
        {'etl_name': 'x'}
        >>> parse_url("/data/s.tar").kind, parse_url("file:s.tar").name
        ('file', 's.tar')
        >>> parse_url("aws:bucket/prefix/").uri
        's3://bucket/prefix/'
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
    scheme, colon, rest = url.partition("://")
    if not colon:
        scheme, colon, rest = url.partition(":")
        if not colon or scheme not in (*PROVIDERS, "file", "FILE"):
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
    start = parts.path.find(_OBJECTS)
    if start < 0:
        return Location("http", url)
    bucket, _, name = parts.path[start + len(_OBJECTS) :].partition("/")
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
    params: dict[str, str] = {}
    if etl_name:
        params["etl_name"] = etl_name
    if etl_args:
        params["etl_args"] = (
            etl_args if isinstance(etl_args, str) else json.dumps(etl_args, separators=(",", ":"))
        )
    place = bucket_place(bucket, provider, namespace)
    return replace(place, name=name, endpoint=_endpoint_of(cluster), params=params).url()


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


_NUMBERS = re.compile(r"\d+")
_SLIP = re.compile(r"\{\s*\d+(?:\s*(?:\.|\.{3,}|\u2026|-|:|,\s*\.+\s*,|to)\s*|\s+\.\.\s*|\.\.\s+)\d+\s*\}")
"""A range of numbers as it is written elsewhere: ``{0...9}``, ``{0-9}``, ``{0:9}``, ``{0,...,9}``, ``{0 .. 9}``."""


def expand_template(template: str) -> Iterator[str]:
    """Yield the names of a brace template, in the order of a shell.

    Args:
        template: ``train-{000000..000146}.tar``, ``{a,b}-{0..3}.tar``; a text without braces yields itself.

    Raises:
        UsageError: The braces do not match, or enclose numbers and yet no range.

    Example:
        >>> list(expand_template("s-{008..010}.tar"))
        ['s-008.tar', 's-009.tar', 's-010.tar']
    """
    slip = _SLIP.search(template)
    if slip:
        begin, end = _NUMBERS.findall(slip[0])
        raise UsageError.at(
            f"{slip[0]} in the template {template!r} is no range",
            todo=f"write {{{begin}..{end}}}, with two dots, and no other sign or blank",
        )
    try:
        yield from braceexpand(template, escape=False)
        return
    except UnbalancedBracesError:
        pass  # its own text says no more than the template, with all that stands in it
    raise UsageError.at(
        f"the braces of the template {template!r} do not match", todo="write name-{000..099}.tar"
    )


def shown_url(url: str) -> str:
    """Return the name that samples carry of the shard `url`: a URL without its secrets, a path as it is.

    Example:
        >>> shown_url("http://me:pass@h/s.tar?sig=a1"), shown_url("a:b@c.tar")
        ('http://***@h/s.tar?sig=***', 'a:b@c.tar')
    """
    return redact(url) if "://" in url else url
