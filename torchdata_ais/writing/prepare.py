"""Before a conversion writes: is there a place for its shards, and are there others of the same names?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torchdata_ais.error_text import Remedy
from torchdata_ais.errors import UsageError
from torchdata_ais.store import StoreOptions, list_objects
from torchdata_ais.store.naming import make_folder, naming, no_empty_folders
from torchdata_ais.urls import parse_url, redact

_NUMBER = re.compile(r"%[-+ 0]*\d*[di]")


_GO_ON = Remedy("remove them, write elsewhere", "pass resume=True with manifest=", "overwrite=True")


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
    names: list[str] = []
    if place.kind == "file":
        folder = Path(place.name).parent
        if _NUMBER.search(str(folder)):
            return
        with naming(str(folder)):
            make_folder(folder)
            names = [path.name for path in folder.iterdir()] if new else []
        wanted = _numbered(Path(place.name).name)
    elif not pattern.lower().startswith(("http://", "https://")):
        wanted = _numbered(place.name)
        head = pattern[: _NUMBER.search(pattern).start()]  # type: ignore[union-attr]  # searched above
        found = list_objects(head, options=store(), allow_empty=True) if new else []
        names = [parse_url(url).name for url in found]
    matches = ((name, wanted.fullmatch(name)) for name in names)
    there = next((name for name, found in matches if found and is_mine(int(found[1]))), None)
    if there is not None:
        raise UsageError.at(
            f"there are shards of this pattern already, such as {there}",
            todo=todo,
            url=redact(pattern),
        )


@contextmanager
def folder_of(pattern: str) -> Iterator[None]:
    """Take away again, if what runs inside fails, the folders that it made for the shards, as far as they are empty."""
    place = parse_url(pattern)
    with no_empty_folders([Path(place.name).parent] if place.kind == "file" else []):
        yield


def _numbered(pattern: str) -> re.Pattern[str]:
    return re.compile(r"(\d+)".join(re.escape(part) for part in _NUMBER.split(pattern.replace("%%", "%"))))
