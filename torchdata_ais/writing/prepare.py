"""Before a conversion writes: is there a place for its shards, and are there others of the same names?"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from torchdata_ais.error_text import Remedy
from torchdata_ais.errors import UsageError
from torchdata_ais.shard_names import is_shard
from torchdata_ais.store import StoreOptions, list_objects
from torchdata_ais.store.naming import make_folder, naming, no_empty_folders
from torchdata_ais.store.tokens import origin
from torchdata_ais.urls import Location, parse_url, redact

_NUMBER = re.compile(r"%[-+ 0]*\d*[di]")


_GO_ON = Remedy("remove them, write elsewhere", "pass resume=True with manifest=", "overwrite=True")
_APART = "write to a folder or prefix that is not read"


def check_pattern(pattern: str) -> None:
    """Raise `UsageError` if `pattern` names no series of shards."""
    if not _NUMBER.search(pattern) or parse_url(pattern).kind not in ("file", "object"):
        raise UsageError.at(
            f"the target {redact(pattern)!r} is no pattern of shards",
            todo="write out/train-%06d.tar or ais://bucket/train-%06d.tar",
        )


def prepare(
    pattern: str,
    store: Callable[[], StoreOptions],
    *,
    new: bool,
    todo: str = _GO_ON,
    is_mine: Callable[[int], bool] = lambda number: True,  # noqa: ARG005
) -> None:
    """Make the folder of the shards; refuse to mix new ones with those of another time.

    Args:
        pattern: Where the shards go.
        store: Gives the transport settings.
        new: Whether there may be none yet.
        todo: What to do if there are some.
        is_mine: Which numbers count: others are those of another part.

    Raises:
        UsageError: This is no pattern of shards, or there are some.
        NotFoundError: No such bucket.
    """
    check_pattern(pattern)
    place = parse_url(pattern)
    folder = Path(place.name).parent
    if place.kind == "file" and not _NUMBER.search(str(folder)):
        with naming(str(folder)):
            make_folder(folder)
    found = shards_there(pattern, store) if new else []
    there = next((name for number, name in found if is_mine(number)), None)
    if there is not None:
        raise UsageError.at(
            f"there are shards of this pattern already, such as {there}",
            todo=todo,
            url=redact(pattern),
        )


def shards_there(pattern: str, store: Callable[[], StoreOptions]) -> list[tuple[int, str]]:
    """Return the numbers and names of the shards of this pattern that are there; none if only folders have numbers."""
    place = parse_url(pattern)
    if place.kind == "file":
        folder = Path(place.name).parent
        if _NUMBER.search(str(folder)):
            return []
        with naming(str(folder)):
            names = [path.name for path in folder.iterdir()]
        wanted = _numbered(Path(place.name).name)
    elif _is_web(pattern):
        return []
    else:
        wanted = _numbered(place.name)
        head = pattern[: _NUMBER.search(pattern).start()]  # type: ignore[union-attr]  # searched by check_pattern
        names = [parse_url(url).name for url in list_objects(head, options=store(), allow_empty=True)]
    matches = ((name, wanted.fullmatch(name)) for name in names)
    return [(int(found[1]), name) for name, found in matches if found]


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
    if _is_web(pattern):
        return
    files: set[str] = set()
    if place.kind == "file":  # links are followed when a shard is written, too
        path = str(Path(place.name))  # as glob returns it
        names = glob.glob(_NUMBER.sub("*", glob.escape(path.replace("%%", "%"))))  # noqa: PTH207 - text in
        files = {os.path.realpath(name) for name in names if _gives(path, name, first)}
    for url in shards:
        source = parse_url(url)
        if source.kind != place.kind:
            continue
        if source.kind == "file":
            same = os.path.realpath(source.name) in files
        else:
            same = _gives(place.name, source.name, first)
            same = same and _bucket(source, store) == _bucket(place, store)
        if same:
            raise UsageError.at(
                f"the shard {source.uri} is read, and would be written over",
                todo=_APART,
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
    new = _NUMBER.sub(lambda found: found[0] % first, place.name.replace("%%", "%"))
    if _is_web(pattern):
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
                todo=_APART,
                url=redact(pattern),
            )


@contextmanager
def folder_of(pattern: str) -> Iterator[None]:
    """Take away again, if what runs inside fails, the folders that it made for the shards, as far as they are empty."""
    place = parse_url(pattern)
    with no_empty_folders([Path(place.name).parent] if place.kind == "file" else []):
        yield


def _gives(pattern: str, name: str, first: int) -> bool:
    """Return whether a number from `first` on makes `name` of the pattern."""
    found = _numbered(pattern).fullmatch(name)
    return found is not None and int(found[1]) >= first and pattern % int(found[1]) == name


def _is_web(pattern: str) -> bool:
    """Return whether ``%`` in the pattern may be a part of an encoded character, not of the number."""
    return pattern.lower().startswith(("http://", "https://"))


def _bucket(place: Location, store: Callable[[], StoreOptions]) -> tuple[object, ...]:
    """Return what tells the bucket of an object from all others."""
    endpoint = place.endpoint or store().endpoint
    return place.bucket, place.provider, place.namespace, origin(endpoint) if endpoint else ""


def _numbered(pattern: str) -> re.Pattern[str]:
    return re.compile(r"(\d+)".join(re.escape(part) for part in _NUMBER.split(pattern.replace("%%", "%"))))
