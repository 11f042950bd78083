"""Before shards are written: is there a place for them, and are there others of the same names?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from torchdata_ais.error_text import Remedy
from torchdata_ais.errors import AISError, NotFoundError, UsageError
from torchdata_ais.store import StoreOptions
from torchdata_ais.store.naming import make_folder, naming, no_empty_folders
from torchdata_ais.store.options import ONE_TRY
from torchdata_ais.store.pages import list_bucket
from torchdata_ais.urls import parse_url, redact
from torchdata_ais.writing.pattern import NUMBER, check_pattern, shards_there

_GO_ON = Remedy("remove them, write elsewhere", "pass resume=True with manifest=", "overwrite=True")


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
    if place.kind == "file" and not NUMBER.search(str(folder)):
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


@contextmanager
def folder_of(pattern: str) -> Iterator[None]:
    """Take away again, if what runs inside fails, the folders that it made for the shards, as far as they are empty."""
    place = parse_url(pattern)
    with no_empty_folders([Path(place.name).parent] if place.kind == "file" else []):
        yield


def check_bucket(name: str, options: Callable[[], StoreOptions]) -> None:
    """Raise if an object's bucket is not there: a shard is written for minutes before it is stored.

    Whatever else the cluster says, it says again when the shard is stored, and is asked again then.

    Raises:
        NotFoundError: There is no such bucket.
    """
    place = parse_url(name)
    if place.kind != "object":
        return
    settings = options()
    place = place.at(settings.endpoint)
    try:
        list_bucket(place, place.name, replace(settings, retry=ONE_TRY), first_page=True)
    except NotFoundError as error:
        bucket = replace(place, name="").uri
        raise NotFoundError.at(
            f"there is no bucket {bucket}",
            todo=f"make it first: client.bucket({place.bucket!r}).create(), or check the spelling",
            url=redact(name),
        ) from error
    except AISError:
        return


def check_place(name: str) -> None:
    """Refuse a path of this machine where no file can be written, before anything is made.

    Raises:
        UsageError: It is a folder.
        NotFoundError: Its folder is not there.
    """
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
