"""Checks before shards are written."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path, PurePath

from torchdata_ais._util.files import make_folder, naming, no_empty_folders
from torchdata_ais.errors import AISError, NotFoundError, UsageError
from torchdata_ais.errors.text import Remedy
from torchdata_ais.store import StoreOptions
from torchdata_ais.store.objects.pages import list_bucket
from torchdata_ais.store.transport.options import ONE_TRY
from torchdata_ais.store.transport.tokens import origin
from torchdata_ais.urls import Location, parse_url, redact
from torchdata_ais.urls.parsing import is_shard
from torchdata_ais.writing.manifest import NUMBER, check_pattern, gives, is_web, shards_there

_GO_ON = Remedy("remove them, write elsewhere", "pass resume=True with manifest=", "overwrite=True")


def prepare(
    pattern: str,
    store: Callable[[], StoreOptions],
    *,
    new: bool,
    todo: str = _GO_ON,
    is_mine: Callable[[int], bool] = lambda number: True,  # noqa: ARG005
) -> None:
    """Make the folder of the shards; refuse to mix new ones with old ones.

    If they are `new`, there may be none yet of the numbers that are mine: others are those of another part.
    """
    check_pattern(pattern)
    place = parse_url(pattern)
    folder = Path(place.name).parent
    if place.kind == "file" and not NUMBER.search(str(folder)):
        with naming(str(folder)):
            make_folder(folder)
    if new:
        refuse_existing(pattern, store, is_mine, todo)


def refuse_existing(
    pattern: str,
    store: Callable[[], StoreOptions],
    is_mine: Callable[[int], bool],
    todo: str = _GO_ON,
) -> None:
    """Raise `UsageError` if there are shards of the pattern with such numbers."""
    there = next((name for number, name in shards_there(pattern, store) if is_mine(number)), None)
    if there is not None:
        raise UsageError.at(
            f"there are shards of this pattern already, such as {there}",
            todo=todo,
            url=redact(pattern),
        )


def folder_of(pattern: str) -> AbstractContextManager[None]:
    """Remove empty folders made for the shards if the block fails."""
    place = parse_url(pattern)
    return no_empty_folders([Path(place.name).parent] if place.kind == "file" else [])


def check_bucket(
    name: str, options: Callable[[], StoreOptions], look: Callable[[], None] | None = None
) -> None:
    """Raise if an object's bucket does not exist, before shards are written.

    A shard is written for minutes before it is stored. Other errors of the cluster are raised when the shard is
    stored. `look` looks at what is there instead, and may raise `UsageError`.
    """
    place = parse_url(name)
    if place.kind != "object" and look is None:
        return
    try:
        settings = options() if place.kind == "object" else StoreOptions()
        place = place.at(settings.endpoint)
        place.require_endpoint()
        if look is not None:
            look()
        else:
            list_bucket(place, place.name, replace(settings, retry=ONE_TRY), first_page=True)
    except UsageError:
        raise
    except NotFoundError as error:
        bucket = replace(place, name="").uri
        raise NotFoundError.at(
            f"there is no bucket {bucket}",
            todo=f"make it first: client.bucket({place.bucket!r}).create(), or check the spelling",
            url=redact(name),
        ) from error
    except (AISError, FileNotFoundError):
        return


def check_place(name: str) -> None:
    """Refuse a path of this machine where no file can be written."""
    place = parse_url(name)
    if place.kind != "file":
        return
    if Path(place.name).is_dir():
        raise UsageError.at("this is a folder", todo="name a file in it", url=name)
    folder = Path(place.name).absolute().parent
    if not folder.is_dir():
        raise NotFoundError.at(
            f"there is no folder {folder}", todo="make it first, or write elsewhere", url=name
        )


_TODO = "write to a folder or prefix that is not read"


def check_not_read(
    pattern: str, shards: Iterable[str], store: Callable[[], StoreOptions], first: int = 0
) -> None:
    """Refuse to write over shards that are read."""
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


def check_apart(pattern: str, sources: object, store: Callable[[], StoreOptions], first: int = 0) -> None:
    """Refuse new shards that their own source would contain later.

    Only texts and paths are checked, of the source as the user named it.
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
    """Return a key that identifies the bucket of an object."""
    endpoint = place.endpoint or store().endpoint
    return place.bucket, place.provider, place.namespace, origin(endpoint) if endpoint else ""
