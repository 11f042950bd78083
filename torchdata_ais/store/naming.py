"""Errors of files that are open already, such as a full disk, do not say which file it was: here they are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["name_file", "naming"]


def name_file(error: OSError, path: str) -> None:
    """Have `error` say that it was `path`, unless it names a file.

    Example:
        >>> error = OSError(28, "No space left on device")
        >>> name_file(error, "/data/s.tar")
        >>> str(error)
        "[Errno 28] No space left on device: '/data/s.tar'"
    """
    if error.filename is None and error.errno is not None:
        error.filename = path


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Have an ``OSError`` of what runs inside say that it was `path`."""
    try:
        yield
    except OSError as error:
        name_file(error, path)
        raise
