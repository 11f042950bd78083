"""Contact sheets: whatever samples and batches look like, and what the picture shows."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from torchdata_ais.errors import UsageError
from torchdata_ais.examples.pets import CLASSES, make_pets
from torchdata_ais.observe.display import contact_sheet
from torchdata_ais.observe.display.rows import find, rows_of, text_of, to_mask, to_picture

RED, GREEN = (250, 0, 0), (0, 250, 0)
SIZE = 32


def flat(colour: tuple[int, int, int], side: int = SIZE) -> np.ndarray[Any, Any]:
    return np.full((side, side, 3), colour, np.uint8)


def png(colour: tuple[int, int, int]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(flat(colour)).save(out, "PNG")
    return out.getvalue()


def planar(colour: tuple[int, int, int]) -> torch.Tensor:
    return torch.from_numpy(flat(colour)).permute(2, 0, 1)


def middle(sheet: Image.Image, tile: int, size: int = SIZE) -> Any:
    """Return the colour in the middle of a tile of the first row."""
    return sheet.getpixel((6 + tile * (size + 6) + size // 2, 6 + size // 2))


TWO_COLOURS: dict[str, Any] = {
    "samples of bytes": [{"__key__": "a", "png": png(RED), "cls": b"1"}, {"__key__": "b", "png": png(GREEN)}],
    "samples of arrays": [{"__key__": "a", "npy": flat(RED)}, {"__key__": "b", "npy": flat(GREEN)}],
    "tuples": [(flat(RED), 1), (flat(GREEN), 2)],
    "labels first": [(1, planar(RED)), (2, planar(GREEN))],
    "pillow images": [Image.fromarray(flat(RED)), Image.fromarray(flat(GREEN))],
    "columns of bytes images": (torch.stack([planar(RED), planar(GREEN)]), torch.tensor([1, 2])),
    "columns of floats": [torch.tensor([1, 2]), torch.stack([planar(RED), planar(GREEN)]).float() / 255],
    "columns in channels last": (np.stack([flat(RED), flat(GREEN)]), np.array([1, 2])),
    "columns of lists": ([Image.fromarray(flat(RED)), Image.fromarray(flat(GREEN))], ["one", "two"]),
    "a dict of columns": {"__key__": ["a", "b"], "jpg": torch.stack([planar(RED), planar(GREEN)]), "cls": [1, 2]},
    "a batch of images": torch.stack([planar(RED), planar(GREEN)]),
    "bfloat16": torch.stack([planar(RED), planar(GREEN)]).to(torch.bfloat16) / 255,
}  # fmt: skip


@pytest.mark.parametrize("name", TWO_COLOURS)
def test_two_samples_in_any_form_give_two_tiles(name: str) -> None:
    sheet = contact_sheet(TWO_COLOURS[name], size=SIZE)
    assert sheet.width == 2 * (SIZE + 6) + 6
    for tile, colour in enumerate((RED, GREEN)):
        assert np.abs(np.array(middle(sheet, tile)) - np.array(colour)).max() <= 3, name


ONES: list[Any] = [
    png(RED),
    flat(RED),
    planar(RED),
    Image.fromarray(flat(RED)),
    {"jpg": png(RED)},
    (3, flat(RED)),
]


@pytest.mark.parametrize("one", ONES)
def test_one_sample_gives_one_tile(one: Any) -> None:
    assert middle(contact_sheet(one, size=SIZE), 0) == RED


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_as_many_grey_images_as_there_are_channels_are_still_images(count: int) -> None:
    images = torch.full((count, 1, SIZE, SIZE), 100, dtype=torch.uint8)
    masks = torch.zeros((count, SIZE, SIZE), dtype=torch.uint8)
    rows = rows_of((torch.arange(count), images, masks), 9)
    assert len(rows) == count
    assert all(row[2].shape == (SIZE, SIZE) for row in rows)


def test_normalisation_is_undone_or_the_range_is_stretched() -> None:
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    pixels = torch.rand(3, 8, 8)
    normal = (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    undone = np.asarray(to_picture(normal, mean, std))
    assert np.abs(undone - np.rint(pixels.permute(1, 2, 0).numpy() * 255)).max() <= 1
    stretched = np.asarray(to_picture(normal, None, None))
    assert (stretched.min(), stretched.max()) == (0, 255)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.full((4, 4), 7, np.uint8), 7),
        (np.full((4, 4), True), 255),
        (np.full((4, 4), 1000, np.uint16), 3),
        (np.full((4, 4), 200, np.int64), 200),
        (np.full((4, 4), 0.5), 128),
        (np.full((4, 4), 130.0), 130),
        (np.full((4, 4), np.nan), 0),
        (Image.fromarray(np.full((4, 4), 1000, np.uint16)), 3),
    ],
)
def test_numbers_of_any_kind_become_pixels(value: Any, expected: int) -> None:
    assert to_picture(value, None, None).getpixel((0, 0)) == (expected,) * 3


def test_what_is_transparent_is_white() -> None:
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert to_picture(image, None, None).getpixel((0, 0)) == (255, 255, 255)


def test_masks_tint_what_they_cover_and_nothing_else() -> None:
    mask = np.zeros((SIZE, SIZE), np.uint8)
    mask[:, SIZE // 2 :] = 1
    sample = {"__key__": "a", "jpg": flat((0, 0, 0)), "trimap.png": mask}
    sheet = contact_sheet(sample, size=SIZE, opacity=1.0)
    assert sheet.getpixel((6 + 4, 20)) == (0, 0, 0)
    assert sheet.getpixel((6 + SIZE - 4, 20)) == (230, 159, 0)
    assert contact_sheet(sample, size=SIZE, mask=False).getpixel((6 + SIZE - 4, 20)) == (0, 0, 0)


def test_a_mask_decoded_as_a_picture_is_still_a_mask() -> None:
    (pet,) = make_pets(1)
    raw = np.asarray(Image.open(io.BytesIO(pet["trimap.png"])))
    decoded = torch.from_numpy(raw.copy()).float().div(255).expand(3, -1, -1)
    assert (to_mask(decoded) == raw).all()
    assert (to_mask(pet["trimap.png"]) == raw).all()


def test_image_label_and_mask_are_found_or_named() -> None:
    (pet,) = make_pets(1)
    found = find(pet)
    assert (found.image.size, found.label, found.mask.mode) == ((500, 375), int(pet["cls"]), "L")
    assert find(pet, image="trimap.png").image.mode == "L"
    assert find(pet, label="__key__").label == pet["__key__"]
    assert find(pet, label=False, mask=False)[1:3] == (None, None)
    photo = np.arange(SIZE * SIZE, dtype=np.uint16).reshape(SIZE, SIZE)
    assert find({0: flat(RED), 1: photo}).mask is None  # a second photograph


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([], {}, "nothing to show"),
        ({"__key__": "a", "cls": 3}, {}, "No image in the sample; it has __key__, cls"),
        ({"__key__": "a", "jpg": flat(RED)}, {"image": "png"}, "No field 'png'"),
        ({"__key__": "a", "jpg": flat(RED)}, {"label": "txt"}, "No field 'txt' for label="),
        (flat(RED), {"mask": 4}, "No field 4 for mask="),
        (flat(RED), {"objects": 0}, "objects=0"),
        (iter([flat(RED)]), {}, r"next\(iterator\)"),
        (7, {}, "of type int is no sample"),
    ],
)
def test_what_cannot_be_shown_says_why(data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        contact_sheet(data, **options)


def test_tiles_fill_rows_and_only_so_many_are_shown() -> None:
    images = torch.zeros(20, 3, 8, 8)
    assert contact_sheet(images, size=20, label=False).size == (8 * 26 + 6, 3 * 26 + 6)
    assert contact_sheet(images, size=20, columns=5, objects=7).size == (5 * 26 + 6, 2 * 26 + 6)


def test_the_aspect_stays() -> None:
    sheet = contact_sheet(np.zeros((20, 80, 3), np.uint8), size=80)
    assert sheet.getpixel((46, 46)) == (0, 0, 0)
    assert sheet.getpixel((46, 12)) == (255, 255, 255)


def test_labels_are_drawn_below_and_names_of_classes_stand_for_numbers() -> None:
    def inked(**options: Any) -> int:
        strip = np.asarray(contact_sheet((flat(RED, 64), 2), size=64, **options))[70:]
        return int((strip.min(axis=2) < 128).sum())

    assert inked() > 0
    assert inked(classes=["a", "b", "Wolpertinger"]) > 2 * inked()
    assert contact_sheet((flat(RED, 64), 2), size=64, label=False).height == 76
    assert text_of(torch.tensor(2), ["cat", "dog", "fish"]) == "fish"
    assert text_of(torch.tensor([1]), {1: "dog"}) == "dog"
    assert text_of(7, CLASSES) == "7"
    assert text_of(b"two\nlines", None) == "two lines"


def test_long_and_foreign_labels_do_not_fail() -> None:
    for text in ("x" * 5000, "Füße 狗 🐕", "\ud800"):
        contact_sheet({"__key__": "a", "jpg": flat(RED), "txt": text}, size=SIZE)


def test_nothing_of_the_callers_is_changed() -> None:
    batch = (torch.rand(2, 3, 8, 8), torch.tensor([1, 2]))
    before = [part.clone() for part in batch]
    contact_sheet(batch, mean=[0.5] * 3, std=[0.5] * 3)
    assert all(torch.equal(now, then) for now, then in zip(batch, before, strict=True))
