"""`Normalize`: what torchvision makes of uint8 images, on the device, out of the worker's way."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from torchdata_ais import Normalize
from torchdata_ais.errors import UsageError

IMAGES = torch.arange(256, dtype=torch.uint8).repeat(3 * 4).view(4, 3, 16, 16)


def wanted(images: torch.Tensor, mean: Any, std: Any) -> torch.Tensor:
    mean, std = (torch.tensor(row, dtype=torch.float64).view(-1, 1, 1) for row in (mean, std))
    return (images.double() / 255 - mean) / std


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_values_are_those_of_the_formula_and_the_layout_stays(layout: Any) -> None:
    normalize = Normalize()
    for images in (IMAGES.to(memory_format=layout), IMAGES[0], IMAGES[None]):
        found = normalize(images)
        assert found.dtype == torch.float32
        assert torch.allclose(
            found.double(), wanted(images, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), atol=1e-5, rtol=0
        )
    assert normalize(IMAGES.to(memory_format=layout)).is_contiguous(memory_format=layout)
    assert IMAGES.dtype == torch.uint8


def test_a_copy_and_halves_give_the_same() -> None:
    normalize = Normalize([0.5], [0.25], dtype=torch.bfloat16)
    grey = IMAGES[:, :1]
    found = normalize(grey)
    assert found.dtype == torch.bfloat16
    assert torch.equal(pickle.loads(pickle.dumps(normalize))(grey), found)
    assert torch.allclose(found.double(), wanted(grey, [0.5], [0.25]), atol=2**-7, rtol=0)


@pytest.mark.ci
def test_values_are_torchvisions() -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    theirs = v2.Compose(
        [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])]
    )
    assert torch.allclose(
        Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])(IMAGES), theirs(IMAGES), atol=2e-6, rtol=0
    )


@pytest.mark.parametrize(
    "how", [{"mean": [0.5]}, {"std": [0.1, 0.2, 0]}, {"mean": [], "std": []}, {"std": [1, 1, float("nan")]}]
)
def test_numbers_that_cannot_be_are_refused(how: Any) -> None:
    with pytest.raises(UsageError, match="do not fit"):
        Normalize(**how)


@pytest.mark.parametrize(
    "images", [IMAGES.float(), IMAGES[:, :1], IMAGES.permute(0, 2, 3, 1), torch.zeros(3, dtype=torch.uint8)]
)
def test_other_images_are_refused_in_words(images: torch.Tensor) -> None:
    with pytest.raises(UsageError, match="uint8 images"):
        Normalize()(images)
