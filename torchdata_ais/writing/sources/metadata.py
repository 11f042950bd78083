"""Hugging Face's folders: pictures or sound, and a table ``metadata.jsonl`` (or ``.csv``, ``.parquet``) about them."""

from __future__ import annotations

from pathlib import Path

from torchdata_ais.error_text import Remedy
from torchdata_ais.errors import UsageError
from torchdata_ais.store import StoreOptions
from torchdata_ais.writing.sources.column_names import by_columns
from torchdata_ais.writing.sources.files import MEDIA, Omitted, files_below
from torchdata_ais.writing.sources.options import SourceOptions
from torchdata_ais.writing.sources.source import left_out
from torchdata_ais.writing.sources.table import TableSource, table

METADATA_NAMES = tuple(f"metadata.{ending}" for ending in ("jsonl", "csv", "parquet"))


def metadata_of(root: Path) -> Path | None:
    """Return the table about the files of a folder, if it has one.

    Raises:
        UsageError: Its folders have one each, so that they are splits; or it has two.
    """
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
    """Return the rows of the table as a source of samples; files that no row names are left out and counted.

    Args:
        found: The table.
        options: Transport settings, for rows that name URLs.
        how: ``columns`` and ``image_field`` of it count here.

    Raises:
        UsageError: No column names the files.

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
    for file in files_below(root, omitted, outside=how.allow_outside):
        if file.path == found.name:
            continue
        if file.path not in named:
            is_media = file.ending in MEDIA
            omitted.add(
                f"no row of {found.name} names it" if is_media else "no picture, sound or video", file.path
            )
    source.left_out += left_out(omitted)
    return source
