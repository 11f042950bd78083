"""Before a conversion writes: new shards that would replace those that are read, or be read with them."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.shard_names import is_shard
from torchdata_ais.store import StoreOptions
from torchdata_ais.store.tokens import origin
from torchdata_ais.urls import Location, parse_url, redact
from torchdata_ais.writing.pattern import NUMBER, gives, is_web

_TODO = "write to a folder or prefix that is not read"


def check_not_read(
    pattern: str, shards: Iterable[str], store: Callable[[], StoreOptions], first: int = 0
) -> None:
    """Refuse to write over shards that are read.

    Args:
        pattern: Where the new shards go.
        shards: Those that are read.
        store: Gives the transport settings.
        first: The number of the first new shard.

    Raises:
        UsageError: The pattern gives the name of one of them.
    """
    place = parse_url(pattern)
    if is_web(pattern):
        return
    files: set[str] = set()
    if place.kind == "file":  # links are followed when a shard is written, too
        path = str(Path(place.name))  # as glob returns it
        names = glob.glob(NUMBER.sub("*", glob.escape(path.replace("%%", "%"))))  # noqa: PTH207 - text in
        files = {os.path.realpath(name) for name in names if gives(path, name, first)}
    for url in shards:
        source = parse_url(url)
        if source.kind != place.kind:
            continue
        if source.kind == "file":
            same = os.path.realpath(source.name) in files
        else:
            same = gives(place.name, source.name, first)
            same = same and _bucket(source, store) == _bucket(place, store)
        if same:
            raise UsageError.at(
                f"the shard {source.uri} is read, and would be written over",
                todo=_TODO,
                url=redact(pattern),
            )


def check_apart(pattern: str, sources: Any, store: Callable[[], StoreOptions], first: int = 0) -> None:
    """Refuse new shards that the same source would find beside the old ones: each sample would be there twice.

    Args:
        pattern: Where the new shards go.
        sources: What is read, as the user named it: one or a list. What is no text or path is not looked at.
        store: Gives the transport settings.
        first: The number of the first new shard.

    Raises:
        UsageError: They lie in the folder, prefix or pattern that is read.
    """
    place = parse_url(pattern)
    new = NUMBER.sub(lambda found: found[0] % first, place.name.replace("%%", "%"))
    if is_web(pattern):
        return
    for one in sources if isinstance(sources, list | tuple) else [sources]:
        if not isinstance(one, str | os.PathLike):
            continue
        text = os.fsdecode(one)
        source = parse_url(text)
        if source.kind != place.kind or "{" in source.name:
            continue
        if source.kind == "object":
            found = not is_shard(source.name) and new.startswith(source.name)
            found = found and _bucket(source, store) == _bucket(place, store)
        elif Path(source.name).is_dir():
            found = os.path.realpath(source.name) == os.path.realpath(Path(new).parent)
        else:
            found = PurePath(os.path.abspath(new)).match(os.path.abspath(source.name))  # noqa: PTH100 - text in
        if found:
            raise UsageError.at(
                f"the new shards would lie among those that are read, {redact(text)}: each sample would be there twice",
                todo=_TODO,
                url=redact(pattern),
            )


def _bucket(place: Location, store: Callable[[], StoreOptions]) -> tuple[object, ...]:
    """Return what tells the bucket of an object from all others."""
    endpoint = place.endpoint or store().endpoint
    return place.bucket, place.provider, place.namespace, origin(endpoint) if endpoint else ""
