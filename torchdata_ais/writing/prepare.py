"""Before a conversion writes: is there a place for its shards, and are there others of the same names?"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from torchdata_ais.errors import UsageError
from torchdata_ais.store import StoreOptions, list_objects
from torchdata_ais.urls import parse_url, redact

__all__ = ["prepare"]

_NUMBER = re.compile(r"%[-+ 0]*\d*[di]")


_GO_ON = "remove them, write elsewhere, or pass resume=True with manifest=, or overwrite=True"


def prepare(pattern: str, store: Callable[[], StoreOptions], *, new: bool, todo: str = _GO_ON) -> None:
    """Make the folder of the shards; refuse to mix new ones with those of another time.

    Args:
        pattern: Where the shards go.
        store: Gives the transport settings.
        new: Whether there may be none yet.
        todo: What to do if there are some.

    Raises:
        UsageError: This is no pattern of shards, or there are some.
        NotFoundError: No such bucket.
    """
    place = parse_url(pattern)
    if not _NUMBER.search(pattern) or place.kind not in ("file", "object"):
        raise UsageError.at(
            f"the target {redact(pattern)!r} is no pattern of shards",
            todo="write out/train-%06d.tar or ais://bucket/train-%06d.tar",
        )
    names: list[str] = []
    if place.kind == "file":
        folder = Path(place.name).parent
        if _NUMBER.search(str(folder)):
            return
        folder.mkdir(parents=True, exist_ok=True)
        wanted = _numbered(Path(place.name).name)
        names = [path.name for path in folder.iterdir()] if new else []
    elif not pattern.lower().startswith(("http://", "https://")):
        wanted = _numbered(place.name)
        head = pattern[: _NUMBER.search(pattern).start()]  # type: ignore[union-attr]  # searched above
        found = list_objects(head, options=store(), allow_empty=True) if new else []
        names = [parse_url(url).name for url in found]
    there = next((name for name in names if wanted.fullmatch(name)), None)
    if there is not None:
        raise UsageError.at(
            f"there are shards of this pattern already, such as {there}",
            todo=todo,
            url=redact(pattern),
        )


def _numbered(pattern: str) -> re.Pattern[str]:
    return re.compile(r"\d+".join(re.escape(part) for part in _NUMBER.split(pattern.replace("%%", "%"))))
