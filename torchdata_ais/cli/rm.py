"""``torchdata-ais rm``: objects, prefixes and buckets, away."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from torchdata_ais.cli._echo import echo
from torchdata_ais.cli._run import Endpoint, command, goes_on, options_for
from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.shown import bytes_text, count_text

if TYPE_CHECKING:
    from torchdata_ais.store import StoreOptions
    from torchdata_ais.urls import ObjectURL


@command("torchdata_ais.store", "rich.progress")
def rm(
    urls: list[str],
    recursive: Annotated[bool, typer.Option("--recursive", "-r")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False,
    endpoint: Endpoint = "",
) -> None:
    """Remove objects, prefixes and buckets.

    What is to go is looked up first; if anything is not there, nothing is removed. With --recursive it asks before;
    where nobody can answer, it wants --yes.

    Args:
        urls (URL...): ais://bucket/object. With -r also a prefix, a template or a bucket.
        recursive: Remove all objects whose names begin so, or that a template names; of a bucket, the bucket, too.
        yes: Do not ask.

    Examples:
        torchdata-ais rm ais://pets/train-000.tar
        torchdata-ais rm -r ais://pets/old/
        torchdata-ais rm -r --yes ais://scratch
    """
    goes_on()
    from torchdata_ais.cli._bucket import Bucket
    from torchdata_ais.cli._objects import object_place
    from torchdata_ais.cli._progress import progress
    from torchdata_ais.store import delete_object

    options = options_for(endpoint)
    buckets = [place for place in map(object_place, urls) if not place.name and recursive]
    found = {str(one): one for url in urls for one in _found(url, recursive, options)}
    what = f"{count_text(len(found), 'object')}, {bytes_text(sum(one.size or 0 for one in found.values()))}"
    if buckets:
        what += f", and {count_text(len(buckets), 'bucket')}: {', '.join(place.uri for place in buckets)}"
    if recursive and not yes:
        _ask(what)
    with progress("rm", "object", len(found)) as advance:
        for one in found.values():
            delete_object(one, options, missing_ok=recursive)
            advance(1)
    for place in buckets:
        Bucket.of(place, options).delete()
    echo(f"removed {what}")


def _found(url: str, recursive: bool, options: StoreOptions) -> list[ObjectURL]:
    """Return what is to go for one URL."""
    from torchdata_ais.cli._objects import is_member, named_objects, object_place
    from torchdata_ais.store import head_object, list_objects

    place = object_place(url)
    template = "{" in place.name
    if recursive:
        if template:
            return named_objects(url, options)
        if not place.name and place.provider != "ais":
            raise UsageError.at("a bucket of another provider stays", todo="name a prefix in it", url=url)
        return list_objects(url, options=options, beside=True, allow_empty=not place.name)
    if not place.name or place.name.endswith("/"):
        raise UsageError.at("this names no object", todo="pass --recursive to remove all below it", url=url)
    try:
        return [head_object(url, options)]
    except NotFoundError as error:
        if is_member(url, options):
            raise UsageError.at(
                "a shard is not changed in place",
                todo="write a new one: torchdata-ais convert --select",
                url=url,
            ) from None
        objects = (
            named_objects(url, options)
            if template
            else list_objects(url, options=options, beside=True, allow_empty=True)
        )
        raise error.noting(
            f"--recursive removes {count_text(len(objects), 'object')} that "
            + ("the template names" if template else "begin so")
            if objects
            else "nothing is removed"
        ) from None


def _ask(what: str) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError.at(f"nobody is here to ask about {what}", todo="pass --yes")
    echo(f"About to remove {what}.", err=True)
    typer.confirm("Remove?", abort=True, err=True)
