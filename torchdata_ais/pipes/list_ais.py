"""``.list_ais()``: buckets, object groups, prefixes and templates to object URLs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import xxhash
from typing_extensions import override

from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.pipes._pipe import IterDataPipe, Pipe, stage
from torchdata_ais.pipes._transport import StageTransport
from torchdata_ais.store import StoreOptions, list_objects
from torchdata_ais.urls import ObjectURL, parse_url, redact

__all__ = ["AISSourceLister"]


class _Sources:
    """Holds the sources out of torch's sight: it would pickle a list of buckets at each look at the graph."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items


@stage("list_ais")
class AISSourceLister(Pipe[str]):
    r"""List the objects of AIStore sources as URLs (``.list_ais()``).

    Nothing is asked of the cluster before the first item is. Brace templates and object URLs need no listing at
    all. The listing is paged, without limit on its length, and the same in every worker. It is believed: an object
    that the cluster leaves out of it (while it moves objects, it says so, which is logged) is not missed, whereas one
    that a template names is.

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
        endpoint: ``http://proxy:51080``. Default: the client's, then ``AIS_ENDPOINT``.
        client: SDK client to take endpoint, token and TLS settings from.
        token: Bearer token. Default: the client's, then ``AIS_AUTHN_TOKEN``. It goes to the endpoint and its nodes
            only. Given here beside object URLs of one host, and without `endpoint` or `client`, it is meant for that
            host.
        allow_empty: Whether a source without objects is fine.

    Yields:
        `ObjectURL`: the object's http URL, a ``str`` with ``.size``, ``.checksum`` and ``.version`` where the listing
        knew them. Names that are no shards are yielded, too: leave them out with ``regex=r"\.tar$"``.

    Order:
        Sources in the order given; within a source by name; a template in the order of a shell.

    Memory:
        One source's URLs.

    Raises:
        NotFoundError: The bucket does not exist, or nothing in it matches.
        ConnectError, AuthError, ReadError: The cluster cannot be asked.
        UsageError: A source of another kind, or no endpoint known.

    Example:
        >>> list(AISSourceLister("ais://pets/train-{0..1}.tar", endpoint="http://h:51080"))
        ['http://h:51080/v1/objects/pets/train-0.tar?provider=ais', 'http://h:51080/v1/objects/pets/train-1.tar?provider=ais']
    """

    def __init__(
        self,
        ais_sources: Any,
        prefix: str = "",
        etl: Any = None,
        *,
        etl_name: str | None = None,
        template: str | None = None,
        regex: str | None = None,
        endpoint: str | None = None,
        client: Any = None,
        token: str | None = None,
        allow_empty: bool = False,
        options: StoreOptions | None = None,
    ) -> None:
        super().__init__(ais_sources)
        if etl is not None and etl_name is not None:
            raise UsageError.at("both etl= and etl_name= were given", todo="pass one of them")
        self._source: IterDataPipe[Any] | None = None
        self._sources: _Sources | None = None
        if isinstance(ais_sources, IterDataPipe):
            self._source = ais_sources
        else:
            self._sources = _Sources(
                list(ais_sources) if isinstance(ais_sources, (list, tuple)) else [ais_sources]
            )
            if client is None and endpoint is None:
                client = next((item.client for item in self._sources.items if hasattr(item, "client")), None)
        self._prefix = prefix
        self._etl = etl
        self._etl_name = etl_name
        self._template = template
        self._regex = regex
        self._allow_empty = allow_empty
        if token is not None and endpoint is None and client is None and self._sources is not None:
            endpoint = _one_host(self._sources.items)
        self._transport = StageTransport(options, client, endpoint, token)
        self._passes = 0
        self._listed: list[tuple[int, int]] = []

    def _arguments(self) -> str:
        shown = (
            [] if self._sources is None else [", ".join(_describe(item) for item in self._sources.items[:3])]
        )
        if self._sources is not None and len(self._sources.items) > 3:
            shown.append(f"... {len(self._sources.items)} sources")
        for name, value in (("prefix", self._prefix), ("etl_name", self._etl_name), ("template", self._template),
                            ("regex", self._regex)):  # fmt: skip
            if value:
                shown.append(f"{name}={value!r}")
        return ", ".join(shown)

    def __iter__(self) -> Iterator[str]:
        store = self._transport.resolve(self)
        sources = self._sources.items if self._sources is not None else self._source
        found = False
        self._passes += 1
        self._listed = []
        for source in () if sources is None else sources:
            urls = list_objects(
                source,
                prefix=self._prefix,
                etl=self._etl,
                etl_name=self._etl_name,
                template=self._template,
                regex=self._regex,
                options=store,
                allow_empty=self._allow_empty,
            )
            self._listed.append((len(urls), xxhash.xxh64_intdigest("\n".join(urls).encode())))
            found = found or bool(urls)
            yield from urls
        if not found and not self._allow_empty:
            raise NotFoundError.at("there is no source to list", todo="pass a bucket, or allow_empty=True")

    @override
    def _ais_stats(self) -> dict[str, Any]:
        # What a pipe of sources brings may be this worker's part already: no worker has the like of it.
        listed = {"pass": self._passes, "sources": list(self._listed)}
        return {**super()._ais_stats(), **({"listed": listed} if self._sources is not None else {})}


def _one_host(sources: list[Any]) -> str | None:
    """Return the address in object URLs that the program wrote, if all sources are such, of one host."""
    try:
        hosts = {parse_url(source).endpoint if isinstance(source, str) else "" for source in sources}
    except UsageError:
        return None  # said when the source is listed
    return hosts.pop() or None if len(hosts) == 1 else None


def _describe(source: Any) -> str:
    if isinstance(source, (str, ObjectURL)):
        return repr(redact(str(source)))
    name = getattr(source, "name", None)
    return f"{type(source).__name__}({name!r})" if name else type(source).__name__
