"""``.list_ais()``: buckets, object groups, prefixes, templates to URLs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.pipes.base.contract import MemoryBound
from torchdata_ais.pipes.base.pipe import IterDataPipe, Pipe
from torchdata_ais.pipes.base.registry import stage
from torchdata_ais.pipes.base.sources import StageTransport, describe, key_of, options_of, place_named
from torchdata_ais.store import Cluster, PackedURLs, StoreOptions, list_each
from torchdata_ais.urls import ObjectURL, expand_template, redact

SourceKey = int | str
"""Which source of a lister: its number, or for a source that another pipe brings its text."""


class _Sources:
    """Holds sources out of torch's sight, which pickles lists at each look."""

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
    all; many names or prefixes of one bucket need one. The listing is paged, without limit on its length.
    `ais_loader`, `as_dataset` and this package's reading service list once, in the main process, and hand the listing
    to all workers (of sources that another pipe brings: where they are strings, paths or SDK buckets). It is
    believed: an object that the cluster leaves out of it (while it moves objects, it says so, which is logged) is
    not missed, whereas one that a template names is.

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

    Yields:
        `ObjectURL`: the object's http URL, a ``str`` with ``.size``, ``.checksum`` and ``.version`` where the listing
        knew them. Names of other objects are yielded, too: leave them out with ``regex=r"\.tar$"``.

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
        ais_sources: object,
        prefix: str = "",
        etl: object = None,
        *,
        etl_name: str | None = None,
        template: str | None = None,
        regex: str | None = None,
        cluster: Cluster = None,
        allow_empty: bool = False,
    ) -> None:
        named_by = ais_sources if isinstance(ais_sources, IterDataPipe) else None
        super().__init__(named_by)
        if etl is not None and etl_name is not None:
            raise UsageError.at("both etl= and etl_name= were given", todo="pass one of them")
        self.named_by: IterDataPipe[object] | None = named_by
        self.ready = named_by is None
        items = list(ais_sources) if isinstance(ais_sources, (list, tuple)) else [ais_sources]
        self._sources = _Sources(items if named_by is None else [])
        self._wanted: dict[str, Any] = {
            "prefix": prefix,
            "etl": etl,
            "etl_name": etl_name,
            "template": template,
            "regex": regex,
            "allow_empty": allow_empty,
        }
        self.transport = StageTransport(options_of(self._sources.items, cluster))
        self._given: _Given | None = None

    def count_named(self) -> int:
        """Return how many objects the sources that are templates name."""
        template = self._wanted["template"]
        named = [str(source) for source in self._sources.items]
        if template is not None:
            return len(named) * sum(1 for _ in expand_template(template))
        return sum(sum(1 for _ in expand_template(text)) for text in named if "{" in text)

    def read_classes(self) -> tuple[str, ...] | Mapping[str, tuple[str, ...]] | None:
        """Return the names of the classes in ``classes.json`` next to the shards.

        They are by label; None if there are none, or of sources that are no strings or paths.
        """
        from torchdata_ais.index.classes import by_label, class_names_of  # with pyarrow

        named = [str(one) for one in self._sources.items if isinstance(one, str | Path)]
        return by_label(class_names_of(named, self.transport.resolve(self)))

    def memory_bound(self) -> MemoryBound:
        return MemoryBound("the URLs of a source")

    def arguments(self) -> str:
        items = self._sources.items
        shown = [describe(item) for item in items[:3]]
        if len(items) > 3:
            shown.append(f"... {len(items)} sources")
        return ", ".join(shown + self._how())

    def _how(self) -> list[str]:
        said = {name: self._wanted[name] for name in ("prefix", "etl_name", "template", "regex")}
        return [f"{name}={value!r}" for name, value in said.items() if value]

    def _items(self) -> Iterator[str]:
        found = False
        for url in self._urls():
            found = True
            yield url
        if not found and not self._wanted["allow_empty"]:
            raise NotFoundError.at("there is no source to list", todo="pass a bucket, or allow_empty=True")

    def _urls(self) -> Iterator[ObjectURL]:
        given = self._given
        if given is not None and self.named_by is None:
            yield from given.urls
            return
        options = self.transport.resolve(self)
        if self.named_by is None:
            yield from chain.from_iterable(self._each(self._sources.items, options))
            return
        for source in self.named_by:
            key = key_of(source)
            urls = None if given is None or key is None else given.of(key)
            yield from next(self._each([source], options)) if urls is None else urls

    def packed(self) -> PackedURLs | None:
        """Return the earlier listing. An empty one is an error when iterating."""
        given = None if self._given is None or self.named_by is not None else self._given.urls
        return given or None

    def _keyed(self, sources: Iterable[object] | None) -> Iterator[tuple[SourceKey | None, object]]:
        yield from enumerate(self._sources.items)  # there are some of one kind only
        for source in () if sources is None else sources:
            yield key_of(source), source

    def _each(self, sources: Sequence[object], options: StoreOptions) -> Iterator[list[ObjectURL]]:
        return list_each(sources, options=options, **self._wanted)

    def list_sources(self, sources: Iterable[object] | None = None) -> dict[SourceKey, list[ObjectURL]]:
        """List now, and return the objects of each source; `give` makes use of it.

        Args:
            sources: All that the pipe of sources gives, if there is one.
        """
        named = [(key, source) for key, source in self._keyed(sources) if key is not None]
        found = self._each([source for _, source in named], self.transport.resolve(self))
        return {key: urls for (key, _), urls in zip(named, found, strict=True)}

    def describe_sources(self, sources: Iterable[object] | None = None) -> list[str]:
        """Return the identity of the objects of each source.

        It contains neither secrets nor endpoints.
        """
        how = "".join(f" {said}" for said in self._how())
        return [
            (redact(str(source)) if isinstance(source, (str, Path)) else describe(source)) + how
            for _, source in self._keyed(sources)
        ]

    def named_sources(self) -> list[str]:
        """Return the sources as places: prefixes, templates, paths.

        Raises:
            UsageError: They are not known before the pipe is iterated, or stand for transformed objects.
        """
        wanted = self._wanted
        transformed = wanted["etl"] is not None or wanted["etl_name"] is not None
        if self.named_by is not None or transformed or wanted["regex"]:
            raise UsageError.at(
                "an index is found by a prefix or a template, not by what a pipe, an ETL or regex= picks out",
                todo="open it by SampleIndex.open(prefix), and select from it",
            )
        return [place_named(source, wanted["prefix"], wanted["template"]) for source in self._sources.items]

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
