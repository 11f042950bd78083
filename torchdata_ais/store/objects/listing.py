"""Listing of sources."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from torchdata_ais.errors import NotFoundError, ReadError, StallError, UsageError
from torchdata_ais.store.objects.files import path_todo
from torchdata_ais.store.objects.pages import Entry, list_at_most, list_bucket
from torchdata_ais.store.objects.sdk import call_once
from torchdata_ais.store.objects.sdk_names import etl_config, is_bucket, is_group
from torchdata_ais.store.transport.cluster import resolve_options
from torchdata_ais.store.transport.options import StoreOptions
from torchdata_ais.urls import (
    Location,
    ObjectURL,
    bucket_of,
    bucket_place,
    etl_query,
    expand_template,
    file_fault,
    parse_url,
    redact,
)
from torchdata_ais.urls.parsing import CLASSES_FILE, INDEX_FOLDER, is_shard


def described(source: object) -> str:
    """Return the name of a source in messages."""
    if isinstance(source, str):
        try:
            return parse_url(source).uri
        except UsageError:
            return redact(source)
    name = getattr(source, "name", None) or getattr(getattr(source, "bck", None), "name", "")
    return f"{type(source).__name__} {name}".strip()


_SLIPS = (
    (
        re.compile(r"%0?\d*d"),
        "names are no pattern of a writer: write train-{000000..000099}.tar, or the prefix alone",
    ),
    (
        re.compile(r"[*?\[]"),
        "a bucket knows no * ? [: write the prefix that names begin with, or train-{000..099}.tar",
    ),
)


def nothing_found(
    source: object, prefix: str, template: str | None, regex: str | None, listed: int
) -> NotFoundError:
    """Return the error for a source without any of the requested objects.

    The source has `listed` other objects.
    """
    if isinstance(source, str | Path) and parse_url(str(source)).kind == "file":
        if Path(source).is_dir() and not regex:
            return NotFoundError.at(
                f"{source}: no file matches: the folder holds no shard (.tar)",
                todo="check the path; torchdata-ais convert makes shards of folders and tables",
                url=str(source),
            )
        return NotFoundError.at(
            f"{source}: no file"
            + (f" matches regex={regex!r}; {listed} were found" if regex and listed else " matches"),
            todo=path_todo(str(source)) or "check the path and the folder it is relative to",
            url=str(source),
        )
    what = f"{described(source)}: no object"
    if prefix:
        what += f" with the prefix {prefix!r}"
    if template is not None:
        what += f" in the template {template!r}"
    if regex and listed:
        what += f" matches regex={regex!r}; {listed} were listed"
    text = source if isinstance(source, str) else ""
    slip = next((todo for sign, todo in _SLIPS if sign.search(text)), None)
    todo = slip or "check bucket and prefix (AIS_ENDPOINT may name another cluster)"
    return NotFoundError.at(what, todo=todo, url=redact(source) if isinstance(source, str) else None)


_UNION = re.compile(r"::(?![^/]*\])")  # not the colons of http://[::1]:8080


@dataclass(frozen=True)
class _Selection:
    """The requested part of a source."""

    prefix: str
    template: str | None
    listings: _Listings
    etl_params: dict[str, str] = field(default_factory=dict)
    etl: object = None
    beside: bool = False


_TOGETHER = 8  # sources of a bucket
_LISTED_PER_NAME, _MOST_OTHERS = 16, 100_000  # objects listed for them


class _Listings:
    """Listings of buckets: one for many sources of the same bucket.

    A request takes a client as long as 50 entries. Fewer than 8 sources have one listing each, as have those whose
    common prefix has more than 16 times as many objects.
    """

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._known: dict[tuple[str, ...], tuple[str, list[Entry]]] = {}

    def cover(self, sources: Iterable[object]) -> None:
        """List the buckets in which many of these sources are."""
        places: defaultdict[tuple[str, ...], list[Location]] = defaultdict(list)
        for source in sources:
            for text in _parts(source):
                place, is_uri = _uri(text, self._options)
                if is_uri and "{" not in place.name:
                    places[bucket_of(place)].append(place)
        for bucket, named in places.items():
            if len(named) < _TOGETHER:
                continue
            common = os.path.commonprefix([place.name for place in named])  # noqa: RUF071 - names have no folders
            most = min(_LISTED_PER_NAME * len(named), len(named) + _MOST_OTHERS)
            with contextlib.suppress(ReadError, StallError):  # it may be of objects that no source names
                found = list_at_most(named[0], common, most, self._options)
                if found is not None:
                    self._known[bucket] = common, found

    def of(self, place: Location, prefix: str, options: StoreOptions) -> list[Entry]:
        """Return what `list_bucket` does."""
        common, entries = self._known.get(bucket_of(place), ("", None))
        if entries is None or options is not self._options or not prefix.startswith(common):
            return list_bucket(place, prefix, options)
        begin = bisect_left(entries, prefix, key=attrgetter("name"))
        rest = itertools.islice(entries, begin, None)
        return list(itertools.takewhile(lambda entry: entry.name.startswith(prefix), rest))


def list_objects(
    source: object,
    *,
    prefix: str = "",
    etl: object = None,
    etl_name: str | None = None,
    template: str | None = None,
    regex: str | None = None,
    options: StoreOptions,
    allow_empty: bool = False,
    beside: bool = False,
) -> list[ObjectURL]:
    """Return the URLs of the objects of one source.

    ===============================  ====================================================================
    source                           gives
    ===============================  ====================================================================
    ``ais://bucket/prefix``          all objects whose names begin so (one named exactly ``x.tar``: only it)
    ``ais://bucket/s-{000..099}.tar``  these names, without a request
    SDK ``Bucket``                   all its objects
    SDK object group                 its names, without a request
    other ``AISSource`` objects      the result of their ``list_urls(prefix, etl)``
    object URL, web URL, ``-``       itself; braces are expanded
    local path                       itself; braces and ``* ? [`` are expanded
    local folder                     the shards in it (``.tar``, also compressed, ``.tgz``), by name
    several of these, ``a::b``       those of each, one after the other
    ===============================  ====================================================================

    Sample indexes in the bucket (below ``.index/``) and ``classes.json`` are left out.

    ``s3://``, ``gs://``, ``az://``, ``oci://`` name buckets in AIStore, as ``ais://`` does.

    Args:
        source: One of the above.
        prefix: Only names that begin so; comes after the prefix that the source itself has.
        etl: SDK ``ETLConfig`` of a transform to be applied to each object.
        etl_name: The transform's name, if it has no arguments.
        template: Brace template of names in the bucket; nothing is listed.
        regex: Only names in which this is found.
        options: Endpoint, token, retries. An SDK bucket brings its own endpoint, token and TLS settings.
        allow_empty: Return ``[]`` where there is nothing, instead of an error.
        beside: List the file with the names of the classes, next to the shards (``classes.json``), too.

    Returns:
        `ObjectURL`s, with size, checksum and version if they were listed and no transform changes them.

    Order: listings by name; templates and groups in their own order, as a shell would.
    Memory: about 500 bytes for each object; more than 10 million in one listing are an error.

    Raises:
        NotFoundError: No such bucket, or none of the requested objects in it.
        ConnectError, AuthError, StallError: The cluster does not answer, or not completely within the deadline.
        ReadError: It is not an AIStore, or a listed entry is invalid: the message names it.
        UsageError: The source is not of these kinds, or the endpoint is missing.

    Example:
        >>> options = StoreOptions(endpoint="http://h:51080")
        >>> list_objects("ais://pets/s-{0..1}.tar", options=options)[1]
        'http://h:51080/v1/objects/pets/s-1.tar?provider=ais'
    """
    (found,) = list_each(
        [source], prefix=prefix, etl=etl, etl_name=etl_name, template=template, regex=regex, options=options,
        allow_empty=allow_empty, beside=beside,
    )  # fmt: skip
    return found


def list_each(
    sources: Sequence[object],
    *,
    prefix: str = "",
    etl: object = None,
    etl_name: str | None = None,
    template: str | None = None,
    regex: str | None = None,
    options: StoreOptions,
    allow_empty: bool = False,
    beside: bool = False,
) -> Iterator[list[ObjectURL]]:
    """Yield what `list_objects` returns for each source.

    Many names or prefixes in one bucket take one listing, if there are not many more objects between them. A source
    that is not a valid name is an error before the first is listed.
    """
    try:
        pattern = re.compile(regex) if regex else None
    except re.error as error:
        raise UsageError.at(f"regex={regex!r} is no regular expression: {error}") from error
    listings = _Listings(options)
    wanted = _Selection(prefix, template, listings, _etl_params(etl, etl_name), etl, beside)
    if template is None:
        listings.cover(sources)
    for source in sources:
        listed = 0
        found: list[ObjectURL] = []
        for name, url in _candidates(source, wanted, options):
            listed += 1
            if pattern is None or pattern.search(name):
                found.append(url)
        if not found and not allow_empty:
            raise nothing_found(source, prefix, template, regex, listed)
        yield found


def _parts(source: object) -> list[str]:
    """Return the texts of a source, none if it is an object."""
    if type(source) is str:
        return _UNION.split(source)
    if isinstance(source, str):
        return [source]
    return [str(source)] if isinstance(source, Path) else []


def _candidates(source: Any, wanted: _Selection, options: StoreOptions) -> Iterator[tuple[str, ObjectURL]]:
    """Yield names and URLs of a source, before the regular expression."""
    if isinstance(source, str | Path):
        texts = _parts(source)
        return itertools.chain.from_iterable(_of_text(text, wanted, options) for text in texts)
    if is_bucket(source):
        return _of_bucket(_place_of(source), wanted, options_with(source.client, options))
    in_group = is_group(source)
    if not in_group and not hasattr(source, "list_urls"):
        raise UsageError.at(
            f"an object of type {type(source).__name__} is no source",
            todo="pass an SDK bucket or object group, ais://bucket/prefix, a brace template, an object URL or a path",
        )
    if wanted.template is not None:
        kind = "an object group" if in_group else f"a {type(source).__name__}"
        raise UsageError.at(f"template= needs a bucket, not {kind}", todo="leave it out")
    return _of_group(source, wanted, options) if in_group else _of_foreign(source, wanted, options)


def _uri(text: str, options: StoreOptions) -> tuple[Location, bool]:
    """Return the place of a text, and whether it is a URI, not a URL."""
    place = parse_url(text).at(options.endpoint)
    is_uri = place.kind == "object" and not text.lower().startswith(("http://", "https://"))
    if is_uri:
        place.require_endpoint()
    return place, is_uri


def _of_text(text: str, wanted: _Selection, options: StoreOptions) -> Iterator[tuple[str, ObjectURL]]:
    place, is_uri = _uri(text, options)
    if is_uri and "{" not in place.name:
        yield from _of_bucket(place, wanted, options)
        return
    if wanted.template is not None:
        raise UsageError.at(
            f"template= needs a bucket, and {redact(text)} is none",
            todo="pass ais://bucket",
            url=redact(text),
        )
    if place.kind == "object":
        # Braces of the query are arguments of a transform, not a template.
        path, mark, query = (place.name, "", "") if is_uri else text.partition("?")
        for one in expand_template(path):
            item = replace(place, name=one) if is_uri else parse_url(one + mark + query)
            if item.name.startswith(wanted.prefix):
                known = text if isinstance(text, ObjectURL) and one == path else None
                yield item.name, _url(item, wanted, known)
    elif place.kind == "file":
        for path in _local(place.name):
            yield path, ObjectURL(path)
    else:
        yield from ((one, ObjectURL(one)) for one in (expand_template(text) if "?" not in text else [text]))


def _local(pattern: str) -> Iterable[str]:
    for path in expand_template(pattern):
        if Path(path).is_dir():
            yield from _files(str(file) for file in Path(path).iterdir() if is_shard(file.name))
        elif glob.has_magic(path) and not Path(path).exists():
            # Path.glob knows no absolute patterns and drops a leading ./
            yield from _files(glob.glob(path, recursive=True))  # noqa: PTH207
        else:
            yield path


def _files(names: Iterable[str]) -> list[str]:
    """Return the files found in a folder, sorted; refuse pipes and devices."""
    found = sorted(names)
    for name in found:
        if not Path(name).is_dir() and (why := file_fault(name)):
            raise UsageError.at(f"{name}: {why}", todo="remove it, or name the shards", url=name)
    return found


def _of_bucket(place: Location, wanted: _Selection, options: StoreOptions) -> Iterator[tuple[str, ObjectURL]]:
    """List a bucket below the name in `place`, or expand a template there."""
    prefix = place.name + wanted.prefix
    if wanted.template is not None:
        for end in expand_template(wanted.template):
            name = place.name + end
            if name.startswith(prefix):
                yield name, _url(replace(place, name=name), wanted)
        return
    entries = wanted.listings.of(place, prefix, options)
    exact = [entry for entry in entries if entry.name == place.name and is_shard(entry.name)]
    for entry in exact or entries:
        if entry.name.startswith(INDEX_FOLDER) and not prefix.startswith(INDEX_FOLDER):
            continue  # files there are about the shards
        if not wanted.beside and _is_classes(entry.name) and not _is_classes(prefix):
            continue
        yield entry.name, _url(replace(place, name=entry.name), wanted, entry)


def _is_classes(name: str) -> bool:
    return name.rpartition("/")[2] == CLASSES_FILE


def _of_group(group: Any, wanted: _Selection, options: StoreOptions) -> Iterator[tuple[str, ObjectURL]]:
    place = _place_of(group.bck)
    items = call_once(
        lambda: list(group.list_all_objects_iter(prefix=wanted.prefix, props=None)),
        options_with(group.bck.client, options),
        described(group),
    )
    for item in items:
        yield item.name, _url(replace(place, name=item.name), wanted)


def _of_foreign(source: Any, wanted: _Selection, options: StoreOptions) -> Iterator[tuple[str, ObjectURL]]:
    """List a source that only has the SDK's interface."""
    etl = wanted.etl
    if etl is None and wanted.etl_params:
        etl = etl_config(wanted.etl_params["etl_name"])
    urls = call_once(
        lambda: sorted(source.list_urls(prefix=wanted.prefix, etl=etl), key=str), options, described(source)
    )
    for url in urls:
        place = parse_url(url).at(options.endpoint)
        yield place.name, url if isinstance(url, ObjectURL) else ObjectURL(place.url())


def _place_of(bucket: Any) -> Location:
    """Return where an SDK bucket is."""
    return bucket_place(bucket).at(resolve_options(client=bucket.client).endpoint)


def options_with(client: object, options: StoreOptions) -> StoreOptions:
    """Return `options` with those of the client of an SDK bucket."""
    own = resolve_options(client=client)
    return replace(
        options,
        endpoint=own.endpoint,
        token=own.token or options.token,
        ca_cert=own.ca_cert or options.ca_cert,
        client_cert=own.client_cert or options.client_cert,
        skip_verify=own.skip_verify or options.skip_verify,
    )


def _url(place: Location, wanted: _Selection, known: Entry | ObjectURL | None = None) -> ObjectURL:
    """Return the URL of an object; one of a transform has no metadata."""
    if wanted.etl_params:
        return ObjectURL(replace(place, params={**place.params, **wanted.etl_params}).url())
    if known is None or isinstance(known, ObjectURL):
        return known or ObjectURL(place.url())
    return ObjectURL(place.url(), known.size, known.checksum, known.version)


def _etl_params(etl: object, etl_name: str | None) -> dict[str, str]:
    """Return the query parameters of a transform."""
    if etl is None:
        return etl_query(etl_name)
    config = getattr(etl, "name", etl)  # an ETLConfig, an Etl, or a name
    pipeline = getattr(config, "pipeline", None) or getattr(etl, "pipeline", None)
    return etl_query(str(getattr(config, "name", config)), getattr(etl, "args", None), pipeline)
