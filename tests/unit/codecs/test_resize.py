"""Decoding at size: exact sizes, aspect, agreement between libraries, JPEG shrinking."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image
import pytest
import torch

from torchdata_ais.codecs import Decoder, imagehandler
from torchdata_ais.codecs.crop import resized
from torchdata_ais.codecs.image import decode_rgb
from torchdata_ais.codecs.resize import MAX_PIXELS, dct_scale, resize, resize_pixels, target_size
from torchdata_ais.errors import UsageError


def picture(height: int, width: int, mode: str = "RGB") -> PIL.Image.Image:
    rng = np.random.default_rng(height + width)
    coarse = rng.integers(0, 256, (height // 6 + 2, width // 6 + 2, 3)).astype(np.uint8)
    large = PIL.Image.fromarray(coarse).resize((width, height), PIL.Image.Resampling.BICUBIC)
    return large.convert(mode)


def jpeg_of(image: PIL.Image.Image, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "jpeg", quality=92, **options)
    return stream.getvalue()


def png_of(image: PIL.Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "png")
    return stream.getvalue()


@pytest.mark.parametrize(
    "spec", ["l8", "rgb8", "rgba8", "rgb", "torchl", "torchrgb8", "torchrgba", "pil", "mask"]
)
@pytest.mark.parametrize(("height", "width"), [(90, 120), (31, 200), (224, 224), (5, 3), (1, 1), (500, 333)])
def test_size_is_exact(spec: str, height: int, width: int) -> None:
    image = picture(height, width, "L" if spec == "mask" else "RGB")
    for data in (png_of(image), jpeg_of(image)):
        for size in (32, (20, 48)):
            value = imagehandler(spec, size=size).decode(data)
            expected = (32, 32) if size == 32 else size
            if isinstance(value, PIL.Image.Image):
                assert value.size == expected[::-1]
            elif isinstance(value, torch.Tensor):
                assert value.shape[-2:] == expected
                assert value.is_contiguous()
            else:
                assert value.shape[:2] == expected
                assert value.flags.writeable


@pytest.mark.parametrize(
    ("height", "width", "expected"), [(375, 500, (64, 85)), (500, 375, (85, 64)), (64, 64, (64, 64))]
)
def test_shorter_keeps_the_aspect(height: int, width: int, expected: tuple[int, int]) -> None:
    data = jpeg_of(picture(height, width))
    assert imagehandler("torchrgb8", shorter=64).decode(data).shape == (3, *expected)
    assert imagehandler("pil", shorter=64).decode(data).size == expected[::-1]


def test_shorter_never_gives_an_empty_image() -> None:
    assert target_size(1000, 3, None, 1) == (333, 1)
    assert target_size(3, 1000, None, 1) == (1, 333)


@pytest.mark.parametrize(("mode", "spec"), [("RGB", "rgb8"), ("L", "l8"), ("RGBA", "rgba8")])
def test_arrays_are_resized_like_pillow_within_one_level(mode: str, spec: str) -> None:
    image = picture(150, 210, mode)
    for target in ((64, 64), (149, 80), (300, 420)):
        ours = imagehandler(spec, size=target).decode(png_of(image)).astype(int)
        theirs = np.asarray(image.resize(target[::-1], PIL.Image.Resampling.BILINEAR)).astype(int)
        assert np.abs(ours - theirs).max() <= 1


def test_floats_are_the_resized_bytes_over_255() -> None:
    data = png_of(picture(60, 80))
    whole = imagehandler("torchrgb8", size=30).decode(data)
    assert torch.equal(imagehandler("torchrgb", size=30).decode(data), whole.to(torch.float32) / 255)


def test_transparent_colours_do_not_bleed_when_resized() -> None:
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:, :4] = (255, 0, 0, 255)
    pixels[:, 4:] = (0, 255, 0, 0)  # invisible green
    for spec in ("rgba8", "pilrgba"):
        small = np.asarray(imagehandler(spec, size=(8, 3)).decode(png_of(PIL.Image.fromarray(pixels))))
        assert small[..., 1].max() == 0


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_shrunk_jpegs_are_the_same_with_and_without_simplejpeg(
    subsampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("simplejpeg")
    for height, width in [(257, 391), (256, 256), (100, 517), (131, 64), (509, 510), (9, 9), (17, 15)]:
        data = jpeg_of(picture(height, width), subsampling=subsampling)
        for target in (4, 31, 64, 100):
            handler = imagehandler("rgb8", size=target)
            fast = handler.decode(data)
            with monkeypatch.context() as patch:
                patch.setattr("torchdata_ais.codecs.image._simplejpeg", lambda: None)
                assert np.array_equal(handler.decode(data), fast), (height, width, target)


def test_a_jpeg_is_shrunk_by_its_decoder_to_no_less_than_the_target() -> None:
    pytest.importorskip("simplejpeg")
    data = jpeg_of(picture(401, 603))
    for target, scale in [(401, 1), (201, 1), (200, 2), (100, 4), (50, 8), (12, 8)]:
        found = decode_rgb(data, resized((target, target), None), MAX_PIXELS)
        assert found is not None
        assert found[0].shape == (-(-401 // scale), -(-603 // scale), 3)
        assert dct_scale(401, 603, (target, target)) == scale


def test_shrinking_in_the_decoder_stays_close_to_the_full_way() -> None:
    data = jpeg_of(picture(80, 100).resize((1000, 800), PIL.Image.Resampling.BICUBIC))
    ours = imagehandler("rgb8", size=224).decode(data).astype(int)
    full = np.asarray(
        PIL.Image.open(io.BytesIO(data)).resize((224, 224), PIL.Image.Resampling.BILINEAR)
    ).astype(int)
    assert np.abs(ours - full).mean() < 2


def test_masks_keep_their_values_when_resized() -> None:
    values = np.random.default_rng(0).choice([1, 2, 3, 255], (37, 53)).astype(np.uint8)
    for size in ((10, 10), (74, 106), (111, 7)):
        small = imagehandler("mask", size=size).decode(png_of(PIL.Image.fromarray(values)))
        assert set(np.unique(small)) <= {1, 2, 3, 255}
        nearest = PIL.Image.fromarray(values).resize(size[::-1], PIL.Image.Resampling.NEAREST)
        assert np.array_equal(small, np.asarray(nearest))


def test_a_handlers_own_size_wins_over_the_stages() -> None:
    decode = Decoder(imagehandler("rgb8", "small.png", size=8), "rgb8", shorter=16)
    sample = decode({"__key__": "a", "small.png": png_of(picture(40, 60)), "png": png_of(picture(40, 60))})
    assert sample["small.png"].shape == (8, 8, 3)
    assert sample["png"].shape == (16, 24, 3)
    decode = Decoder(imagehandler("rgb8", shorter=8), size=16)
    assert decode({"__key__": "a", "png": png_of(picture(40, 60))})["png"].shape == (8, 12, 3)


def test_sizes_that_make_no_sense_are_refused_when_built() -> None:
    for wrong in (
        {"size": 0},
        {"size": -3},
        {"size": (224, 0)},
        {"size": (1, 2, 3)},
        {"size": 2.5},
        {"size": True},
        {"shorter": 0},
        {"size": 224, "shorter": 256},
        {"sixteen_bit": "keep"},
    ):
        with pytest.raises(UsageError):
            Decoder("pil", **wrong)


def test_image_options_without_an_image_spec_are_refused() -> None:
    for option in ({"size": 224}, {"shorter": 9}, {"exif": True}, {"sixteen_bit": "scale"}):
        with pytest.raises(UsageError, match="no image spec"):
            Decoder(lambda name, data: None, **option)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("target", [(64, 48), (120, 200), (97, 131), (1, 7)])
def test_pixels_are_those_of_torchs_public_resize(
    mode: str, target: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = np.array(picture(97, 131, mode))
    planes = torch.from_numpy(pixels).permute(2, 0, 1) if mode == "RGB" else torch.from_numpy(pixels)[None]
    public = torch.nn.functional.interpolate(planes[None], size=target, mode="bilinear", antialias=True)[0]
    expected = (public.permute(1, 2, 0) if mode == "RGB" else public[0]).numpy()
    assert np.array_equal(resize_pixels(pixels, target), expected)
    asked: list[object] = []
    monkeypatch.delattr(torch._C._nn, "_upsample_bilinear2d_aa")  # as in a torch that calls it otherwise
    monkeypatch.setattr(
        torch.nn.functional, "interpolate", lambda images, **how: asked.append(how) or public[None]
    )
    resize.cache_clear()
    try:
        assert np.array_equal(resize_pixels(pixels, target), expected)
    finally:
        resize.cache_clear()
    how = {"size": target, "mode": "bilinear", "align_corners": False, "antialias": True}
    assert asked == ([] if target == (97, 131) else [how])
