"""Folders of files as sources."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import xxhash

from torchdata_ais.codecs import EncodeError
from torchdata_ais.codecs.handlers import FIELD_KINDS
from torchdata_ais.errors import DuplicateFieldError, NotFoundError, SampleError, UsageError
from torchdata_ais.errors.text import Remedy
from torchdata_ais.samples import Fields
from torchdata_ais.writing.sources.files import (
    MEDIA,
    PICTURES,
    SOUNDS,
    BucketFolder,
    DiskFolder,
    FileFolder,
    FoundFile,
    Omitted,
    split_ending,
)
from torchdata_ais.writing.sources.rows import likely_encoding
from torchdata_ais.writing.sources.source import ListSource, SourceOptions, left_out

_MAIN = {"auto": MEDIA, "images": PICTURES, "audio": SOUNDS}
_WHAT = {"auto": "picture, sound or video", "images": "picture", "audio": "sound"}
_SPLITS = frozenset(["train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"])
_OF_IMG2DATASET = re.compile(r"\d+(_stats\.json|\.parquet)")

Item = tuple[str, tuple[tuple[str, str], ...]]
"""Key, and for each field the path below the folder."""

TEXTS = frozenset(["caption", "json", *FIELD_KINDS["text"]])


@dataclass(frozen=True)
class LoadFiles:
    """Reads the files of one sample; its class is the first part of its path."""

    folder: FileFolder
    classes: tuple[str, ...]
    main: frozenset[str] = MEDIA

    def numbered(self, classes: Sequence[str]) -> LoadFiles:
        """Return the same with classes numbered as in `classes`."""
        return replace(self, classes=tuple(classes))

    def __call__(self, item: Item) -> Fields:
        """Return the sample."""
        key, parts = item
        sample: Fields = {"__key__": key, "__url__": self.folder.where(parts[0][1])}
        if self.classes and all(field != "cls" for field, _ in parts):
            sample["cls"] = self.classes.index(parts[0][1].partition("/")[0])
        for field, path in parts:
            data = self.folder.read(path)
            if not data and split_ending(path)[1] in self.main:
                raise SampleError.at(
                    f"the file {path} is empty",
                    todo=Remedy("remove it", 'go on without such files by on_error="skip"'),
                    url=self.folder.where(path),
                    key=key,
                    field=field,
                )
            sample[field] = data
            if field in TEXTS:
                check_utf8(data, path, key, field, url=self.folder.where(path))
        return sample


def check_utf8(data: bytes, name: str, key: str, field: str, *, url: str | None = None) -> None:
    """Raise `EncodeError` if a text is not UTF-8: readers would fail on it."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EncodeError.at(
            f"{name} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}",
            todo=Remedy(
                f"convert it (iconv -f {likely_encoding(data)} -t utf-8)",
                'go on without such files by on_error="skip"',
            ),
            url=url or name,
            key=key,
            field=field,
        ) from None


def media_folder(
    root: str | os.PathLike[str] | BucketFolder, options: SourceOptions | None = None
) -> ListSource:
    """Return the media files of a folder as samples, sorted by path.

    ``root/cat/tabby/1.jpg`` becomes the sample ``{"__key__": "cat/tabby/1", "jpg": bytes, "cls": 0}``, ``cls`` being
    the position of ``cat`` among the sorted folders; ``root/cat/tabby/1.txt`` its field ``txt``. A folder without
    folders gives samples without ``cls``, and so do the numbered folders that img2dataset makes. Dots in a file's
    name, where readers would end the key, become ``_``. Pictures have one field, see `SourceOptions.image_field`.
    Files that are neither pictures nor next to one are left out and counted.

    Example:
        >>> import pathlib, tempfile
        >>> root = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("cat/a.jpg", "cat/a.txt", "dog/b.v2.JPEG"):
        ...     (root / name).parent.mkdir(exist_ok=True)
        ...     _ = (root / name).write_bytes(b"...")
        >>> source = media_folder(root)
        >>> for _, item in source.items():
        ...     {name: value for name, value in source.load(item).items() if name != "__url__"}
        {'__key__': 'cat/a', 'cls': 0, 'jpg': b'...', 'txt': b'...'}
        {'__key__': 'dog/b_v2', 'cls': 1, 'jpg': b'...'}
        >>> source.notes
        {'classes': ['cat', 'dog']}
    """
    options = options or SourceOptions()
    folder: FileFolder = (
        root if isinstance(root, BucketFolder) else DiskFolder(os.fspath(root), options.allow_outside)
    )
    main, what = _MAIN.get(options.kind, MEDIA), _WHAT.get(options.kind, _WHAT["auto"])
    omitted = Omitted()
    files = list(folder.files(omitted))
    notes = _notes_of_img2dataset(files)
    for path in notes:
        omitted.add("img2dataset's own notes", path)
    groups = _groups([file for file in files if file.path not in notes], main, what, omitted)
    if not groups:
        endings = sorted({file.ending for file in files if file.ending})
        seen = f"; its files end in {', '.join(endings[:8])}" if endings else ""
        raise NotFoundError.at(
            f"the folder holds no {what}{seen}",
            todo="check the path; tables (.csv, .jsonl, .parquet) are named themselves",
            url=str(folder),
        )
    classes = [] if notes else _classes(folder, groups, options.kind)
    found = sorted(file for group in groups.values() for file in group)
    items = _items(groups, picture_field((file.ending for file in found), options), str(folder))
    digest = xxhash.xxh64()
    for file in found:
        digest.update(f"{file.path} {file.size}\n".encode("utf-8", "surrogateescape"))
    kinds = {file.ending for file in found} & main
    unit = "image" if kinds <= PICTURES else "sound" if kinds <= SOUNDS else "file"
    load = LoadFiles(folder.reader(), tuple(classes), main)
    source = ListSource(unit, items, digest.hexdigest(), load)
    source.notes = {"classes": classes} if classes else {}
    source.by_class = len(classes) > 1
    for empty in sorted({*classes} - {path.partition("/")[0] for path in groups}):
        omitted.add(f"a folder without a {what}, though a class", f"{empty}/")
    source.left_out = left_out(omitted)
    return source


