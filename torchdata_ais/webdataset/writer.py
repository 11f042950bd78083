"""Writers: webdataset's names for `torchdata_ais.writing`."""

from __future__ import annotations

from typing import Any, cast

from torchdata_ais.codecs import build_encoder
from torchdata_ais.errors import UsageError
from torchdata_ais.writing import ShardWriter
from torchdata_ais.writing import TarWriter as _TarWriter

__all__ = ["ShardWriter", "TarWriter", "numpy_dumps", "torch_dumps"]


class TarWriter(_TarWriter):
    """Write samples to one tar shard: `torchdata_ais.TarWriter`, which says all; a ``pipe:`` is refused."""

    def __init__(self, fileobj: Any, *args: Any, **named: Any) -> None:
        if isinstance(fileobj, str) and fileobj.startswith("pipe:"):
            raise UsageError.at(
                f"{fileobj!r}: no shell is run to write to",
                todo="write to a file, to ais://bucket/name.tar, or to the stdin of a process as a file object",
            )
        super().__init__(fileobj, *args, **named)


def numpy_dumps(data: Any) -> bytes:
    """Return an array as the bytes of an ``npy`` field."""
    return cast(bytes, build_encoder()({"npy": data})["npy"])


def torch_dumps(data: Any) -> bytes:
    """Return tensors and plain containers as the bytes of a ``pth`` field."""
    return cast(bytes, build_encoder()({"pth": data})["pth"])
