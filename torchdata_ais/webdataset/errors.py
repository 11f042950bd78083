"""Errors of shards that programs written for webdataset catch as ``tarfile.ReadError``."""

from __future__ import annotations

import tarfile
from collections.abc import Callable

from torchdata_ais import errors

__all__ = ["BadHeaderError", "NotATarError", "TruncatedShardError", "as_read_errors"]


class TruncatedShardError(errors.TruncatedShardError, tarfile.ReadError):
    """`torchdata_ais.errors.TruncatedShardError`, also a ``tarfile.ReadError``."""


class BadHeaderError(errors.BadHeaderError, tarfile.ReadError):
    """`torchdata_ais.errors.BadHeaderError`, also a ``tarfile.ReadError``."""


class NotATarError(errors.NotATarError, tarfile.ReadError):
    """`torchdata_ais.errors.NotATarError`, also a ``tarfile.ReadError``."""


_KINDS: dict[type[Exception], type[errors.AISError]] = {
    errors.TruncatedShardError: TruncatedShardError,
    errors.BadHeaderError: BadHeaderError,
    errors.NotATarError: NotATarError,
}


def as_read_errors(handler: Callable[[Exception], bool]) -> Callable[[Exception], bool]:
    """Return a handler that hands errors of shards to `handler` as ``tarfile.ReadError``, too.

    Example:
        >>> error = errors.TruncatedShardError.at("cut", offset=512)
        >>> as_read_errors(lambda error: isinstance(error, tarfile.ReadError) and error.offset == 512)(error)
        True
    """

    def handle(error: Exception) -> bool:
        kind = _KINDS.get(type(error))
        if kind is None:
            return handler(error)
        assert isinstance(error, errors.AISError)  # all of _KINDS are
        same = kind(error.what, todo=error.todo, place=error.place).with_traceback(error.__traceback__)
        same.__cause__ = error.__cause__
        return handler(same)

    return handle
