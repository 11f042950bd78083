"""What a batch is made of: tensors in tuples, lists and mappings, one in another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from torchdata_ais.codecs import Normalize
from torchdata_ais.dataloader2.own.pin_memory import made_like
from torchdata_ais.errors import UsageError

_LEAST_DIMENSIONS = 4  # a batch of masks (N, H, W) could have as many masks as images have channels


def with_tensors(batch: Any, function: Callable[[Any], Any]) -> Any:
    """Return `batch` with what `function` makes of each tensor or `PackedSequence`; all else is what it was.

    Tuples, named tuples, lists and mappings are made anew, of their kind if that can be made of values.

    Example:
        >>> import torch
        >>> with_tensors({"a": (torch.ones(2), "text"), "b": [b"raw", None]}, lambda one: one.tolist())
        {'a': ([1.0, 1.0], 'text'), 'b': [b'raw', None]}
    """
    if isinstance(batch, (Tensor, PackedSequence)):
        return function(batch)
    if isinstance(batch, Mapping):
        return made_like(batch, {name: with_tensors(value, function) for name, value in batch.items()})
    if isinstance(batch, (tuple, list)):
        values = [with_tensors(value, function) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else made_like(batch, values)
    return batch


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, those of a `PackedSequence` one by one.

    Example:
        >>> import torch
        >>> [tensor.item() for tensor in tensors_in({"a": (torch.tensor(1), "text"), "b": [torch.tensor(2)]})]
        [1, 2]
    """
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_in(value)
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            yield from tensors_in(value)


def normalized(batch: Any, normalize: Normalize) -> Any:
    """Return `batch` with its images normalised: uint8 tensors (..., N, C, H, W) of as many channels.

    Raises:
        UsageError: There are none.

    Example:
        >>> images, labels = torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.arange(2)
        >>> [tensor.dtype for tensor in normalized((images, labels), Normalize())]
        [torch.float32, torch.int64]
    """
    found = False

    def each(one: Any) -> Any:
        nonlocal found
        channels = one.shape[-3] if isinstance(one, Tensor) and one.ndim >= _LEAST_DIMENSIONS else 0
        if channels != len(normalize.mean) or one.dtype != torch.uint8:
            return one
        found = True
        return normalize(one)

    result = with_tensors(batch, each)
    if not found:
        shapes = ", ".join(f"{tuple(one.shape)} of {one.dtype}" for one in tensors_in(batch)) or "no tensors"
        raise UsageError.at(
            f"normalize= of {len(normalize.mean)} channels met a batch without images: it has {shapes}",
            todo='end the pipe with images of one size: .decode("torchrgb8", size=224)...batched(64); or leave it out',
        )
    return result
