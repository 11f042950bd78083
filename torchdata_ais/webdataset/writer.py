"""Writers: webdataset's names for `torchdata_ais.writing`."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any, cast

from torchdata_ais.codecs import build_encoder
from torchdata_ais.codecs.encoder import Encoder
from torchdata_ais.errors import UsageError
from torchdata_ais.errors.redaction import redact
from torchdata_ais.webdataset.left_out import explaining
from torchdata_ais.writing import ShardWriter as _ShardWriter
from torchdata_ais.writing import TarWriter as _TarWriter

logger = logging.getLogger("torchdata_ais")


class TarWriter(_TarWriter):
    """Write samples to one tar shard.

    See `torchdata_ais.TarWriter`; a ``pipe:`` is refused.
    """

    __signature__ = inspect.signature(_TarWriter)

    if not TYPE_CHECKING:  # type checkers see the arguments of the class above

        def __init__(self, fileobj: object, *args: object, **named: object) -> None:
            _refuse_command(fileobj)
            super().__init__(fileobj, *args, **named)


class ShardWriter(_ShardWriter):
    """Write samples to a series of shards.

    See `torchdata_ais.ShardWriter`; a ``pipe:`` is refused, and shards that are there are replaced, as webdataset does.
    Older ones that follow the new ones are logged.
    """

    __signature__ = inspect.signature(_ShardWriter)

    if not TYPE_CHECKING:  # type checkers see the arguments of the class above

        def __init__(
            self, pattern: str, *args: object, overwrite: bool | None = None, **named: object
        ) -> None:
            _refuse_command(pattern)
            super().__init__(pattern, *args, overwrite=overwrite, **named)

    def close(self) -> None:
        """Finish the last shard and the manifest."""
        was_open = self._is_open
        super().close()
        if was_open and self._opener is None and (left := self.stale()):
            logger.warning(
                "%d older shards left beyond the new ones, such as %s: training would read them, too. "
                "overwrite=True removes them",
                len(left),
                redact(left[0]),
            )


def _refuse_command(target: object) -> None:
    if isinstance(target, str) and target.startswith("pipe:"):
        raise UsageError.at(
            f"{redact(target)!r}: no command is run to write to",
            todo="write to a file, to ais://bucket/name.tar, or to the stdin of a process as a file object",
        )


def make_encoder(spec: Any) -> Encoder:
    """Return the function that encodes a sample, as of `build_encoder`.

    Example:
        >>> make_encoder(True)({"__key__": "a", "cls": 7})
        {'__key__': 'a', 'cls': b'7'}
    """
    return build_encoder(spec)


def numpy_dumps(data: object) -> bytes:
    """Return an array as the bytes of an ``npy`` field."""
    return cast(bytes, build_encoder()({"npy": data})["npy"])


def torch_dumps(data: object) -> bytes:
    """Return tensors and plain containers as the bytes of a ``pth`` field."""
    return cast(bytes, build_encoder()({"pth": data})["pth"])


__getattr__ = explaining(__name__)
