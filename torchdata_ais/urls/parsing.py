"""Parsing of URLs, paths, templates and member paths.

Two kinds of names exist. *Object URIs* (``ais://bucket/name``, ``s3://bucket/name``) identify an object; the name
after the bucket is taken letter by letter, nothing in it is an escape or a query. *Object URLs*
(``http://proxy:51080/v1/objects/bucket/name?provider=ais``) locate it; names are percent-encoded there. Everything
else is a local file (``/data/s.tar``, ``file:///data/s.tar``, ``file:s.tar``), a plain web file
(``http://host/s.tar``) or standard input (``-``). torchdata's ``aws:bucket/name`` is refused, since it is a file's
name as well: it is written ``aws://bucket/name`` or ``./aws:bucket/name``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from braceexpand import UnbalancedBracesError, braceexpand  # type: ignore[attr-defined]
from typing_extensions import Self

from torchdata_ais.errors import UsageError
from torchdata_ais.errors.redaction import redact
from torchdata_ais.urls.location import OBJECTS_PATH, PROVIDERS, Location, ObjectURL, no_cluster, shown_url


def parse_url(url: str | Location) -> Location:
    """Return the location that `url` names.

    Args:
        url: An object URI, an object URL, another web URL, ``file:``, a local path, or ``-``. A `Location` is
            returned as it is.

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
            "expected a URL or a path, got the text of a command, which is not run here",
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
    """Parse ``file:path``, ``file:/path`` and ``file://[localhost]/path``."""
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
    """Return the location of a bucket, from its name, URI or SDK object.

    In a URI, the text after the bucket is the name.
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


_NUMBERS = re.compile(r"\d+")
# A range of numbers in the syntax of other tools: {0...9}, {0-9}, {0:9}, {0,...,9} and {0 .. 9}.
_SLIP = re.compile(r"\{\s*\d+(?:\s*(?:\.|\.{3,}|\u2026|-|:|,\s*\.+\s*,|to)\s*|\s+\.\.\s*|\.\.\s+)\d+\s*\}")


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
    if not isinstance(template, str):
        raise UsageError.at(f"{template!r:.40} is no template", todo='pass text such as "s-{000..099}.tar"')
    slip = _SLIP.search(template)
    if slip:
        begin, end = _NUMBERS.findall(slip[0])
        raise UsageError.at(
            f"{slip[0]} in the template {shown_url(template)!r} is no range",
            todo=f"write {{{begin}..{end}}}, with two dots, and no other sign or blank",
        )
    try:
        yield from braceexpand(template, escape=False)
        return
    except UnbalancedBracesError:
        pass  # its text has no more than the template, with its secrets
    raise UsageError.at(
        f"the braces of the template {shown_url(template)!r} do not match", todo="write name-{000..099}.tar"
    )


_MEMBER = re.compile(r"^(.*?(?:\.tar(?:\.\w+)?(?:\?[^/]*)?|\.tgz(?:\?[^/]*)?|\?provider=[^/]*))/", re.DOTALL)


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
        """Split a plain path after the first name of an archive.

        It ends with ``.tar/``, ``.tgz/``, ``.tar.xx/`` or ``?provider=xx/``.
        """
        self = super().__new__(cls, path)
        # Up to the last slash: after it the pattern would scan from each query to the end.
        found = _MEMBER.match(path, 0, path.rfind("/") + 1)
        self.url, self.member = (found[1], path[found.end() :]) if found else ("", path)
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


def object_url(
    cluster: object,
    bucket: object,
    name: str,
    *,
    provider: str = "ais",
    namespace: str = "",
    etl_name: str | None = None,
    etl_args: str | Mapping[str, object] | None = None,
) -> str:
    """Return the http URL of an object, optionally through a transform.

    Args:
        cluster: See `torchdata_ais.store.Cluster`.
        bucket: The bucket's name, a bucket URI such as ``gcp://imagenet``, or an SDK bucket.
        name: The object's name, as it is (not percent-encoded).
        provider: Provider or URI scheme; ignored if `bucket` is a URI.
        namespace: ``@uuid#name``.
        etl_name: The transform to apply on the cluster.
        etl_args: Arguments for it; a mapping is sent as JSON.

    Raises:
        UsageError: No cluster is named, or `bucket` is not a bucket.

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
    name: str | None, args: str | Mapping[str, object] | None = None, pipeline: Sequence[str] | None = None
) -> dict[str, str]:
    """Return the query for an object after a transform, and those after it.

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
    cluster: object,
    bucket: object,
    template: str,
    etl_name: str | None = None,
    *,
    provider: str = "ais",
    namespace: str = "",
    etl_args: str | Mapping[str, object] | None = None,
) -> list[str]:
    """Return the http URLs of objects of a brace template, in shell order.

    It sends no request to the cluster, so the URLs may name objects that do not exist. The arguments are those of
    `object_url`.

    Example:
        >>> expand_object_urls("http://h:51080", "gcp://imagenet", "val-{08..09}.tar", etl_name="crop")
        ['http://h:51080/v1/objects/imagenet/val-08.tar?provider=gcp&etl_name=crop', 'http://h:51080/v1/objects/imagenet/val-09.tar?provider=gcp&etl_name=crop']
    """
    how: dict[str, Any] = {"provider": provider, "namespace": namespace}
    how |= {"etl_name": etl_name, "etl_args": etl_args}
    return [object_url(cluster, bucket, name, **how) for name in expand_template(template)]


def _endpoint_of(cluster: object) -> str:
    """Return ``http://host:port`` of an address, SDK client or environment."""
    found = cluster
    if cluster is None:  # readers of these URLs get its user name and password from the environment, too
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


COMPRESSIONS = ("gz", "bz2", "xz", "zst")  # .tgz is .tar.gz
INDEX_FOLDER = ".index/"  # of sample indexes, next to the shards
CLASSES_FILE = "classes.json"  # with the names of the classes, next to the shards
_ARCHIVE_ENDINGS = (".tar.gz", ".tar.lz4", ".tar", ".tgz", ".zip")  # that AIStore's own jobs know

_SHARD = rf"\.(tar(\.({'|'.join(COMPRESSIONS)}))?|tgz)$"
_IS_SHARD = re.compile(_SHARD)

VISIBLE_SHARD = r"(^|/)[^/.][^/]*" + _SHARD
"""A shard that is not hidden, nor on its way."""


def is_shard(name: str) -> bool:
    """Return whether this is the name of a shard that can be read.

    Example:
        >>> is_shard("a/s.tar.zst"), is_shard("s.tgz"), is_shard("s.tar.part"), is_shard("s.zip")
        (True, True, False, False)
    """
    return _IS_SHARD.search(name) is not None


def archive_ending(name: str) -> str:
    """Return the ending of an archive that AIStore's jobs know, or ``""``.

    Example:
        >>> archive_ending("s.tar.lz4"), archive_ending("s.txt")
        ('.tar.lz4', '')
    """
    return next((ending for ending in _ARCHIVE_ENDINGS if name.endswith(ending)), "")


def common_beginning(names: list[str]) -> str:
    """Return the longest common prefix of `names`, by characters.

    Example:
        >>> common_beginning(["a/s-01.tar", "a/s-02.tar"])
        'a/s-0'
    """
    return os.path.commonprefix(names)  # noqa: RUF071 - these are no paths
