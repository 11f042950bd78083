"""Folders of images, one folder a class: the layout that torchvision calls ImageFolder."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from torchdata_ais.errors import DuplicateFieldError, NotFoundError, UsageError
from torchdata_ais.writing.inputs import ListSource

__all__ = ["image_folder"]

_IMAGES = frozenset(["jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp", "gif"])

logger = logging.getLogger("torchdata_ais")


def image_folder(root: str | os.PathLike[str]) -> ListSource:
    """Return the images below a folder as a source of samples, sorted by path.

    An image ``root/cat/tabby/1.jpg`` becomes the sample ``{"__key__": "cat/tabby/1", "jpg": bytes, "cls": 0}``,
    ``cls`` being the position of ``cat`` among the sorted folders. A folder without folders gives samples without
    ``cls``. Dots in a file's name, where readers would end the key, become ``_``. Files that are no images by their
    name, and hidden ones, are left out, and how many is logged.

    Args:
        root: The folder.

    Raises:
        NotFoundError: No such folder, or no image in it.
        UsageError: Images stand beside folders of classes.
        DuplicateFieldError: Two images would have the same key.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> for name in ("cat/a.jpg", "dog/b.v2.png"):
        ...     (root / name).parent.mkdir()
        ...     _ = (root / name).write_bytes(b"...")
        >>> source = image_folder(root)
        >>> [source.load(item) for _, item in source.items()]
        [{'__key__': 'cat/a', 'cls': 0, 'jpg': b'...'}, {'__key__': 'dog/b_v2', 'cls': 1, 'png': b'...'}]
        >>> source.notes
        {'classes': ['cat', 'dog']}
    """
    root = Path(root)
    if not root.is_dir():
        raise NotFoundError.at("there is no such folder", todo="check the path", url=str(root))
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and entry.name[0] != ".")
    files: list[tuple[str, str]] = []  # key, path below the root
    digest = xxhash.xxh64()
    others = 0
    for path, size in _files(root):
        stem, dot, extension = path.name.rpartition(".")
        if not dot or not stem or extension.lower() not in _IMAGES:
            others += 1
            continue
        relative = path.relative_to(root)
        if classes and len(relative.parts) == 1:
            raise UsageError.at(
                f"the image {relative} stands beside folders of classes",
                todo="put it into one",
                url=str(root),
            )
        files.append((relative.with_name(stem.replace(".", "_")).as_posix(), relative.as_posix()))
        digest.update(f"{relative.as_posix()} {size}\n".encode("utf-8", "surrogateescape"))
    if not files:
        raise NotFoundError.at("the folder holds no image", todo="check the path", url=str(root))
    _check_keys(files, root)
    if others:
        logger.warning("%s: %d files are no images by their name, and are left out", root, others)
    source = ListSource("image", files, digest.hexdigest(), LoadImage(str(root), tuple(classes)))
    if classes:
        source.notes = {"classes": classes}
    return source


@dataclass(frozen=True)
class LoadImage:
    """Reads one image file; its class is the first part of its key."""

    root: str
    classes: tuple[str, ...]

    def __call__(self, item: tuple[str, str]) -> dict[str, Any]:
        """Return the sample."""
        key, path = item
        sample: dict[str, Any] = {"__key__": key}
        if self.classes:
            sample["cls"] = self.classes.index(path.partition("/")[0])
        sample[path.rpartition(".")[2].lower()] = Path(self.root, path).read_bytes()
        return sample


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the files below a folder with their sizes, sorted by name level by level; links are followed."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name[0] == ".":
            continue
        if entry.is_dir():
            yield from _files(Path(entry.path))
        elif entry.is_file():
            yield Path(entry.path), entry.stat().st_size


def _check_keys(files: list[tuple[str, str]], root: Path) -> None:
    paths: dict[str, str] = {}
    for key, path in files:
        if paths.setdefault(key, path) != path:
            raise DuplicateFieldError.at(
                f"{paths[key]} and {path} would be samples with the same key",
                todo="rename one",
                url=str(root),
                key=key,
            )
