"""What there is beside an object that is not there: most such errors are templates that reach too far."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from torchdata_ais.errors import AISError, NotFoundError
from torchdata_ais.store.options import ONE_TRY, StoreOptions
from torchdata_ais.store.pages import list_bucket
from torchdata_ais.urls import parse_url

_NUMBER = re.compile(r"(?<!\d)\d+(?!\d)(?=\D*\Z)")


def with_neighbours(error: NotFoundError, url: str, options: StoreOptions, named: int = 0) -> NotFoundError:
    """Return the error about the missing object `url` with what else there is: asked for once, one page of it.

    Args:
        error: What is returned where the name has no number, or the cluster does not say more.
        url: The object's URL, or a path.
        options: How to reach the cluster.
        named: How many objects templates named; 0 if they were not counted.
    """
    place = parse_url(url)
    stem, found, _ = place.name.rpartition("/")
    number = _NUMBER.search(place.name, len(stem) + len(found))
    if number is None or place.kind in ("http", "stdin"):
        return error
    prefix = place.name[: number.start()]
    try:
        if place.kind == "file":
            folder = Path(place.name).parent
            names = sorted(str(folder / one.name) for one in folder.iterdir())
            names = [name for name in names if name.startswith(prefix)]
            where, uri = "the folder", place.name
        else:
            entries = list_bucket(place, prefix, replace(options, retry=ONE_TRY), first_page=True)
            names = [entry.name for entry in entries]
            where, uri = "the bucket", place.uri
    except (AISError, OSError):
        return error
    if place.name in names:
        return error  # the cluster lists it and does not give it: that is another matter
    beginning = prefix.rpartition("/")[2]
    there = f"{len(names)} that begin with {beginning!r}" if names else f"none that begins with {beginning!r}"
    wanted = f"{named} objects are named by templates, and " if named else ""
    todo = "check the spelling of bucket and name"
    if names:
        todo = f"name only what is there, {names[0]} to {names[-1]}"
    told = NotFoundError.at(f"{uri} does not exist: {wanted}{where} has {there}", todo=todo, **error.place)
    told.status = error.status
    told.__cause__, told.__suppress_context__ = error.__cause__, True
    return told
