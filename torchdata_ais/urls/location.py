"""What URLs and paths name, taken apart.

Two kinds of names stand side by side. *Object URIs* (``ais://bucket/name``, ``s3://bucket/name``) say what an
object is; the name after the bucket is taken letter by letter, nothing in it is an escape or a query.
*Object URLs* (``http://proxy:51080/v1/objects/bucket/name?provider=ais``) say where to fetch it; names are
percent-encoded there. Everything else is a local file (``/data/s.tar``, ``file:///data/s.tar``, ``file:s.tar``), a
plain web file (``http://host/s.tar``) or standard input (``-``). torchdata's ``aws:bucket/name`` is refused, since it
is a file's name as well: it is written ``aws://bucket/name`` or ``./aws:bucket/name``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from typing_extensions import Self

from torchdata_ais.errors import UsageError
from torchdata_ais.redaction import redact, redact_text

PROVIDERS = {
    "ais": "ais",
    "s3": "aws",
    "aws": "aws",
    "gs": "gcp",
    "gcp": "gcp",
    "az": "azure",
    "azure": "azure",
    "oci": "oci",
}
"""URI scheme -> the provider's name in AIStore's requests (``provider=``). Of several schemes the first is shown."""

_SCHEMES = {provider: scheme for scheme, provider in reversed(PROVIDERS.items())}

_OBJECTS = "/v1/objects/"


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
    params: Mapping[str, str] = field(default_factory=dict, hash=False)
    written: ObjectURL = field(default=ObjectURL(""), repr=False, compare=False)

    def __repr__(self) -> str:
        shown = (f"{one.name}={vars(self)[one.name]!r}" for one in fields(self) if one.repr)
        return redact_text(f"Location({', '.join(shown)})")

    @property
    def uri(self) -> str:
        """The short form for people: ``ais://bucket/name``, or the path or URL itself."""
        if self.kind != "object":
            return redact(self.name)
        scheme = _SCHEMES.get(self.provider, self.provider)
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

    @property
    def query(self) -> dict[str, str]:
        """What says in a request which bucket of that name is meant."""
        return {"provider": self.provider} | ({"namespace": self.namespace} if self.namespace else {})

    def url(self) -> str:
        """Return the http URL of the object; needs an endpoint. Other kinds return their name."""
        if self.kind != "object":
            return self.name
        path = quote(
            self.name, safe="/", errors="surrogateescape"
        )  # bytes that are no UTF-8, as a shell gives them
        return f"{self.endpoint}{_OBJECTS}{self.bucket}/{path}?{urlencode({**self.query, **self.params})}"


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


def shown_url(url: str) -> str:
    """Return the name that samples carry of the shard `url`: a URL without its secrets, a path as it is.

    Example:
        >>> shown_url("http://me:pass@h/s.tar?sig=a1"), shown_url("a:b@c.tar")
        ('http://***@h/s.tar?sig=***', 'a:b@c.tar')
    """
    return redact(url) if "://" in url else url