def picture_field(endings: Iterable[str], options: SourceOptions) -> Mapping[str, str]:
    """Return the field of each picture ending: one for all, or its own.

    Example:
        >>> picture_field(["png", "jpeg", "txt"], SourceOptions())
        {'jpeg': 'jpg', 'png': 'jpg'}
        >>> picture_field(["png"], SourceOptions()), picture_field(["png", "jpg"], SourceOptions(image_field="ending"))
        ({'png': 'png'}, {'jpg': 'jpg', 'png': 'png'})
    """
    found = sorted(PICTURES.intersection(endings))
    names = {ending: "jpg" if ending == "jpeg" else ending for ending in found}
    if options.image_field == "ending":
        return names
    own = set(names.values())
    one = options.image_field or (own.pop() if len(own) == 1 else "jpg")
    return dict.fromkeys(found, one)


def _notes_of_img2dataset(files: list[FoundFile]) -> Mapping[str, object]:
    """Return img2dataset's files next to its folders; none of other tools."""
    notes = dict.fromkeys(file.path for file in files if _OF_IMG2DATASET.fullmatch(file.path))
    return notes if any(path.endswith(".json") for path in notes) else {}


def _groups(
    files: list[FoundFile], main: frozenset[str], what: str, omitted: Omitted
) -> dict[str, list[FoundFile]]:
    """Return files of each sample with media, by their path without ending."""
    groups: dict[str, list[FoundFile]] = {}
    for file in files:
        groups.setdefault(split_ending(file.path)[0], []).append(file)
    found = {}
    for stem, group in groups.items():
        named = [file for file in group if re.fullmatch(r"\w+", file.ending)]
        for file in group:
            if file not in named:
                omitted.add(f"no {what} by its name", file.path)
        if any(file.ending in main for file in named):
            # The picture first: it determines the class of the sample and the name in errors.
            found[stem] = sorted(named, key=lambda file: (file.ending not in main, file.path))
            continue
        for file in named:
            is_beside = file.ending in TEXTS | {"cls"}
            omitted.add(
                f"no {what} of this name beside it" if is_beside else f"no {what} by its name", file.path
            )
    return found


def _classes(folder: FileFolder, groups: Mapping[str, list[FoundFile]], kind: str) -> list[str]:
    """Return the folders that are classes; none if the folder has pictures."""
    classes = folder.folders()
    lone = next((group[0].path for group in groups.values() if "/" not in group[0].path), None)
    if lone is None:
        if kind == "auto" and len(classes) > 1 and {name.lower() for name in classes} <= _SPLITS:
            raise UsageError.at(
                f"the folders {', '.join(classes)} are splits of a data set, and no classes",
                todo=Remedy(
                    f"convert each by itself, such as {folder.where(classes[0])}",
                    '; if they are classes, pass kind="images"',
                ),
                url=str(folder),
            )
        return classes
    used = {group[0].path.partition("/")[0] for group in groups.values() if "/" in group[0].path}
    if used:
        raise UsageError.at(
            f"the file {lone} stands beside folders of classes",
            todo=f"put it into one of {', '.join(sorted(used)[:3])}, or elsewhere",
            url=str(folder),
        )
    return []


def _items(groups: Mapping[str, list[FoundFile]], fields: Mapping[str, str], root: str) -> list[Item]:
    items: list[Item] = []
    owners: dict[str, str] = {}
    for stem, group in groups.items():
        folder, slash, name = stem.rpartition("/")
        key = f"{folder}{slash}{name.replace('.', '_')}"
        first = group[0].path
        if "\n" in key:
            raise UsageError.at(
                f"the name of {first!r} has a line break, and readers would pass over its sample",
                todo="rename the file or its folder",
                url=root,
                key=key,
            )
        if (other := owners.setdefault(key, first)) != first:
            raise _twice(other, first, "samples with the same key", root, key)
        parts: dict[str, str] = {}
        for file in group:
            field = fields.get(file.ending, file.ending)
            if field in parts:
                raise _twice(parts[field], file.path, f"the same field {field!r} of one sample", root, key)
            parts[field] = file.path
        items.append((key, tuple(parts.items())))
    return items


def _twice(one: str, other: str, what: str, root: str, key: str) -> DuplicateFieldError:
    return DuplicateFieldError.at(
        f"{one} and {other} would be {what}",
        todo=Remedy("rename or remove one", '; image_field="ending" gives pictures of one name a field each'),
        url=root,
        key=key,
    )
