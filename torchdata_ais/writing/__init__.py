"""Shards out: samples to tar archives in files, streams and buckets, whole or not at all.

`TarWriter` writes one shard, `ShardWriter` a series that rolls over by count or size, and `convert` turns
folders of images, tables and existing shards into such a series.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdata_ais.writing.conversion import Conversion, Edit, convert
    from torchdata_ais.writing.manifest import Manifest, ShardInfo
    from torchdata_ais.writing.shard_writer import ShardWriter
    from torchdata_ais.writing.tar_writer import TarWriter

__all__ = ["Conversion", "Edit", "Manifest", "ShardInfo", "ShardWriter", "TarWriter", "convert"]

_LAZY = {
    "Conversion": "torchdata_ais.writing.conversion",
    "Edit": "torchdata_ais.writing.conversion",
    "Manifest": "torchdata_ais.writing.manifest",
    "ShardInfo": "torchdata_ais.writing.manifest",
    "ShardWriter": "torchdata_ais.writing.shard_writer",
    "TarWriter": "torchdata_ais.writing.tar_writer",
    "convert": "torchdata_ais.writing.conversion",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
