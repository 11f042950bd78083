"""Decoding: webdataset's names for `torchdata_ais.codecs`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from torchdata_ais.codecs import IMAGE_EXTENSIONS as IMAGE_EXTENSIONS
from torchdata_ais.codecs import IMAGE_SPECS
from torchdata_ais.codecs import Continue as Continue
from torchdata_ais.codecs import Decoder as FieldDecoder
from torchdata_ais.codecs import basichandlers as basichandlers
from torchdata_ais.codecs import gzfilter as gzfilter
from torchdata_ais.codecs import handle_extension as handle_extension
from torchdata_ais.codecs import imagehandler as imagehandler
from torchdata_ais.codecs import torch_audio as torch_audio
from torchdata_ais.codecs import torch_video as torch_video
from torchdata_ais.codecs.handlers import FIELD_KINDS, MEDIA_KINDS, Handler
from torchdata_ais.codecs.resize import Size
from torchdata_ais.errors import DecodeError
from torchdata_ais.samples import Fields
from torchdata_ais.webdataset.filters import _nothing
from torchdata_ais.webdataset.filters import map as map_stage
from torchdata_ais.webdataset.left_out import explaining

DecodingError = DecodeError
ImageHandler = imagehandler
imagespecs = {name: spec for name, spec in IMAGE_SPECS.items() if spec.mode != "mask" and name != "rgbtorch"}
pytorch_weights_only = True
"""Whether ``pt`` and ``pth`` fields are loaded as plain data: always, unless ``allow_pickle=True`` is said."""


def torch_loads(data: bytes) -> Any:
    """Return what ``torch.save`` made, if it is tensors and plain containers."""
    return _decoded("pth", data)


def unpickle_loads(data: bytes, *, allow_pickle: bool = False) -> Any:
    """Return what was pickled, if that is allowed: a pickle can run any code."""
    return _decoded("pkl", data, allow_pickle)


def _decoded(field: str, data: bytes, allow_pickle: bool = False) -> object:
    return FieldDecoder(_nothing, allow_pickle=allow_pickle)({field: data})[field]


decoders: Mapping[str, Callable[[bytes], object]] = MappingProxyType(
    {
        name: partial(_decoded, name)
        for kind, names in FIELD_KINDS.items()
        if kind not in MEDIA_KINDS
        for name in names
    }
)
"""The field table as functions of bytes; to decode otherwise, pass `handle_extension` to `decode`."""


class Decoder:
    """Decode samples, or the samples of a dataset.

    Args:
        *handlers: Image specs and functions ``(field, bytes) -> value or None``, one by one or as one list.
        pre: Handlers before them; default: the one for ``.gz``.
        post: Handlers after them; default: the field table.
        only: Fields to decode.
        partial: Whether values other than bytes pass unchanged.
        size: Resize images to so many pixels; `torchdata_ais.Decoder` has further options.
        allow_pickle: Load ``pkl``, object arrays and whole objects in ``pt``. They can run code.

    Example:
        >>> decoder = Decoder(handle_extension("n", int))
        >>> decoder({"__key__": "a", "n": b"7", "txt": b"cat"})
        {'__key__': 'a', 'n': 7, 'txt': 'cat'}
        >>> [sample["n"] for sample in decoder([{"n": b"1"}, {"n": b"2"}])]
        [1, 2]
    """

    def __init__(
        self,
        *handlers: Any,
        pre: Iterable[Handler] | None = None,
        post: Iterable[Handler] | None = None,
        only: Iterable[str] | str | None = None,
        partial: bool = False,
        size: int | Size | None = None,
        allow_pickle: bool = False,
    ) -> None:
        if len(handlers) == 1 and isinstance(handlers[0], (list, tuple)):
            handlers = tuple(handlers[0])
        self._codec = FieldDecoder(
            *(handlers or (_nothing,)),
            pre=pre,
            post=post,
            only=only,
            partial=partial,
            size=size,
            allow_pickle=allow_pickle,
        )

    def decode(self, sample: Fields) -> Fields:
        """Return a new sample with decoded values."""
        return self._codec(sample)

    def __call__(self, source: object) -> Any:
        """Return a sample decoded, or a dataset of decoded samples."""
        if isinstance(source, dict):
            return self._codec(source)
        from torchdata_ais.webdataset.compat import behind

        return behind(source, map_stage(self.decode))


__getattr__ = explaining(__name__)
