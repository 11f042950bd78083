"""Where an index lies: beside the shards, by one rule, or wherever it was put."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.index.folder import Folder, LocalFolder, RemoteFolder
from torchdata_ais.index.form import TABLE
from torchdata_ais.shard_names import INDEX_FOLDER
from torchdata_ais.store import StoreOptions, cluster_options, list_objects
from torchdata_ais.urls import ShardPlaces, expand_template, parse_url, redact

_PATTERN = "{*?["  # where the fixed beginning of a name ends


def index_place(source: str | os.PathLike[str]) -> str:
    """Return where the index of the shards of a prefix, template, pattern, folder or bucket lies.

    That is ``.index/`` in the bucket's root, or in the folder of local shards, and below it the fixed beginning of the
    shards' names. A slash at its end is written ``%2F``, so that each prefix has a place of its own.

    Raises:
        UsageError: Shards on a web server or on standard input have none.

    Example:
        >>> index_place("ais://pets/train-{000..099}.tar"), index_place("ais://pets/train-")
        ('ais://pets/.index/train-', 'ais://pets/.index/train-')
        >>> index_place("ais://pets"), index_place("s3://pets/a/b/"), index_place("/data/pets/s-*.tar")
        ('ais://pets/.index', 's3://pets/.index/a/b%2F', '/data/pets/.index/s-')
    """
    text = os.fspath(source)
    place = parse_url(text)
    if place.kind == "object":
        name = fixed_beginning(place.name)
        below = f"{name[:-1]}%2F" if name.endswith("/") else name
        named = replace(place, name=f"{INDEX_FOLDER}{below}".rstrip("/"), params={})
        return named.url() if place.endpoint else named.uri
    if place.kind != "file":
        raise UsageError.at(
            f"the shards of {redact(text)} have no place of their own for an index",
            todo="say where: a folder, or ais://bucket/name",
            url=redact(text),
        )
    path = Path(place.name)
    if path.is_dir():
        return str(path / INDEX_FOLDER)
    fixed = fixed_beginning(place.name)
    folder, _, base = fixed.rpartition("/")
    return str(Path(folder or ("/" if fixed.startswith("/") else "."), INDEX_FOLDER, base))


def fixed_beginning(name: str) -> str:
    """Return how all names begin that a template or a pattern stands for."""
    return name[: min((at for mark in _PATTERN if (at := name.find(mark)) >= 0), default=len(name))]


def named_shards(where: str | os.PathLike[str]) -> list[str] | None:
    """Return the shards that a template or a pattern names, as indexes name them; None for all that lie there.

    Example:
        >>> named_shards("ais://pets/train-{8..9}.tar"), named_shards("ais://pets/train-")
        (['ais://pets/train-8.tar', 'ais://pets/train-9.tar'], None)
    """
    text = os.fspath(where)
    place = parse_url(text)
    if place.kind == "object" and "{" in place.name:
        return [replace(place, name=name, params={}).uri for name in expand_template(place.name)]
    if place.kind == "file" and fixed_beginning(place.name) != place.name and not Path(place.name).exists():
        return [parse_url(url).uri for url in list_objects(text, options=StoreOptions(), allow_empty=True)]
    return None


ShardsFrom = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
"""Places whose shards an index may name: one, several, or none beyond its own."""


def shard_places(given: ShardsFrom) -> ShardPlaces:
    """Return the places that the argument ``shards_from=`` names.

    Raises:
        UsageError: It is neither a place nor a list of places.
    """
    several = [given] if isinstance(given, str | os.PathLike) else given or ()
    if not isinstance(several, Sequence) or not all(isinstance(one, str | os.PathLike) for one in several):
        raise UsageError.at(
            f"shards_from={given!r:.60}: expected a bucket, a prefix or a folder, or a list of them",
            todo='pass shards_from="ais://bucket/"',
        )
    return ShardPlaces.of(several)


def folder_at(where: str | os.PathLike[str], options: StoreOptions) -> Folder:
    """Return the folder `where` names itself: a path, or the URL of a prefix."""
    text = os.fspath(where)
    place = parse_url(text)
    if place.kind == "file":
        return LocalFolder(place.name)
    if place.kind == "stdin":
        raise UsageError.at("an index is no stream", todo="name a folder, a bucket or a URL")
    return RemoteFolder(text, options)


def found_folder(where: str | os.PathLike[str], options: StoreOptions) -> tuple[Folder, ShardPlaces]:
    """Return the folder of the index that belongs to `where`, or that lies there.

    And the places whose shards it may name: what `where` names; of an index named by its own folder the bucket, the
    web server, or the folder of the shards that it lies in.

    Raises:
        NotFoundError: Neither is there.
    """
    tried = []
    for folder, place in _candidates(os.fspath(where), options):
        tried.append(folder.where)
        if folder.has(TABLE):
            return folder, ShardPlaces.of([place])
    shown = redact(os.fspath(where))
    raise NotFoundError.at(
        f"{shown}: there is no sample index ({TABLE} is not in {' nor in '.join(tried)})",
        todo=f"build it: torchdata-ais index {shown}",
        url=shown,
    )


def _candidates(where: str, options: StoreOptions) -> Iterator[tuple[Folder, str]]:
    if where.endswith(f"/{TABLE}"):
        folder = where.removesuffix(TABLE)
        yield folder_at(folder, options), place_around(folder)
        return
    place = parse_url(where)
    if place.kind == "file":
        yield LocalFolder(place.name), place_around(where)
        beside = index_place(where)
        yield folder_at(beside, options), place_around(beside)
    else:
        if place.kind == "object" and not place.name.startswith(INDEX_FOLDER):
            yield folder_at(index_place(where), options), replace(place, params={}).uri
        if place.name:
            yield folder_at(where, options), place_around(where)


def place_around(folder: str) -> str:
    """Return the place whose shards an index may name that is named by its own folder.

    Example:
        >>> place_around("ais://pets/.index/train-"), place_around("/data/pets/.index/train-")
        ('ais://pets', '/data/pets')
        >>> place_around("http://h:8080/pets/index?sig=1")
        'http://h:8080/'
    """
    place = parse_url(folder)
    if place.kind == "object":
        return replace(place, name="", params={}).uri
    if place.kind == "http":
        return urlsplit(place.name)._replace(path="/", query="", fragment="").geturl()
    before, found, _ = f"{place.name}/".rpartition(f"/{INDEX_FOLDER}")
    if not found and place.name.startswith(INDEX_FOLDER):
        return "."
    return (before or "/") if found else place.name


def options_for(where: str | os.PathLike[str], given: StoreOptions | None) -> StoreOptions:
    """Return how to reach `where`; for a path of this machine nothing is looked for."""
    if given is None and parse_url(os.fspath(where)).kind == "file":
        return StoreOptions()
    return cluster_options(given)
