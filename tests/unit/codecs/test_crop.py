"""Crops: chosen as torchvision does, decoded to the same pixels, and refused in words."""

from __future__ import annotations

import base64
import io
import json
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision_values import FILE, digest, pixels

from torchdata_ais import CenterCrop, Decoder, RandomResizedCrop, ResizeCrop
from torchdata_ais.codecs import imagehandler
from torchdata_ais.codecs.crop import Crop, Frame, Part
from torchdata_ais.errors import DecodeError, UsageError

STORED = json.loads(FILE.read_text())
"""Values of torchvision; see torchvision_values.py."""


@pytest.fixture(params=["simplejpeg", "pillow"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Decode by either library."""
    if request.param == "pillow":
        monkeypatch.setattr("torchdata_ais.codecs.image._simplejpeg", lambda: None)
    else:
        pytest.importorskip("simplejpeg")
    return request.param


def picture(height: int, width: int, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(height * 1000 + width)
    coarse = rng.integers(0, 256, (height // 6 + 2, width // 6 + 2, 3)).astype(np.uint8)
    return (
        Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert("RGB").convert(mode)
    )


def file_of(image: Image.Image, kind: str = "jpeg", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **({"quality": 92} if kind == "jpeg" else {}), **options)
    return stream.getvalue()


def planes_of(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def drawn(crop: Crop, height: int, width: int, seed: int) -> Frame:
    return crop.frame(height, width, random.Random(seed))


def cut_of(frame: Frame, height: int, width: int) -> Part:
    return frame.cut or Part(0, 0, height, width)


# Geometry


class Replayed(random.Random):
    """Gives again what torchvision has drawn of torch's generator."""

    def __new__(cls, _: list[float]) -> Replayed:
        return super().__new__(cls)  # CPython 3.10 takes its argument for a seed

    def __init__(self, numbers: list[float]) -> None:
        super().__init__(0)
        self.numbers = numbers

    def uniform(self, a: float, b: float) -> float:
        value = self.numbers.pop(0)
        assert a - 1e-6 <= value <= b + 1e-6
        return value

    def randint(self, a: int, b: int) -> int:
        value = int(self.numbers.pop(0))
        assert a <= value <= b
        return value


def test_a_random_crop_is_torchvisions_for_the_same_numbers() -> None:
    for row in STORED["random"]:
        crop = RandomResizedCrop(224, scale=tuple(row["scale"]), ratio=tuple(row["ratio"]))
        height, width = row["shape"]
        numbers = list(row["drawn"])
        assert [*cut_of(crop.frame(height, width, Replayed(numbers)), height, width)] == row["cut"], row
        assert not numbers, "torchvision has drawn more"


def sized(size: Any) -> Any:
    return tuple(size) if isinstance(size, list) else size


@pytest.mark.parametrize("row", STORED["middle"], ids=str)
def test_the_middle_is_torchvisions(row: Any) -> None:
    data = file_of(Image.fromarray(pixels(*row["shape"])), "png")
    ours = Decoder("torchrgb8", center_crop=sized(row["size"]))({"png": data})["png"]
    assert digest(ours) == row["digest"]


@pytest.mark.parametrize("row", STORED["resized"], ids=str)
def test_resize_and_middle_are_torchvisions(row: Any) -> None:
    data = file_of(Image.fromarray(pixels(*row["shape"])), "png")
    ours = Decoder("torchrgb8", resize_crop=(row["shorter"], sized(row["size"])))({"png": data})["png"]
    assert digest(ours) == row["digest"]


def test_a_crop_is_always_within_the_picture() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        height, width = rng.choice([1, 2, 3, 50, 400]), rng.choice([1, 2, 3, 70, 900])
        ratio = sorted(rng.uniform(0.05, 20) for _ in "ab")
        crop = RandomResizedCrop(8, scale=(rng.uniform(1e-9, 0.5), 1.0), ratio=(ratio[0], ratio[1]))
        top, left, tall, wide = cut_of(crop.frame(height, width, rng), height, width)
        assert tall >= 1
        assert wide >= 1
        assert 0 <= top <= height - tall
        assert 0 <= left <= width - wide


def test_flips_come_as_often_as_said() -> None:
    for flip in (0.0, 0.3, 1.0):
        found = sum(drawn(RandomResizedCrop(8, flip=flip), 50, 50, seed).mirrored for seed in range(2000))
        assert abs(found / 2000 - flip) < 0.04


# Pixels


@pytest.mark.quick(5)
@pytest.mark.parametrize("spec", ["torchrgb8", "rgb8", "pil", "torchl8", "rgb", "torchrgba8"])
def test_pixels_are_those_of_decoding_all_and_cropping_then(spec: str, library: str) -> None:
    """Within 2 levels, wherever the decoder need not shrink."""
    for height, width in ((375, 400), (61, 40), (1, 50), (30, 1)):
        for data in (file_of(picture(height, width)), file_of(picture(height, width), "png")):
            whole = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
            crop = RandomResizedCrop((224, 200), flip=0.5)
            for seed in range(3):
                value = Decoder(spec, crop=crop)({"__key__": "a", "img": data}, seed)["img"]
                frame = drawn(crop, height, width, seed)
                top, left, tall, wide = cut_of(frame, height, width)
                small = Image.fromarray(whole[top : top + tall, left : left + wide])
                if spec == "torchl8":
                    small = Image.open(io.BytesIO(data)).convert("L")
                    small = small.crop((left, top, left + wide, top + tall))
                if spec == "torchrgba8":
                    small = small.convert("RGBA")
                wanted = np.array(small.resize((200, 224), Image.Resampling.BILINEAR)).astype(float)
                wanted = wanted[:, ::-1] if frame.mirrored else wanted
                got = value.numpy() if isinstance(value, torch.Tensor) else np.array(value)
                if isinstance(value, torch.Tensor) and got.ndim == 3:
                    got = got.transpose(1, 2, 0)
                if spec == "rgb":
                    got = got * 255
                assert np.abs(got - wanted).max() <= 2, (height, width, seed)


@pytest.mark.ci
def test_pixels_are_torchvisions_where_nothing_is_shrunk(library: str) -> None:
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    data = file_of(picture(375, 500))
    crop = RandomResizedCrop(224, flip=0.5)
    whole = planes_of(Image.open(io.BytesIO(data)))
    for seed in range(20):
        ours = Decoder("torchrgb8", crop=crop)({"jpg": data}, seed)["jpg"]
        frame = drawn(crop, 375, 500, seed)
        theirs = functional.resized_crop(whole, *cut_of(frame, 375, 500), [224, 224], antialias=True)
        assert torch.equal(ours, functional.hflip(theirs) if frame.mirrored else theirs)


@pytest.mark.parametrize(("size", "scales"), [(96, (2, 4)), (60, (4, 8))])
def test_crops_that_the_decoder_shrinks_are_close(size: int, scales: tuple[int, ...], library: str) -> None:
    """At least 36 dB on a picture of edges and gradients; a crop that is one pixel off has 27."""
    height, width = 1203, 1601
    image = picture(height // 8, width // 8).resize((width, height), Image.Resampling.BICUBIC)
    data = file_of(image)
    whole = Image.open(io.BytesIO(data))
    crop = RandomResizedCrop(size, flip=0.5)
    seen = set()
    for seed in range(30):
        frame = drawn(crop, height, width, seed)
        top, left, tall, wide = cut_of(frame, height, width)
        seen.add(next(scale for scale in (8, 4, 2, 1) if min(tall, wide) // size >= scale))
        box = (left, top, left + wide, top + tall)
        wanted = np.array(whole.resize((size, size), Image.Resampling.BILINEAR, box)).astype(float)
        got = Decoder("rgb8", crop=crop)({"jpg": data}, seed)["jpg"].astype(float)
        error = np.mean((got - (wanted[:, ::-1] if frame.mirrored else wanted)) ** 2)
        assert 10 * np.log10(255**2 / error) >= 36, (seed, frame)
    assert seen >= set(scales)


def test_both_libraries_give_the_same_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("simplejpeg")
    data = file_of(picture(801, 1203))
    decode = Decoder("rgb8", random_resized_crop=64, flip=0.5)
    fast = [decode({"jpg": data}, seed)["jpg"] for seed in range(8)]
    monkeypatch.setattr("torchdata_ais.codecs.image._simplejpeg", lambda: None)
    assert all(np.array_equal(decode({"jpg": data}, seed)["jpg"], fast[seed]) for seed in range(8))


def test_picture_and_mask_of_a_sample_get_the_same_crop() -> None:
    rows, columns = np.mgrid[0:200, 0:250].astype(np.uint8)
    image = Image.fromarray(np.stack([rows, columns, rows], -1))
    sample = {
        "__key__": "a",
        "image.png": file_of(image, "png"),
        "row.png": file_of(Image.fromarray(rows), "png"),
    }
    decode = Decoder(
        imagehandler("mask", "row.png"), "rgb8", random_resized_crop=(40, 50), scale=(0.3, 0.6), flip=1.0
    )
    for seed in range(10):
        found = decode(sample, seed)
        assert found["row.png"].shape == (40, 50)
        assert np.abs(found["row.png"].astype(int) - found["image.png"][..., 0]).max() <= 3
        assert (np.diff(found["image.png"][..., 1].astype(int)) <= 0).all(), "mirrored: columns fall"


# Pictures that are odd


@pytest.mark.quick(6)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_before_the_crop_is_chosen(orientation: int, library: str) -> None:
    """Also where the decoder shrinks, and its last row and column are turned to the front."""
    height, width = 1201, 1605
    image = picture(height // 12, width // 12).resize((width, height), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = file_of(image, exif=exif)
    turned = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    for size in (400, 50):
        crop = RandomResizedCrop(size)
        top, left, tall, wide = cut_of(
            drawn(crop, turned.height, turned.width, 5), turned.height, turned.width
        )
        small = turned.resize((size, size), Image.Resampling.BILINEAR, (left, top, left + wide, top + tall))
        got = Decoder("rgb8", crop=crop, exif=True)({"jpg": data}, 5)["jpg"].astype(int)
        assert np.abs(got - np.array(small)).mean() < 1
    if orientation > 1:
        without = Decoder("rgb8", crop=crop)({"jpg": data}, 5)["jpg"].astype(int)
        assert np.abs(without - got).mean() > 5


def odd() -> dict[str, bytes]:
    image = picture(90, 130)
    deep = Image.fromarray((np.arange(90 * 130).reshape(90, 130) * 5 % 65536).astype(np.uint16))
    return {
        "grey.jpg": file_of(image.convert("L")),
        "cmyk.jpg": file_of(image.convert("CMYK")),
        "progressive.jpg": file_of(image, progressive=True),
        "444.jpg": file_of(image, subsampling=0),
        "deep.png": file_of(deep, "png"),
        "palette.png": file_of(image.convert("P"), "png"),
        "alpha.png": file_of(image.convert("RGBA"), "png"),
        "row.jpg": file_of(picture(1, 90)),
        "column.jpg": file_of(picture(90, 1)),
        "pixel.jpg": file_of(picture(1, 1)),
    }


# 96 x 64: red grows to the right, green downwards. No library of the tests writes the arithmetic code of JPEG.
ARITHMETIC = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsLEBYQERMUFRUV"
    "DA8XGBYUGBIUFRT/2wBDAQMEBAUEBQkFBQkUDQsNFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQU"
    "FBT/yQARCABAAGADASIAAhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIRAxEAPwD/AOyMEb7Jw/hRd4jiegbqEWr+rZPjvX1bIJVjJdti"
    "ZD5Nrg7+j2gsmWB36RUOdahJW6wevaudZ7NbnKJWtOULDSb/AOcJst0tUbT+bHtx1ORgSdq1MqTjHjE9cq4j52ayBlh0VFo9Egtq6bgp"
    "PrSjgN61cuHKzcyXbb51H5lceODUatFMi+zrSBF16V8JyOe0GeEywQovnWMwTPi+1QyzfYk+3QLcMAQt5PljgvXKkWvvR1YdS2WoGJs7"
    "kWdKeAlBlpX7kA71hyFoWB+c7x9DRv8ADMMwJRxqnynNNVfSK8ZCXq2EX5q9wC1Abhs0Bi4iIgXiPaR7g16XjA/zXws2SBwF437GX2Bm"
    "OonQl0ym5Gv9ZLlpHq3ktgj9y6IQGoDwSg61sKqDr75OiW3pEAFYvZAyeInpW1ofWbUiyMTZ5WFJqXVtAHpLirJr5IaGGA4qyvOhqFeE"
    "/XfoteVNbZu+CMzkk7B455pBR0kvAbBuUtP3pyzYaZxFnw9XhgqCztP71Eipj2UBEjkmCP/Z"
)

CROPS: list[Any] = [
    {"random_resized_crop": 48, "flip": 0.5},
    {"random_resized_crop": (200, 7)},
    {"center_crop": 48},
    {"center_crop": (200, 7)},
    {"resize_crop": (56, 48)},
]


@pytest.mark.parametrize("how", CROPS)
@pytest.mark.parametrize("spec", ["torchrgb8", "l8", "pilrgba", "rgba", "torchl"])
def test_odd_pictures_are_cropped_to_size(spec: str, how: Any) -> None:
    size = how.get("random_resized_crop") or how.get("center_crop") or 48
    wanted = (size, size) if isinstance(size, int) else size
    for name, data in odd().items():
        value = Decoder(spec, sixteen_bit="scale", **how)({name: data}, 1)[name]
        if isinstance(value, Image.Image):
            assert value.size == wanted[::-1], name
        elif isinstance(value, torch.Tensor):
            assert value.shape[-2:] == wanted, name
            assert value.is_contiguous()
        else:
            assert value.shape[:2] == wanted, name
            assert value.flags.writeable
            assert value.flags.c_contiguous


@pytest.mark.parametrize("how", CROPS)
def test_a_cut_picture_is_an_error_with_any_crop(how: Any, library: str) -> None:
    for data in (file_of(picture(300, 400)), file_of(picture(300, 400), progressive=True), ARITHMETIC):
        for end in (3, 100, 400, len(data) // 2, len(data) - 40, len(data) - 2):
            with pytest.raises(DecodeError, match="Field 'jpg' of sample 'k'"):
                Decoder("torchrgb8", **how)({"__key__": "k", "jpg": data[:end]}, 1)


@pytest.mark.parametrize("how", CROPS)
def test_a_jpeg_of_arithmetic_code_is_cropped_as_the_same_picture_without(how: Any, library: str) -> None:
    assert b"\xff\xc9" in ARITHMETIC
    plain = file_of(Image.open(io.BytesIO(ARITHMETIC)), subsampling=2)
    ours, theirs = (
        Decoder("rgb8", **how)({"__key__": "k", "jpg": data}, 1)["jpg"].astype(int)
        for data in (ARITHMETIC, plain)
    )
    assert np.abs(ours - theirs).mean() < 2


def test_too_many_pixels_are_refused_before_decoding() -> None:
    data = file_of(picture(300, 400))
    with pytest.raises(DecodeError, match="max_pixels=119999"):
        Decoder("torchrgb8", random_resized_crop=8, max_pixels=119_999)({"jpg": data}, 0)
    narrow = file_of(picture(2000, 1))
    with pytest.raises(DecodeError, match="would become"):
        Decoder("torchrgb8", resize_crop=(100, 50), max_pixels=20_000)({"jpg": narrow}, 0)
    with pytest.raises(UsageError, match="max_pixels"):
        Decoder("torchrgb8", random_resized_crop=224, max_pixels=1000)


# The options


def test_an_object_says_the_same_as_its_single_names() -> None:
    data = file_of(picture(90, 130))
    for named, crop in (
        (
            {"random_resized_crop": 20, "scale": (0.1, 0.5), "ratio": (1, 2), "flip": 0.5},
            RandomResizedCrop(20, scale=(0.1, 0.5), ratio=(1, 2), flip=0.5),
        ),
        ({"center_crop": 20}, CenterCrop(20)),
        ({"resize_crop": (30, (20, 10))}, ResizeCrop(30, (20, 10))),
    ):
        one: Any = Decoder("rgb8", **named)  # type: ignore[arg-type]
        two: Any = pickle.loads(pickle.dumps(Decoder("rgb8", crop=crop)))
        three: Any = Decoder(imagehandler("rgb8", crop=crop))
        for seed in range(3):
            values = [decode({"jpg": data}, seed)["jpg"] for decode in (one, two, three)]
            assert np.array_equal(values[0], values[1])
            assert np.array_equal(values[0], values[2])


def test_without_a_seed_torchs_generator_draws() -> None:
    data = file_of(picture(90, 130))
    decode = Decoder("torchrgb8", random_resized_crop=16)
    found = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        found.append(torch.stack([decode({"jpg": data})["jpg"] for _ in range(3)]))
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[0][0], found[0][1])


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"random_resized_crop": 0}, "random_resized_crop=0 is no size"),
        ({"random_resized_crop": "224"}, "is no size"),
        ({"random_resized_crop": True}, "is no size"),
        ({"center_crop": (1, 2, 3)}, "is no size"),
        ({"random_resized_crop": 8, "scale": 0.5}, "scale=0.5 is no range"),
        ({"random_resized_crop": 8, "scale": (0, 1)}, "is no range"),
        ({"random_resized_crop": 8, "scale": (0.5, 1.5)}, "is no range"),
        ({"random_resized_crop": 8, "scale": (0.5, float("nan"))}, "is no range"),
        ({"random_resized_crop": 8, "ratio": (2, 1)}, "ratio=.* is no range"),
        ({"random_resized_crop": 8, "ratio": (1, float("inf"))}, "is no range"),
        ({"random_resized_crop": 8, "flip": 1.1}, "flip=1.1 is no probability"),
        ({"random_resized_crop": 8, "flip": True}, "is no probability"),
        ({"random_resized_crop": 8, "center_crop": 8}, "are both given"),
        ({"random_resized_crop": 8, "size": 8}, "are both given"),
        ({"resize_crop": (8, 4), "shorter": 8}, "are both given"),
        ({"crop": CenterCrop(8), "center_crop": 8}, "crop= and center_crop= are both given"),
        ({"crop": CenterCrop(8), "flip": 0.5}, "flip= belongs to random_resized_crop="),
        ({"flip": 0.5}, "flip= belongs to random_resized_crop="),
        ({"crop": 224}, "crop=224 is no crop"),
        ({"resize_crop": 224}, "resize_crop=224 is no pair"),
        ({"resize_crop": (224, 256)}, "takes more than is there"),
        ({"resize_crop": ((2, 2), 1)}, "is no size"),
        ({"random_resize_crop": 224}, "Did you mean random_resized_crop"),
        ({"random_crop": 224}, "has no option 'random_crop'"),
    ],
)
def test_what_cannot_work_is_refused_in_words(how: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Decoder("torchrgb8", **how)


def test_a_crop_needs_a_spec_to_act_on() -> None:
    with pytest.raises(UsageError, match="crop= has no image spec to act on"):
        Decoder(lambda name, data: None, center_crop=8)
