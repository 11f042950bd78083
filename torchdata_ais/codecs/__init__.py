"""Encoding and decoding of the fields of WebDataset samples."""

from torchdata_ais.codecs.crop import CenterCrop, Crop, RandomResizedCrop, ResizeCrop
from torchdata_ais.codecs.decoder import Decoder
from torchdata_ais.codecs.encoder import build_encoder
from torchdata_ais.codecs.handlers import (
    MAX_GZ_BYTES,
    Continue,
    Decoded,
    GzipFilter,
    Handler,
    gzfilter,
    handle_extension,
)
from torchdata_ais.codecs.image import IMAGE_EXTENSIONS, IMAGE_SPECS, ImageHandler, imagehandler
from torchdata_ais.codecs.media import torch_audio, torch_video
from torchdata_ais.codecs.resize import MAX_PIXELS, Normalize
from torchdata_ais.codecs.table import FieldTable, basichandlers
from torchdata_ais.errors import EncodeError, MissingLibraryError

__all__ = [
    "IMAGE_EXTENSIONS",
    "IMAGE_SPECS",
    "MAX_GZ_BYTES",
    "MAX_PIXELS",
    "CenterCrop",
    "Continue",
    "Crop",
    "Decoded",
    "Decoder",
    "EncodeError",
    "FieldTable",
    "GzipFilter",
    "Handler",
    "ImageHandler",
    "MissingLibraryError",
    "Normalize",
    "RandomResizedCrop",
    "ResizeCrop",
    "basichandlers",
    "build_encoder",
    "gzfilter",
    "handle_extension",
    "imagehandler",
    "torch_audio",
    "torch_video",
]
