"""Orientations in every format, numbers that eight bits do not hold, endings, and specs that match nothing."""

from __future__ import annotations

import io
import logging
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from torchdata_ais import AISSourceLister, CenterCrop, ais_loader, convert
from torchdata_ais.cli.checks.lint import lint_shards
from torchdata_ais.codecs import Decoder, imagehandler
from torchdata_ais.errors import DecodeError
from torchdata_ais.testing import write_shard

FORMATS = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "tif": "TIFF", "avif": "AVIF", "mpo": "MPO"}


def turned(ending: str, orientation: int, mode: str = "RGB") -> bytes:
    """Return a picture of 40 x 24, stored with an orientation."""
    form = FORMATS[ending]
    Image.init()
    if form not in Image.SAVE:
        pytest.skip(f"this Pillow writes no {form}")
    values = np.zeros((24, 40, 3), np.uint8)
    values[:8], values[:, :12, 1], values[16:, 30:, 2] = (250, 0, 0), 200, 220
    image = Image.fromarray(values).convert(mode)
    file = io.BytesIO()
    if form == "TIFF":
        image.save(file, form, tiffinfo={0x112: orientation})
    else:
        exif = Image.Exif()
        exif[0x112] = orientation
        options: dict[str, Any] = {"lossless": True} if form == "WEBP" else {"quality": 95}
        image.save(file, form, exif=exif, **({} if form == "PNG" else options))
    return file.getvalue()


def upright(data: bytes, mode: str = "RGB") -> Image.Image:
    return ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert(mode)


