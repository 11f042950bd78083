"""Detection of the layout of a source."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.errors.text import Remedy, in_commands, in_programs
from torchdata_ais.store import StoreOptions
from torchdata_ais.urls import parse_url, redact
from torchdata_ais.urls.parsing import is_shard
from torchdata_ais.writing.sources.files import (
    MEDIA,
    OUTSIDE_LINK,
    BucketFolder,
    DiskFolder,
    Omitted,
    is_table,
    leads_out,
    split_ending,
)
from torchdata_ais.writing.sources.folder import media_folder
from torchdata_ais.writing.sources.shards import ShardSource, find_shards, shards_in
from torchdata_ais.writing.sources.source import Source, SourceOptions, by_columns, left_out
from torchdata_ais.writing.sources.table import TableSource, table

METADATA_NAMES = tuple(f"metadata.{ending}" for ending in ("jsonl", "csv", "parquet"))


def metadata_of(root: Path) -> Path | None:
    """Return the table about the files of a folder, if it has one."""
    found = [root / name for name in METADATA_NAMES if (root / name).is_file()]
    if len(found) > 1:
        raise UsageError.at(
            f"the folder has {found[0].name} and {found[1].name}", todo="remove one", url=str(root)
        )
    if found:
        return found[0]
    below = sorted({path.parent.name for name in METADATA_NAMES for path in root.glob(f"*/{name}")})
    if below:
        raise UsageError.at(
            f"the folders {', '.join(below)} have a metadata table each: they are data sets of their own",
            todo=f"convert each by itself, such as {root / below[0]}",
            url=str(root),
        )
    return None


def metadata_folder(found: Path, options: StoreOptions, how: SourceOptions) -> TableSource:
    """Return the rows of the table as a source of samples.

    Files that no row names are left out and counted.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> for name in ("a.png", "b.png"):
        ...     _ = (root / name).write_bytes(b"...")
        >>> _ = (root / "metadata.jsonl").write_text('{"file_name": "a.png", "text": "a cat"}')
        >>> source = metadata_folder(metadata_of(root), StoreOptions(), SourceOptions())
        >>> [source.load(item) for _, item in source.items()], source.left_out[0].first
        ([{'__key__': '000000000', 'png': b'...', 'text': 'a cat'}], 'b.png')
    """
    root = found.parent
    source = table(str(found), options, root=str(root), columns=how.columns, source_options=how)
    if not source.load.files:
        raise UsageError.at(
            f"no column of {found.name} names files; it has {', '.join(source.load.fields)}",
            todo=Remedy(
                'the column is called "file_name"', *by_columns("say which: {}", {"path": "file_name"})
            ),
            url=str(found),
        )
    named = source.paths()
    omitted = Omitted()
    for file in DiskFolder(str(root), how.allow_outside).files(omitted):
        if file.path not in named and file.path != found.name:
            is_media = file.ending in MEDIA
            omitted.add(
                f"no row of {found.name} names it" if is_media else "no picture, sound or video", file.path
            )
    source.left_out += left_out(omitted)
    return source


Store = Callable[[], StoreOptions]

_NO_SOURCES = MEDIA | {"zip", "xlsx", "xls", "json", "txt", "7z", "rar"}


# One decision with many branches: each kind is excluded before the next is looked for, and the order counts.
def open_source(source: Any, how: SourceOptions, store: Store) -> Source:
    """Return the source of this kind, or of the kind that its name suggests."""
    is_path = isinstance(source, str | os.PathLike)
    is_folder = is_path and Path(source).is_dir()
    kind, tables = _layout_of(Path(source), how.kind) if is_folder else (how.kind, [])
    if kind == "auto" and not is_folder:
        named = [source] if is_path else source
        is_tables = isinstance(named, Sequence) and bool(named) and all(map(is_table, named))
        kind = "table" if is_tables else "shards"
    bucket = _bucket_folder(source, how, store)
    if bucket is not None:
        kind = how.kind if how.kind != "auto" else "images"
    if kind not in ("table", "metadata") and (how.columns or how.root):
        _check_archive(source)
        raise UsageError.at(
            "columns= and root= are for tables", todo=Remedy('pass kind="table"', "leave them out")
        )
    if not how.allow_outside:
        for one in tables:
            _check_inside(source, one)
    if kind == "metadata":
        return metadata_folder(tables[0], StoreOptions(), how)
    if kind == "table":
        files = tables or ([source] if is_path else source)
        return _table([os.fspath(one) for one in files], how, store, is_folder and not tables)
    if bucket is not None:
        return media_folder(bucket, how)
    if kind != "shards":
        _check_folder(source, is_folder)
        return media_folder(source, how)
    return _shards(source, how, store)


def _layout_of(folder: Path, kind: str) -> tuple[str, list[Path]]:
    """Return the kind of a folder, and the tables found in it."""
    if kind not in ("auto", "table"):
        return kind, []
    if kind == "auto" and (shards := shards_in(folder)):
        files = DiskFolder(str(folder)).files(Omitted())
        media = next((file.path for file in files if file.ending in MEDIA), None)
        if media is not None:  # one of the two kinds would be left out without notice
            raise _both(Path(shards[0]).name, media, str(folder))
        return "shards", []
    if metadata := metadata_of(folder):
        return "metadata", [metadata]
    # img2dataset has a table next to each of its folders: then the folders are the data.
    if kind == "table" or not any(folder.glob("*_stats.json")):
        found = sorted(path for path in folder.glob("*.parquet") if path.name[0] != ".")
        return ("table", found) if found else (kind, [])
    return kind, []


def _shards(source: object, how: SourceOptions, store: Store) -> ShardSource:
    if how.kind == "auto":
        _check_archive(source)
    omitted = Omitted()
    found = find_shards(source, store, omitted, outside=how.allow_outside)
    if how.shuffle or how.splits:  # samples of large shards are not here to be shuffled
        raise UsageError.at(
            "shards cannot be shuffled or split while they are converted",
            todo=Remedy(
                in_programs("shuffle on the cluster with dSort, or while reading with .shuffled()"),
                in_commands("shuffle shards with torchdata-ais dsort"),
                "; to split, give each part shards of its own by a template",
            ),
        )
    opened = ShardSource(found, store() if any(map(_is_remote, found)) else StoreOptions())
    opened.left_out = left_out(omitted)
    return opened


def _check_inside(folder: str | os.PathLike[str], table: str | os.PathLike[str]) -> None:
    """Raise if the table of a folder is a link out of the folder."""
    if leads_out(os.fspath(folder), os.fspath(table)):
        raise UsageError.at(
            f"{Path(table).name} is {OUTSIDE_LINK}",
            todo="if you trust the author of the folder, pass allow_outside=True",
            url=str(table),
        )


def _bucket_folder(source: object, how: SourceOptions, store: Store) -> BucketFolder | None:
    """Return the media files of a bucket, if the source is a bucket folder."""
    if not isinstance(source, str) or how.kind in ("table", "shards") or is_table(source):
        return None
    place = parse_url(source)
    if place.kind == "http" and (how.kind != "auto" or source.endswith("/")):
        raise UsageError.at(
            "a web server tells nobody what is in a folder",
            todo="name shards, or a table of their URLs (.csv, .jsonl, .parquet)",
            url=redact(source),
        )
    if place.kind != "object" or place.params or "{" in place.name or is_shard(place.name):
        return None
    found = BucketFolder.at(place.uri, store())
    files = list(found.files(Omitted()))
    shards = [file.path for file in files if is_shard(file.path)]
    media = [file.path for file in files if file.ending in MEDIA]
    if not media and how.kind == "auto":
        return None
    if how.kind == "auto" and shards:
        raise _both(shards[0], media[0], str(found))
    if table := next((file.path for file in files if file.path in METADATA_NAMES), None):
        raise UsageError.at(
            f"pictures with a table beside them ({table}) are read of folders of this machine",
            todo=f"fetch them first: torchdata-ais get {found} FOLDER/",
            url=str(found),
        )
    return found


def _table(names: list[str], how: SourceOptions, store: Store, is_empty_folder: bool) -> Source:
    if is_empty_folder:
        raise NotFoundError.at(
            "the folder holds no Parquet file and no metadata table",
            todo="name the table itself",
            url=names[0],
        )
    base = None if how.root is None else os.fspath(how.root)
    remote = any(map(_is_remote, names)) or (base is not None and _is_remote(base))
    options = store() if remote else StoreOptions()
    return table(names, options, root=base, columns=how.columns, source_options=how)


def _check_folder(source: object, is_folder: bool) -> None:
    if not isinstance(source, str | os.PathLike):
        raise UsageError.at(
            f"a folder is one path, not a {type(source).__name__} of several", todo="convert them one by one"
        )
    if not is_folder:
        name = str(os.fspath(source))
        if _is_remote(name):
            raise UsageError.at(
                "a template is no folder",
                todo="name what the objects begin with: ais://bucket/prefix/",
                url=name,
            )
        raise NotFoundError.at("there is no such folder", todo="check the path", url=name)


def _both(shard: str, other: str, folder: str) -> UsageError:
    return UsageError.at(
        f"the folder holds shards ({shard}) and pictures or sound ({other})",
        todo=Remedy('pass kind="shards"', 'kind="images"', 'kind="audio"'),
        url=folder,
    )


def _check_archive(source: object) -> None:
    """Refuse a file of this machine whose name is not that of a shard."""
    if not isinstance(source, str | os.PathLike) or not Path(source).is_file():
        return
    ending = split_ending(os.fsdecode(source))[1]
    if not is_shard(os.fsdecode(source)) and ending in _NO_SOURCES:
        raise UsageError.at(
            f"a .{ending} file is no source",
            todo="pass the folder it is in, a table (.csv, .tsv, .jsonl, .parquet), or shards (.tar)",
            url=str(source),
        )


def _is_remote(name: str) -> bool:
    return parse_url(name).kind == "object"
