"""``.list_ais()``: buckets, object groups, prefixes and templates to object URLs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.stage.bound import MemoryBound
from torchdata_ais.stage.pipe import IterDataPipe, Pipe
from torchdata_ais.stage.registry import stage
from torchdata_ais.stage.transport import StageTransport
from torchdata_ais.store import (
    Cluster,
    ClusterNames,
    PackedURLs,
    StoreOptions,
    given_options,
    list_objects,
    options_with,
    resolve_options,
)
from torchdata_ais.urls import ObjectURL, expand_template, parse_url, redact

SourceKey = int | str
"""Which source of a lister: its number, or for a source that another pipe brings its text."""


class _Sources:
    """Holds the sources out of torch's sight: it would pickle a list of buckets at each look at the graph."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items


class _Given:
    """Holds what was listed elsewhere, out of torch's sight as well."""

    def __init__(self, urls: PackedURLs, parts: Sequence[tuple[SourceKey, int]]) -> None:
        self.urls = urls
        ends = accumulate(count for _, count in parts)
        self._parts = {key: (end - count, end) for (key, count), end in zip(parts, ends, strict=True)}

    def of(self, key: SourceKey) -> Iterator[ObjectURL] | None:
        """Return what the source of that key gives, if it was listed."""
        part = self._parts.get(key)
        return None if part is None else self.urls.part(*part)


