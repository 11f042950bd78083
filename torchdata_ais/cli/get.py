"""``torchdata-ais get``: objects and members into files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchdata_ais.cli._echo import echo, echo_json
from torchdata_ais.cli._run import AsJson, Endpoint, command, goes_on, options_for
from torchdata_ais.error_text import Remedy
from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.shown import bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchdata_ais.cli._objects import Found
    from torchdata_ais.store import StoreOptions


@command("torchdata_ais.store", "rich.progress")
def get(
    url: str,
    target: Annotated[str, typer.Argument()] = ".",
    overwrite: bool = False,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    """Fetch an object, a member of a shard, or all objects of a prefix into files.

    Files appear when they are whole. Those that are there with the same bytes are left as they are, so the same command
    goes on after an interrupt. Names are kept from the last slash of the prefix on.

    Args:
        url: ais://bucket/object; a prefix or a template for several; ais://bucket/shard.tar/member.jpg.
        target (PATH): A file, or a folder; one that ends with / is made.
        overwrite: Replace files that hold something else.

    Examples:
        torchdata-ais get ais://pets/train-000.tar
        torchdata-ais get ais://pets/train- shards/
        torchdata-ais get ais://pets/train-000.tar/cat/0001.jpg cat.jpg
    """
    goes_on()
    from torchdata_ais.cli._objects import blocks_of, find, target_names
    from torchdata_ais.cli._progress import moved_bytes
    from torchdata_ais.store.naming import make_folder, no_empty_folders

    options = options_for(endpoint)
    found = find(url, options)
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
    """Whether a file holds the bytes of the object already.

    Raises:
        UsageError: It holds something else, which is not to be overwritten.
    """
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
    from torchdata_ais.store.naming import naming
    from torchdata_ais.whole_file import whole_file

    size = 0
    with naming(str(path)), whole_file(path) as file:
        for block in blocks:
            file.write(block)
            size += len(block)
            moved(len(block))
    return size
