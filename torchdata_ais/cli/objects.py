"""ls, cat, cp, get, put and rm."""

from __future__ import annotations

import codecs
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchdata_ais._util.formatting import bytes_text, count_text
from torchdata_ais.cli._output import bytes_out, echo, echo_json
from torchdata_ais.cli._run import AsJson, Endpoint, command, goes_on, options_for
from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.errors.text import Remedy
from torchdata_ais.urls import PROVIDERS, parse_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchdata_ais.cli._objects import Found
    from torchdata_ais.store import StoreOptions
    from torchdata_ais.urls import ObjectURL


_SYSTEM = re.compile(r"ais://\.sys-")  # buckets in which a cluster keeps its own objects
_SCHEME = re.compile(r"(?P<scheme>\w*)://")


@command("torchdata_ais.store")
def ls(
    url: Annotated[str, typer.Argument()] = "",
    regex: str = "",
    long: Annotated[bool, typer.Option("--long", "-l")] = False,
    all_: Annotated[bool, typer.Option("--all", "-a")] = False,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    r"""List buckets, the objects of a bucket or prefix, or a shard's members.

    All that a template names must be there.

    Args:
        url: ais://bucket, ais://bucket/prefix, a template, or the same of s3://, gs://, az://; ais://bucket/shard.tar/
            for the members of a shard. Without it, or ais://: the buckets.
        regex: Only names in which this is found, such as '\.tar$'.
        long: Show bytes, checksums and versions; of members the offset.
        all_: Show buckets of the cluster itself, too, such as .sys-inventory.
        as_json: Print one JSON array.

    Examples:
        torchdata-ais ls
        torchdata-ais ls -l ais://pets/train-
        torchdata-ais ls --regex '\.tar$' ais://pets
        torchdata-ais ls ais://pets/train-000.tar/
    """
    from torchdata_ais.cli._objects import object_place

    scheme = _SCHEME.fullmatch(url)
    if url and not scheme:
        object_place(url)
    options = options_for(endpoint)
    if not url or scheme:
        rows = _buckets(scheme["scheme"] if scheme else "", options)
        rows = [row for row in rows if all_ or not _SYSTEM.match(row["url"])]
        what = "bucket"
    elif url.endswith("/") and _is_shard(url, options):
        rows = _members(url.rstrip("/"), options)
        what = "member"
    else:
        rows = _objects(url, regex, options)
        what = "object"
    if regex and what != "object":
        rows = [row for row in rows if re.search(regex, row["url"])]
    if as_json:
        echo_json(rows, indent=1)
        return
    for row in rows:
        echo(_line(row, long))
    total = f", {bytes_text(sum(row['size'] or 0 for row in rows))}" if what != "bucket" else ""
    echo(f"{count_text(len(rows), what)}{total}", err=True)


def _line(row: dict[str, Any], long: bool) -> str:
    if "size" not in row:
        return str(row["url"])
    size = row["size"]
    if not long:
        return f"{'?' if size is None else bytes_text(size):>10}  {row['url']}"
    is_member = "offset" in row
    more = f"@{row['offset']:<12}" if is_member else f"{row['checksum'] or '-':16}  v{row['version'] or '-'}"
    return f"{'?' if size is None else size:>12}  {more}  {row['url']}"


def _buckets(scheme: str, options: StoreOptions) -> list[dict[str, Any]]:
    from torchdata_ais.store import list_buckets

    if scheme and scheme.lower() not in PROVIDERS:
        raise UsageError.at(f"unknown scheme {scheme!r}", todo=f"use one of {', '.join(PROVIDERS)}")
    return [{"url": place.uri} for place in list_buckets(options, PROVIDERS.get(scheme.lower(), ""))]


def _objects(url: str, regex: str, options: StoreOptions) -> list[dict[str, Any]]:
    from torchdata_ais.cli._objects import named_objects, object_place
    from torchdata_ais.store import list_objects

    place = object_place(url)
    if "{" in place.name:
        found = named_objects(url, options, regex)
    else:
        found = list_objects(
            url, regex=regex or None, options=options, beside=True, allow_empty=not place.name and not regex
        )
    return [
        {"url": parse_url(one).uri, "size": one.size, "checksum": one.checksum, "version": one.version}
        for one in found
    ]


def _is_shard(url: str, options: StoreOptions) -> bool:
    from torchdata_ais.store import object_exists
    from torchdata_ais.urls.parsing import is_shard

    return is_shard(url.rstrip("/")) and object_exists(url.rstrip("/"), options)


def _members(url: str, options: StoreOptions) -> list[dict[str, Any]]:
    """Read a shard to its end, and return its contents."""
    from torchdata_ais.store import open_blocks
    from torchdata_ais.tar import TarReader, decompress

    rows = []
    with open_blocks(url, options) as source:
        for name, data, offset, _ in TarReader(decompress(source, url=url), url=url):
            size = len(data) if isinstance(data, bytes) else 0  # a link has none
            rows.append({"url": f"{url}/{name}", "size": size, "offset": offset})
    return rows


@command("torchdata_ais.store")
def cat(
    urls: list[str],
    endpoint: Endpoint = "",
) -> None:
    """Write objects, or members of shards, to standard output.

    Names are whole ones: a prefix is refused. A terminal is shown text alone, with control characters spelled out.

    Args:
        urls (URL...): ais://bucket/object, a template, or ais://bucket/shard.tar/member.jpg.

    Examples:
        torchdata-ais cat ais://pets/classes.json
        torchdata-ais cat ais://pets/train-000.tar/cat/0001.jpg > cat.jpg
        torchdata-ais cat ais://pets/train-000.tar | tar t
    """
    from torchdata_ais.cli._objects import find

    options = options_for(endpoint)
    for url in urls:
        for found in find(url, options, prefix=False):
            _to_standard_output(found, options)


def _to_standard_output(found: Found, options: StoreOptions) -> None:
    """Write an object or a member; to a terminal text alone."""
    from torchdata_ais.cli._objects import blocks_of

    with blocks_of(found, options) as blocks:
        if sys.stdout is not None and sys.stdout.isatty():
            _show(blocks, found.uri)
            return
        with bytes_out() as out:
            for block in blocks:
                out.write(block)


def _show(blocks: Iterable[bytes], uri: str) -> None:
    """Show text as it comes, line after line."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    rest = ""
    try:
        for block in blocks:
            if b"\0" in block:
                raise UnicodeError
            *lines, rest = (rest + decoder.decode(block)).split("\n")
            echo(*lines)
        rest += decoder.decode(b"", final=True)
    except UnicodeError:
        raise UsageError.at(
            f"{uri} is no text, and a terminal shows nothing else",
            todo="add > FILE, or use torchdata-ais get",
        ) from None
    echo(*filter(None, [rest]))


@command("aistore.sdk", "rich.progress")
def cp(
    source: str,
    target: str,
    overwrite: bool = False,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    """Copy an object, a member of a shard, or all objects of a prefix.

    The bucket is made if it is missing. The bytes pass through this machine and are checked. Objects that are there
    with the same bytes are left as they are, so the same command resumes after an interrupt. Names are kept from the
    last slash of the prefix on.

    Args:
        source (SRC): ais://bucket/object; a prefix or a template for several; ais://bucket/shard.tar/member.jpg.
        target (DST): ais://bucket/name; ais://bucket/ or ais://bucket/prefix/ to keep names.
        overwrite: Replace objects that hold something else.

    Examples:
        torchdata-ais cp ais://pets/train-000.tar ais://small/
        torchdata-ais cp ais://pets/train- ais://copy/old/
        torchdata-ais cp ais://pets/train-000.tar/cat/0001.jpg ais://pets/cover.jpg
    """
    goes_on()
    from torchdata_ais.cli._objects import (
        Bucket,
        blocks_of,
        find,
        is_member,
        new_bucket,
        object_place,
        target_names,
        tell_stored,
    )
    from torchdata_ais.cli._output import moved_bytes
    from torchdata_ais.urls import check_object

    for url, todo in (
        (source, "torchdata-ais put stores files"),
        (target, "torchdata-ais get fetches into files"),
    ):
        if parse_url(url).kind == "file":
            raise UsageError.at(f"{url}: cp copies from bucket to bucket", todo=todo, url=url)
    place, _ = object_place(target), object_place(source)
    options = options_for(endpoint, place.endpoint)
    if is_member(target, options):
        raise UsageError.at(
            "a shard is not changed in place", todo="write a new one: torchdata-ais convert", url=target
        )
    found = find(source, options)
    folder = not place.name or place.name.endswith("/")
    names = [place.name + name for name in target_names(found, folder, target)]
    named = dict(zip(names, found, strict=True))
    for name in named:
        check_object(replace(place, name=name))
    sources = {one.uri for one in found if not one.member}
    for name, one in named.items():
        uri = replace(place, name=name, endpoint="").uri
        if uri in sources - {one.uri}:
            raise UsageError.at(
                f"{one.uri} would be copied over {uri}, which is to be copied, too",
                todo="copy to another bucket or prefix",
                url=uri,
            )
    bucket = Bucket.of(place, options)
    with new_bucket(bucket):
        there = bucket.holds([(name, one.url) for name, one in named.items()], overwrite=overwrite)
        new = {name: one for name, one in named.items() if name not in there}
        size = 0
        with moved_bytes("cp", sum(one.url.size or 0 for one in new.values())) as moved:
            for name, one in new.items():
                with blocks_of(one, options) as blocks:
                    size += bucket.put_blocks(name, blocks, moved)
    rows = [
        {"url": one.uri, "target": f"{bucket.uri}/{name}", "stored": name in new}
        for name, one in named.items()
    ]
    tell_stored(bucket, rows, size, as_json=as_json)


@command("torchdata_ais.store", "rich.progress")
def get(
    url: str,
    target: Annotated[str, typer.Argument()] = ".",
    overwrite: bool = False,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    """Fetch an object, a shard's member, or all objects of a prefix.

    Files appear when they are whole. Those that are there with the same bytes are left as they are, so the same
    command resumes after an interrupt. Names are kept from the last slash of the prefix on.

    Args:
        url: ais://bucket/object; a prefix or a template for several; ais://bucket/shard.tar/member.jpg.
        target (PATH): A file, or a folder; one that ends with / is made; - is standard output, for one object.
        overwrite: Replace files that hold something else.

    Examples:
        torchdata-ais get ais://pets/train-000.tar
        torchdata-ais get ais://pets/train- shards/
        torchdata-ais get ais://pets/train-000.tar/cat/0001.jpg cat.jpg
    """
    goes_on()
    from torchdata_ais._util.files import make_folder, no_empty_folders
    from torchdata_ais.cli._objects import blocks_of, find, target_names
    from torchdata_ais.cli._output import moved_bytes

    options = options_for(endpoint)
    found = find(url, options)
    if target == "-":
        if len(found) > 1:
            raise UsageError.at(f"{len(found)} objects for standard output", todo="name one", url=url)
        _to_standard_output(found[0], options)
        return
    folder = target.endswith("/") or Path(target).is_dir() or (len(found) > 1 and not Path(target).exists())
    paths = [Path(target, name) for name in target_names(found, folder, target)]
    named = dict(zip(paths, found, strict=True))
    new = {path: one for path, one in named.items() if not _is_there(one, path, overwrite, options)}
    if paths[0].parent.exists():
        make_folder(paths[0].parent)
    elif not folder:
        raise NotFoundError.at(
            f"there is no folder {paths[0].parent}",
            todo=f"make it, or write {paths[0].parent}/ to have it made",
        )
    written = 0
    total = sum(one.url.size or 0 for one in new.values())
    with no_empty_folders({path.parent for path in paths}), moved_bytes("get", total) as moved:
        for path, one in new.items():
            make_folder(path.parent)
            with blocks_of(one, options) as blocks:
                written += _write(path, blocks, moved)
    there = len(paths) - len(new)
    if as_json:
        rows = [
            {"url": one.uri, "path": str(path), "size": path.stat().st_size, "written": path in new}
            for path, one in named.items()
        ]
        echo_json({"written": len(new), "there": there, "files": rows}, indent=1)
        return
    where = paths[0] if len(paths) == 1 else os.path.commonpath(paths)
    more = f"; {there} there already" if there else ""
    echo(f"wrote {count_text(len(new), 'file')}, {bytes_text(written)}: {where}{more}")


def _is_there(found: Found, path: Path, overwrite: bool, options: StoreOptions) -> bool:
    """Report whether a file has the same bytes; `UsageError` if others stay."""
    from torchdata_ais.cli._objects import same_file

    if not path.exists():
        return False
    if path.is_file():
        if _holds_member(path, found, options) if found.member else same_file(found.url, path):
            return True
        if overwrite:
            return False
    todo = Remedy("pass overwrite=True", "name another target") if path.is_file() else "name another target"
    raise UsageError.at(
        f"there is a file {path} already, and it is not known to be the same", todo=todo, url=found.uri
    )


def _holds_member(path: Path, found: Found, options: StoreOptions) -> bool:
    from torchdata_ais.cli._objects import blocks_of

    with path.open("rb") as file, blocks_of(found, options) as blocks:
        return all(file.read(len(block)) == block for block in blocks) and not file.read(1)


def _write(path: Path, blocks: Iterator[bytes], moved: Callable[[int], None]) -> int:
    """Write a file that appears when it is whole; return its size."""
    from torchdata_ais._util.files import naming, whole_file

    size = 0
    with naming(str(path)), whole_file(path) as file:
        for block in blocks:
            file.write(block)
            size += len(block)
            moved(len(block))
    return size


@command("aistore.sdk", "rich.progress")
def put(
    source: Path,
    url: str,
    overwrite: bool = False,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    """Store a file or a folder of files; the bucket is made if it is missing.

    Names of a folder's files are their paths in it, put after the unchanged prefix. Objects that are there with the
    same bytes are left as they are, so the same command resumes after an interrupt.

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
    from torchdata_ais.cli._objects import Bucket, new_bucket, object_place, tell_stored
    from torchdata_ais.cli._output import moved_bytes
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


@command("torchdata_ais.store", "rich.progress")
def rm(
    urls: list[str],
    recursive: Annotated[bool, typer.Option("--recursive", "-r")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False,
    endpoint: Endpoint = "",
) -> None:
    """Remove objects, prefixes and buckets.

    All names are looked up first; if one is missing, nothing is removed. With --recursive a confirmation is required;
    without a terminal, --yes is.

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
    from torchdata_ais.cli._objects import Bucket, object_place
    from torchdata_ais.cli._output import progress
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
    """Return the objects and buckets to remove for one URL."""
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
