"""Where a decoded value is put, if somebody has a place for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Place = Callable[["tuple[int, ...]"], "torch.Tensor | None"]
"""Returns contiguous uint8 memory of a shape, or None if it has none of that shape."""

Row = Callable[[str, "tuple[int, ...]"], "torch.Tensor | None"]
"""The places of a sample: that of a field, by its name and shape."""


def nowhere(_: tuple[int, ...]) -> None:
    """Have no place: the value gets memory of its own."""
