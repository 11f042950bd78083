"""The ``.ten`` format: lists of arrays as bytes."""

from __future__ import annotations

from typing import NoReturn

from torchdata_ais.codecs.tenbin import dumps as encode_buffer
from torchdata_ais.codecs.tenbin import loads as decode_buffer
from torchdata_ais.webdataset.left_out import missing

__all__ = ["decode_buffer", "encode_buffer"]


def __getattr__(name: str) -> NoReturn:
    raise missing(__name__, name)
