"""The ``.ten`` format: lists of arrays as bytes."""

from __future__ import annotations

from torchdata_ais.codecs.tenbin import dumps as encode_buffer
from torchdata_ais.codecs.tenbin import loads as decode_buffer
from torchdata_ais.webdataset.left_out import explaining

__all__ = ["decode_buffer", "encode_buffer"]


__getattr__ = explaining(__name__)