@stage("list_ais")
class AISSourceLister(Pipe[str]):
    r"""List the objects of AIStore sources as URLs (``.list_ais()``).

    Nothing is asked of the cluster before the first item is. Brace templates and object URLs need no listing at
    all. The listing is paged, without limit on its length. `ais_loader`, `as_dataset` and this package's reading
    service list once, in the main process, and hand the listing to all workers (of sources that another pipe brings:
    where they are strings, paths or SDK buckets). It is believed: an object that the cluster leaves out of it (while
    it moves objects, it says so, which is logged) is not missed, whereas one that a template names is.

    Args:
        ais_sources: One source, a list or a pipe of them. A source is an SDK `Bucket` or object group (anything
            with the SDK's `AISSource` interface), ``ais://bucket``, ``ais://bucket/prefix``,
            ``ais://bucket/train-{000000..000146}.tar``, an object URL, the same of other providers (``s3://``...),
            or a local path.
        prefix: Only names that begin with it.
        etl: SDK `ETLConfig` of a transform to apply on the cluster to each object.
        etl_name: Name of that transform, if it takes no arguments.
        template: Brace template of names, expanded in each bucket instead of listing it.
        regex: Only names in which this regular expression is found.
        cluster: See `torchdata_ais.store.Cluster`. Default: that of the SDK buckets, then of ``AIS_ENDPOINT``.
        allow_empty: Whether a source without objects is fine.
        **named: Parts of `cluster` by version 0.1's names: ``endpoint client token options``. A `token` alone, beside
            object URLs of one host, is meant for that host.

    Yields:
        `ObjectURL`: the object's http URL, a ``str`` with ``.size``, ``.checksum`` and ``.version`` where the listing
        knew them. Names that are no shards are yielded, too: leave them out with ``regex=r"\.tar$"``.

    Order:
        Sources in the order given; within a source by name; a template in the order of a shell.

    Memory:
        One source's URLs.

        >>> AISSourceLister("ais://pets").memory_bound().text
        'the URLs of a source'

    Raises:
        NotFoundError: The bucket does not exist, or nothing in it matches.
        ConnectError, AuthError, ReadError: The cluster cannot be asked.
        UsageError: A source of another kind, or no endpoint known.

    Example:
        >>> list(AISSourceLister("ais://pets/train-{0..1}.tar", cluster="http://h:51080"))
        ['http://h:51080/v1/objects/pets/train-0.tar?provider=ais', 'http://h:51080/v1/objects/pets/train-1.tar?provider=ais']
    """

    transport: StageTransport

    def __init__(
        self,
        ais_sources: Any,
        prefix: str = "",
        etl: Any = None,
        *,
        etl_name: str | None = None,
        template: str | None = None,
        regex: str | None = None,
        cluster: Cluster = None,
        allow_empty: bool = False,
        **named: Unpack[ClusterNames],
    ) -> None:
        named_by = ais_sources if isinstance(ais_sources, IterDataPipe) else None
        super().__init__(named_by)
        if etl is not None and etl_name is not None:
            raise UsageError.at("both etl= and etl_name= were given", todo="pass one of them")
        self.named_by: IterDataPipe[Any] | None = named_by
        self.ready = named_by is None
        self._sources: _Sources | None = None
        if named_by is None:
            self._sources = _Sources(
                list(ais_sources) if isinstance(ais_sources, (list, tuple)) else [ais_sources]
            )
        self._prefix = prefix
        self._etl = etl
        self._etl_name = etl_name
        self._template = template
        self._regex = regex
        self._allow_empty = allow_empty
        items = [] if self._sources is None else self._sources.items
        self.transport = StageTransport(_options_of(items, cluster, named))
        self._given: _Given | None = None

    def count_named(self) -> int:
        """Return how many objects the sources that are templates name."""
        texts = [str(source) for source in self._sources.items] if self._sources is not None else []
        if self._template is not None:
            return len(texts) * sum(1 for _ in expand_template(self._template))
        return sum(sum(1 for _ in expand_template(text)) for text in texts if "{" in text)

    def memory_bound(self) -> MemoryBound:
        """Return what the stage holds at most in one process; see "Memory" above."""
        return MemoryBound("the URLs of a source")

    def arguments(self) -> str:
        shown = (
            [] if self._sources is None else [", ".join(_describe(item) for item in self._sources.items[:3])]
        )
        if self._sources is not None and len(self._sources.items) > 3:
            shown.append(f"... {len(self._sources.items)} sources")
        return ", ".join(shown + self._how())

    def _how(self) -> list[str]:
        named = {
            "prefix": self._prefix,
            "etl_name": self._etl_name,
            "template": self._template,
            "regex": self._regex,
        }
        return [f"{name}={value!r}" for name, value in named.items() if value]

    def _items(self) -> Iterator[str]:
        found = False
        for url in self._urls():
            found = True
            yield url
        if not found and not self._allow_empty:
            raise NotFoundError.at("there is no source to list", todo="pass a bucket, or allow_empty=True")

    def _urls(self) -> Iterator[ObjectURL]:
        given = self._given
        if given is not None and self._sources is not None:
            yield from given.urls
            return
        for key, source in self._keyed(self._sources.items if self._sources is not None else self.named_by):
            urls = None if given is None or key is None else given.of(key)
            yield from self._list(source) if urls is None else urls

    def packed(self) -> PackedURLs | None:
        """Return what was listed before; nothing is an error, which iterating raises."""
        given = None if self._given is None or self._sources is None else self._given.urls
        return given or None

    def _keyed(self, sources: Iterable[Any] | None) -> Iterator[tuple[SourceKey | None, Any]]:
        if self._sources is not None:
            yield from enumerate(self._sources.items)
            return
        for source in () if sources is None else sources:
            yield _key_of(source), source

    def _list(self, source: Any) -> list[ObjectURL]:
        return list_objects(
            source,
            prefix=self._prefix,
            etl=self._etl,
            etl_name=self._etl_name,
            template=self._template,
            regex=self._regex,
            options=self.transport.resolve(self),
            allow_empty=self._allow_empty,
        )

    def list_sources(self, sources: Iterable[Any] | None = None) -> dict[SourceKey, list[ObjectURL]]:
        """List now, and return the objects of each source; `give` makes use of it.

        Args:
            sources: All that the pipe of sources gives, if there is one.
        """
        return {key: self._list(source) for key, source in self._keyed(sources) if key is not None}

    def describe_sources(self, sources: Iterable[Any] | None = None) -> list[str]:
        """Return, for each source, what says which objects it stands for: nothing secret, and no endpoint."""
        how = "".join(f" {said}" for said in self._how())
        return [
            (redact(str(source)) if isinstance(source, (str, Path)) else _describe(source)) + how
            for _, source in self._keyed(sources)
        ]

    def named_sources(self) -> list[str]:
        """Return the sources as places: prefixes, templates, paths.

        Raises:
            UsageError: They are not known before the pipe is iterated, or stand for transformed objects.
        """
        if self._sources is None or self._etl is not None or self._etl_name is not None or self._regex:
            raise UsageError.at(
                "an index is found by a prefix or a template, not by what a pipe, an ETL or regex= picks out",
                todo="open it by SampleIndex.open(prefix), and select from it",
            )
        return [_place_named(source, self._prefix, self._template) for source in self._sources.items]

    def endpoint(self) -> str | None:
        """Return the endpoint of the URLs listed, if one is known."""
        return self.transport.resolve(self).endpoint

    def give(self, urls: PackedURLs | None, parts: Sequence[tuple[SourceKey, int]] = ()) -> None:
        """Take these objects instead of listing, until None is given.

        Args:
            urls: What `list_sources` returned, here or in another process, one source after the other.
            parts: The key of each source, and how many of the URLs are its. A source that another pipe brings, and
                which is not among them, is listed.
        """
        self._given = None if urls is None else _Given(urls, parts)


def _place_named(source: Any, prefix: str, template: str | None) -> str:
    """Return a source and what was said of it as one place."""
    if isinstance(source, (str, Path)):
        text = str(source)
    else:  # a bucket of the SDK
        text = f"{getattr(source, 'provider', 'ais')}://{getattr(source, 'name', source)}"
    more = template or prefix
    return f"{text.rstrip('/')}/{more}" if more else text


def _key_of(source: Any) -> str | None:
    """Return what tells a source from others, in every process alike; None if that is not known."""
    if isinstance(source, (str, Path)):
        return str(source)
    if type(source).__name__ == "Bucket":
        return f"{getattr(source, 'provider', '')}://{getattr(source, 'namespace', '')}/{getattr(source, 'name', '')}"
    return None


def _options_of(sources: list[Any], cluster: Cluster, named: ClusterNames) -> StoreOptions | None:
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


def _describe(source: Any) -> str:
    if isinstance(source, (str, Path)):
        return repr(redact(str(source)))
    name = getattr(source, "name", None)
    return f"{type(source).__name__}({name!r})" if name else type(source).__name__
