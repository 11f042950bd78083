"""Locations that URLs and paths name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Literal
from urllib.parse import quote, urlencode

from typing_extensions import Self

from torchdata_ais.errors import UsageError
from torchdata_ais.errors.redaction import redact, redact_text
from torchdata_ais.errors.text import object_uri

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
"""Providers in AIStore's requests by URI scheme. Of several schemes the first is shown."""

OBJECTS_PATH = "/v1/objects/"


class ObjectURL(str):
    """The http URL of an object, with its metadata from the listing.

    Every string method returns a plain ``str``: functions that accept an `ObjectURL` must accept a ``str``.

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
        """Return `url` with the known metadata of the object."""
        self = super().__new__(cls, url)
        self.size = size
        self.checksum = checksum
        self.version = version
        return self

    def __repr__(self) -> str:
        return repr(redact(str(self)))  # the text itself is needed to fetch, with its secrets

    def __reduce__(self) -> tuple[type[Self], tuple[str, int | None, str | None, str | None]]:
        return type(self), (str(self), self.size, self.checksum, self.version)


@dataclass(frozen=True)
class Location:
    """Parts of a URL or path.

    Attributes:
        kind: ``"object"`` (in AIStore), ``"file"`` (local), ``"http"`` (any other web server) or ``"stdin"``.
        name: The object's name, decoded; for files the path; for web files the URL. A bucket URI has ``""``.
        provider: AIStore's name of the provider: ``ais aws gcp azure oci``.
        namespace: ``@uuid#name`` or ``""``.
        endpoint: ``scheme://host:port`` if the URL names one, else ``""``.
        params: Further query parameters of an object URL (``etl_name``, ``archpath``, ...).
        written: The URL or path itself, with the known metadata of the object, which must match when it is read.
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
        """The short form for people: ``ais://bucket/name``, or path or URL."""
        if self.kind != "object":
            return redact(self.name)
        return object_uri(self.provider, self.namespace, self.bucket, self.name)

    @property
    def shown(self) -> str:
        """Form in samples and errors: a URL without secrets, a path as it is."""
        return shown_url(self.written)

    def at(self, endpoint: str) -> Location:
        """Return this location with `endpoint` where it names none."""
        return self if self.endpoint or self.kind != "object" else replace(self, endpoint=endpoint)

    def require_endpoint(self) -> None:
        """Raise `UsageError` if this is in AIStore and no cluster is named."""
        if self.kind == "object" and not self.endpoint:
            raise no_cluster(self.uri, self.shown)

    @property
    def query(self) -> dict[str, str]:
        """Query that identifies the bucket among those of the same name."""
        return {"provider": self.provider} | ({"namespace": self.namespace} if self.namespace else {})

    def url(self) -> str:
        """Return the http URL of the object, or the name of others."""
        if self.kind != "object":
            return self.name
        path = f"{self.bucket}/{self.name}"
        if "/." in f"/{path}" and not {".", ".."}.isdisjoint(path.split("/")):
            raise self._no_object("in a URL that is the name of another object")
        try:
            path = quote(path, safe="/", errors="surrogateescape")  # bytes not UTF-8, as a shell gives them
        except UnicodeEncodeError as error:
            raise self._no_object("it is not UTF-8") from error
        return f"{self.endpoint}{OBJECTS_PATH}{path}?{urlencode({**self.query, **self.params})}"

    def _no_object(self, why: str) -> UsageError:
        return UsageError.at(
            f"no object can be called {self.name[:300]!r}: {why}", todo="check the name", url=self.uri[:4096]
        )


bucket_of = attrgetter("endpoint", "provider", "namespace", "bucket")
"""Function from a `Location` to the key of its bucket."""


def no_cluster(place: str = "", url: str | None = None) -> UsageError:
    """Return the error for a call that needs a cluster and has none.

    Example:
        >>> print(no_cluster())
        No cluster is named. Pass cluster=, or set AIS_ENDPOINT (http://host:51080)
    """
    what = f"{place}: no cluster is named" if place else "no cluster is named"
    return UsageError.at(what, todo="pass cluster=, or set AIS_ENDPOINT (http://host:51080)", url=url)


def shown_url(url: str) -> str:
    """Return the name of a shard in samples: without secrets, if it is a URL.

    Example:
        >>> shown_url("http://me:pass@h/s.tar?sig=a1"), shown_url("a:b@c.tar")
        ('http://***@h/s.tar?sig=***', 'a:b@c.tar')
    """
    return redact(url) if "://" in url or url.startswith("pipe:") else url
