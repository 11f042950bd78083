"""Crops as torchvision makes them, stored in torchvision_values.json.

    python tests/unit/codecs/torchvision_values.py

writes the file anew. It was written with torchvision 0.29.2. The tests read it, so they need no torchvision.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

FILE = Path(__file__).with_suffix(".json")
SHAPES = [(375, 500), (500, 375), (60, 40), (1, 50), (50, 1), (1, 1), (17, 400), (33, 31), (224, 224)]
RANGES = [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.5, 1.0), (1.0, 1.0)), ((0.9, 1.0), (2.0, 3.0))]
MIDDLES = [224, (32, 300), 1, (3, 2)]
RESIZED = [(256, 224), (33, (33, 20)), (7, 1), (40, (60, 30))]


def pixels(height: int, width: int) -> np.ndarray[Any, Any]:
    """Return an RGB picture each pixel of which shows its place; made without Pillow, whose versions differ."""
    y, x = np.mgrid[:height, :width]
    return np.stack([y * 7 % 256, x * 5 % 256, (y * 3 + x * 11) % 256], axis=-1).astype(np.uint8)


def digest(planes: torch.Tensor) -> str:
    """Return what is stored of channels x height x width pixels."""
    array = planes.contiguous().numpy()
    return f"{array.shape} {hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()}"


def _random_crops() -> list[dict[str, Any]]:
    from torchvision.transforms import v2

    numbers: list[float] = []
    uniform, randint = torch.Tensor.uniform_, torch.randint

    def kept_uniform(self: Any, *given: Any, **named: Any) -> Any:
        numbers.append(uniform(self, *given, **named).item())
        return self

    def kept_randint(*given: Any, **named: Any) -> Any:
        value = randint(*given, **named)
        numbers.append(value.item())
        return value

    torch.Tensor.uniform_, torch.randint = kept_uniform, kept_randint  # type: ignore[method-assign,assignment]
    torch.manual_seed(3)
    rows = []
    for scale, ratio in RANGES:
        crop = v2.RandomResizedCrop(224, scale=scale, ratio=ratio, antialias=True)
        for height, width in SHAPES:
            for _ in range(4):
                numbers.clear()
                made = crop.make_params([torch.empty((3, height, width))])
                cut = [made["top"], made["left"], made["height"], made["width"]]
                if 0 not in cut[2:]:  # of a picture of one pixel torchvision may take none
                    rows.append(
                        {
                            "scale": scale,
                            "ratio": ratio,
                            "shape": (height, width),
                            "drawn": [*numbers],
                            "cut": cut,
                        }
                    )
    torch.Tensor.uniform_, torch.randint = uniform, randint  # type: ignore[method-assign]
    return rows


def main() -> None:
    """Write the file."""
    from torchvision.transforms.v2 import functional

    planes = {shape: torch.from_numpy(pixels(*shape)).permute(2, 0, 1) for shape in SHAPES}
    middles = [
        {"size": size, "shape": shape, "digest": digest(functional.center_crop(planes[shape], size))}
        for size in MIDDLES
        for shape in SHAPES
    ]
    resized = [
        {
            "shorter": shorter,
            "size": size,
            "shape": shape,
            "digest": digest(
                functional.center_crop(functional.resize(planes[shape], [shorter], antialias=True), size)
            ),
        }
        for shorter, size in RESIZED
        for shape in SHAPES[1:-1]
    ]
    found = {"random": _random_crops(), "middle": middles, "resized": resized}
    lines = ",\n".join(
        f' "{name}": [\n' + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n ]"
        for name, rows in found.items()
    )
    FILE.write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
