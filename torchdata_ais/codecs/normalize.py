"""Pixels to normalised floats, on the device that trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchdata_ais.errors import UsageError
from torchdata_ais.shown import value_text

if TYPE_CHECKING:
    import torch

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Normalize:
    """Make uint8 images floats of given mean and deviation: ``(x / 255 - mean) / std``, in the main process.

    Workers hand over uint8, a quarter of the bytes; the device computes. It takes what ``torchrgb8`` gives, in
    batches and alone.

    Args:
        mean: Of each channel, for values from 0 to 1. Default: ImageNet's.
        std: Of each channel.
        dtype: Of the result; None is float32. Halves are computed in float32.

    Memory:
        The result, and once more as much while halves are made.

    Raises:
        UsageError: `mean` and `std` have not as many channels, or a deviation is not above 0; other images than uint8.

    Example:
        >>> import torch
        >>> normalize = Normalize(mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])
        >>> images = torch.full((64, 3, 224, 224), 255, dtype=torch.uint8)
        >>> normalize(images.to("cpu", non_blocking=True)).unique().tolist()
        [2.0]
    """

    def __init__(
        self,
        mean: Sequence[float] = IMAGENET[0],
        std: Sequence[float] = IMAGENET[1],
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        try:
            self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))
        except (TypeError, ValueError):
            raise UsageError.at(
                f"mean={mean!r:.60} and std={std!r:.60} are not numbers", todo="pass one a channel of each"
            ) from None
        if len(self.mean) != len(self.std) or not self.std or not all(one > 0 for one in self.std):
            raise UsageError.at(
                f"mean={self.mean} and std={self.std} do not fit",
                todo="pass as many numbers of each as images have channels, deviations above 0",
            )
        self.dtype = dtype
        self._on: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return (..., C, H, W) floats of (..., C, H, W) uint8 images, on the same device and in the same layout."""
        import torch

        if not isinstance(images, torch.Tensor):
            raise UsageError.at(
                f"Normalize was given {value_text(images)}",
                todo="pass ais_loader(pipe, normalize=Normalize()), or write .map_tuple(Normalize(), None)",
            )
        channels = images.shape[-3] if images.ndim >= 3 else 0
        if images.dtype != torch.uint8 or channels != len(self.mean):
            raise UsageError.at(
                f"Normalize of {len(self.mean)} channels was given {tuple(images.shape)} of {images.dtype}",
                todo='pass uint8 images (..., C, H, W), as .decode("torchrgb8") gives them',
            )
        if images.device not in self._on:
            mean, std = (
                torch.tensor(row, dtype=torch.float64).view(-1, 1, 1) for row in (self.mean, self.std)
            )
            factors = ((255 * std).reciprocal(), -mean / std)
            self._on[images.device] = tuple(one.float().to(images.device) for one in factors)  # type: ignore[assignment]
        scale, shift = self._on[images.device]
        normal = images.to(torch.float32).mul_(scale).add_(shift)
        return normal if self.dtype is None else normal.to(self.dtype)

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_on": {}}

    def __repr__(self) -> str:
        return f"Normalize(mean={self.mean}, std={self.std})"
