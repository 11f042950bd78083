"""``torchdata-ais put``: files into a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from torchdata_ais.cli._run import AsJson, Endpoint, command, goes_on, options_for
from torchdata_ais.errors import NotFoundError, UsageError


@command("aistore.sdk", "rich.progress")
def put(
    source: Path,
    url: str,
    overwrite: bool = False,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    """Store a file or a folder of files; the bucket is made if it is missing.

    Names of a folder's files are their paths in it, put after the prefix as it stands. Objects that are there with the
    same bytes are left as they are, so the same command goes on after an interrupt.

    Args:
        source (SRC): A file, or a folder: all files below it.
        url: ais://bucket/name for a file; ais://bucket/ or ais://bucket/prefix/ to keep names.
        overwrite: Replace objects that hold something else.

    Examples:
        torchdata-ais put train-000.tar ais://pets/
        torchdata-ais put shards ais://pets/train/
        torchdata-ais put --json --overwrite shards ais://pets/
    """
    goes_on()
    from torchdata_ais.cli._bucket import Bucket, new_bucket, tell_stored
    from torchdata_ais.cli._objects import object_place
    from torchdata_ais.cli._progress import moved_bytes
    from torchdata_ais.urls import check_object

    if not source.exists():
        raise NotFoundError.at("no such file or folder", todo="name one that exists", url=str(source))
    if not source.is_dir() and not source.is_file():
        raise UsageError.at("this is no file but a device or a pipe", todo="name a file", url=str(source))
    where = object_place(url)
    if where.namespace:
        raise UsageError.at("put knows no namespaces", todo="use the AIStore SDK for it", url=url)
    if source.is_dir() and where.name[-1:].isalnum():
        raise UsageError.at(
            f"the names would begin with {where.name!r}, and no slash behind it",
            todo=f"write {url}/ for names below it, or {url}- for names such as {where.name}-000.tar",
            url=url,
        )
    files = dict(_named(source, where.name))
    if not files:
        raise NotFoundError.at("the folder holds no file", todo="name one that does", url=str(source))
    check_object(where)
    for name, path in files.items():
        check_object(replace(where, name=name), todo=f"rename the file {str(path)!r}")
    bucket = Bucket.of(where, options_for(endpoint, where.endpoint))
    with new_bucket(bucket):
        there = bucket.holds(list(files.items()), overwrite=overwrite)
        sizes = {name: path.stat().st_size for name, path in files.items() if name not in there}
        with moved_bytes("put", sum(sizes.values())) as moved:
            for name in sizes:
                bucket.put_file(name, files[name], moved)
    rows = [{"url": f"{bucket.uri}/{name}", "stored": name in sizes} for name in files]
    tell_stored(bucket, rows, sum(sizes.values()), as_json=as_json)


def _named(source: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    """Yield the name and the path of each file to store, sorted."""
    if not source.is_dir():
        yield (prefix + source.name if not prefix or prefix.endswith("/") else prefix), source
        return
    for path in sorted(found for found in source.rglob("*") if found.is_file()):
        yield prefix + path.relative_to(source).as_posix(), path