@pytest.mark.quick(12)
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("ending", FORMATS)
def test_a_picture_is_upright_in_any_size_and_crop(ending: str, orientation: int) -> None:
    data = turned(ending, orientation)
    whole = np.asarray(upright(data))
    height, width = whole.shape[:2]

    def decoded(**options: Any) -> np.ndarray:
        field = Decoder("rgb8", exif=True, **options)({"__key__": "a", ending: data})[ending]
        assert isinstance(field, np.ndarray)
        return field.astype(int)

    assert np.array_equal(decoded(), whole)
    assert np.array_equal(decoded(size=(height, width)), whole)
    assert np.array_equal(decoded(shorter=min(height, width)), whole)
    top, left = (height - 10) // 2, (width - 10) // 2
    assert np.array_equal(decoded(center_crop=10), whole[top : top + 10, left : left + 10])
    half = np.asarray(
        Image.fromarray(whole).resize((width // 2, height // 2), Image.Resampling.BILINEAR)
    ).astype(int)
    small = decoded(size=(height // 2, width // 2))
    assert small.shape == half.shape
    assert np.abs(small - half).mean() < 6
    assert decoded(shorter=12).shape[:2] == ((12, 20) if height < width else (20, 12))


@pytest.mark.quick(6)
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("ending", ["png", "tif"])
def test_a_mask_is_upright_in_any_size_and_crop(ending: str, orientation: int) -> None:
    data = turned(ending, orientation, "L")
    whole = np.asarray(upright(data, "L"))
    height, width = whole.shape
    for options in ({}, {"size": (height, width)}, {"shorter": 24}):
        found = Decoder("mask", exif=True, **options)({"__key__": "a", ending: data})[ending]
        assert np.array_equal(found, whole)
    cut = Decoder("mask", exif=True, crop=CenterCrop(10))({"__key__": "a", ending: data})[ending]
    top, left = (height - 10) // 2, (width - 10) // 2
    assert np.array_equal(cut, whole[top : top + 10, left : left + 10])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_tiff_is_turned_by_pillow_without_the_option(orientation: int) -> None:
    data = turned("tif", orientation)
    whole = np.asarray(upright(data))
    for options in ({}, {"size": whole.shape[:2]}, {"shorter": 24}):
        found = Decoder("rgb8", **options)({"__key__": "a", "tif": data})["tif"]
        assert np.array_equal(found, whole)


def tiff(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(values).save(file, "TIFF")
    return file.getvalue()


WIDE = {
    "fractions": np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4),
    "large": np.arange(12, dtype=np.int32).reshape(3, 4) * 7000,
    "negative": np.arange(12, dtype=np.int32).reshape(3, 4) - 6,
    "not a number": np.full((3, 4), np.nan, np.float32),
    "above": np.arange(12, dtype=np.float32).reshape(3, 4) * 30,
}


@pytest.mark.quick(8)
@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("spec", ["l8", "torchrgb8", "pil", "rgb", "torchl", "rgba8"])
def test_numbers_that_eight_bits_do_not_hold_are_an_error(spec: str, name: str) -> None:
    data = tiff(WIDE[name])
    for options in ({}, {"sixteen_bit": "scale"}, {"size": 2}):
        with pytest.raises(DecodeError, match=r'which eight bits do not hold.*spec "mask"'):
            Decoder(spec, **options)({"__key__": "a", "tif": data})
    kept = Decoder("mask")({"__key__": "a", "tif": data})["tif"]
    assert np.array_equal(kept, WIDE[name], equal_nan=True)
    assert kept.dtype == WIDE[name].dtype
    advised = Decoder(imagehandler("mask", "depth.tif"), spec)({"__key__": "a", "depth.tif": data})[
        "depth.tif"
    ]
    assert np.array_equal(advised, WIDE[name], equal_nan=True)


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_whole_numbers_up_to_255_are_pictures_whatever_their_type(kind: Any) -> None:
    values = np.arange(256).reshape(16, 16)
    assert np.array_equal(Decoder("l8")({"__key__": "a", "tif": tiff(values.astype(kind))})["tif"], values)


@pytest.mark.quick(5)
@pytest.mark.parametrize(
    "ending", ["jpe", "jfif", "jfi", "pjpeg", "pjpg", "pjp", "mpo", "jps", "tif", "avif", "qoi", "pfm"]
)
def test_endings_of_pictures_are_those_that_pillow_opens(ending: str) -> None:
    form = {"tif": "TIFF", "avif": "AVIF", "qoi": "QOI", "pfm": "PPM"}.get(ending, "JPEG")
    Image.init()
    if form not in Image.SAVE:
        pytest.skip(f"this Pillow writes no {form}")
    file = io.BytesIO()
    Image.new("F" if ending == "pfm" else "RGB", (4, 3), 7 if ending == "pfm" else (1, 2, 3)).save(file, form)
    found = Decoder("torchrgb8")({"__key__": "a", f"left.{ending}": file.getvalue()})[f"left.{ending}"]
    assert found.shape == (3, 3, 4)


def test_a_plug_in_of_pillow_brings_its_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    Image.new("RGB", (4, 3)).save(file, "PNG")
    sample = {"__key__": "a", "heic": file.getvalue()}
    decode = Decoder("rgb8")
    assert decode(sample)["heic"] == file.getvalue()
    monkeypatch.setitem(Image.EXTENSION, ".heic", "PNG")
    assert decode(sample)["heic"].shape == (3, 4, 3)


@pytest.mark.quick(5)
@pytest.mark.parametrize(
    "ending",
    ["oga", "opus", "caf", "w64", "rf64", "bwf", "wave", "aifc", "snd", "mp2", "mpga", "sph", "nist"],
)
def test_endings_of_sounds_are_those_that_libsndfile_reads(ending: str) -> None:
    soundfile = pytest.importorskip("soundfile")
    kinds = {"oga": ("OGG", "VORBIS"), "opus": ("OGG", "OPUS"), "caf": ("CAF", None), "w64": ("W64", None)}
    kinds |= {"rf64": ("RF64", None), "aifc": ("AIFF", "FLOAT"), "snd": ("AU", None), "sph": ("NIST", None)}
    kinds |= {"mp2": ("MP3", None), "mpga": ("MP3", None), "nist": ("NIST", None)}
    form, subtype = kinds.get(ending, ("WAV", None))
    file = io.BytesIO()
    soundfile.write(file, np.zeros((4000, 1)), 8000, format=form, subtype=subtype)
    wave, rate = Decoder("audio")({"__key__": "a", ending: file.getvalue()})[ending]
    assert wave.dtype == torch.float32
    assert wave.shape[0] == 1
    assert rate in (8000, 48000)


def jpeg() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 3)).save(file, "JPEG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("specs", "fields", "said"),
    [
        (
            ["audio"],
            ["jpg", "cls"],
            "decode('audio'): none of the first samples has a field of that kind; '0' has jpg, cls",
        ),
        (["torchrgb8"], ["image_bytes"], "decode('torchrgb8')"),
        (["rgb8", "audio"], ["jpg"], "decode('audio')"),
        (["rgb8", "video"], ["txt"], "decode('rgb8', 'video')"),
        (["rgb8"], ["left.jpg"], ""),
        (["rgb8"], ["jpg.gz"], ""),
        ([], ["txt"], ""),
        ([lambda name, data: None], ["txt"], ""),
    ],
)
def test_a_spec_that_matches_no_field_is_reported_once(
    specs: list[Any], fields: list[str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("soundfile")
    pytest.importorskip("av")
    import gzip

    value = {"jpg": jpeg(), "left.jpg": jpeg(), "cls": b"1", "jpg.gz": gzip.compress(jpeg())}
    samples = [{"__key__": str(n), **{name: value.get(name, b"x") for name in fields}} for n in range(20)]
    decode = Decoder(*specs)
    with caplog.at_level(logging.WARNING, "torchdata_ais"):
        for sample in samples:
            decode(dict(sample))
    texts = [record.getMessage() for record in caplog.records]
    assert [said in text for text in texts] == ([True] if said else []), texts


def test_a_spec_for_a_field_that_some_samples_have_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("soundfile")
    decode = Decoder("rgb8", "audio", only="jpg")
    for number in range(20):
        decode({"__key__": "a", "jpg": jpeg(), **({"wav": b""} if number == 5 else {})})
    assert not caplog.records


@pytest.mark.parametrize(
    ("names", "merged"),
    [
        ([f"{22 + n // 4}.{n % 4:02d}.png" for n in range(12)], "00.png, 01.png, 02.png and 1 more"),
        (["v1.0.jpg", "v1.0.txt", "v1.1.jpg", "v1.1.txt"], "0.jpg, 0.txt, 1.jpg and 1 more"),
        (["a.left.jpg", "a.right.jpg", "a.2"], ""),
    ],
)
def test_dots_that_merge_pictures_are_reported(
    names: list[str], merged: str, tmp_path: Any, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_shard(
        str(tmp_path / "s.tar"), [(name, b"a" if name.endswith("txt") else jpeg()) for name in names]
    )
    kinds = [problem.kind for problem in lint_shards(path).problems()]
    assert ("DotsInNames" in kinds) == bool(merged)
    for command in (["lint", path], ["info", path], ["convert", path, str(tmp_path / "o-%d.tar")]):
        shown = run(*command)
        assert shown.exit_code == 0
        assert (f"the fields {merged} begin with digits" in shown.output) == bool(merged)
    done = convert(path, str(tmp_path / "p-%d.tar"))
    assert bool(done.merged) == bool(merged)
    assert any("begin with digits" in record.getMessage() for record in caplog.records) == bool(merged)
    pipe = AISSourceLister([path]).load_tar().group_samples()
    assert len(list(pipe)) == len({name.partition(".")[0] for name in names})


@pytest.mark.ci
def test_several_workers_report_a_spec_once(capfd: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    shards = [
        write_shard(str(tmp_path / f"{n}.tar"), [(f"{n}-{m}.cls", b"1") for m in range(9)]) for n in range(4)
    ]
    pipe = AISSourceLister(shards).load_tar().group_samples().decode("rgb8").to_tuple("cls").batched(2)
    with ais_loader(pipe, num_workers=3, multiprocessing_context="spawn") as loader:
        assert len(list(loader)) > 0
    assert (
        capfd.readouterr().err.count("decode('rgb8'): none of the first samples has a field of that kind")
        == 1
    )
