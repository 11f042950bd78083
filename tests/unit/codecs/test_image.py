"""Images: every spec against webdataset on every kind of file, and the differences we chose."""

from __future__ import annotations

import functools
import io
import pickle
import struct
import zlib

import numpy as np
import PIL.Image
import pytest
import torch

from torchdata_ais.codecs import IMAGE_EXTENSIONS, IMAGE_SPECS, Decoder, imagehandler
from torchdata_ais.codecs.crop import resized
from torchdata_ais.codecs.image import decode_rgb
from torchdata_ais.codecs.resize import MAX_PIXELS
from torchdata_ais.errors import DecodeError, UsageError

# Pillow says so of every palette image with transparency, in webdataset as well.
pytestmark = pytest.mark.filterwarnings("ignore:Palette images with Transparency")

NO_PICTURES = [
    "h5",
    "hdf",
    "mpg",
    "mpeg",
    "fit",
    "fits",
    "grib",
    "bufr",
    "wmf",
    "emf",
    "eps",
    "ps",
    "pdf",
    "palm",
]
SPECS_OF_WEBDATASET = [name for name in IMAGE_SPECS if name not in ("mask", "torchmask", "rgbtorch")]


def texture(height: int, width: int, channels: int = 3) -> np.ndarray:
    rng = np.random.default_rng(height * 1000 + width)
    coarse = rng.integers(0, 256, (height // 4 + 2, width // 4 + 2, channels))
    smooth = np.kron(coarse, np.ones((4, 4, 1)))[:height, :width]
    return np.clip(smooth + rng.normal(0, 8, smooth.shape), 0, 255).astype(np.uint8)


def file_of(image: PIL.Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


@functools.cache
def corpus() -> dict[str, bytes]:
    rgb = PIL.Image.fromarray(texture(37, 53))
    rgba = PIL.Image.fromarray(texture(37, 53, 4))
    grey = rgb.convert("L")
    palette = rgb.quantize(16)
    deep = PIL.Image.fromarray((np.arange(30, dtype=np.uint16) * 2184).reshape(5, 6))
    files = {
        "one-pixel.png": file_of(PIL.Image.new("RGB", (1, 1), (1, 2, 3)), "png"),
        "rgb.png": file_of(rgb, "png"),
        "rgba.png": file_of(rgba, "png"),
        "grey.png": file_of(grey, "png"),
        "grey-alpha.png": file_of(grey.convert("LA"), "png"),
        "bits.png": file_of(rgb.convert("1"), "png"),
        "palette.png": file_of(palette, "png"),
        "palette-alpha.png": file_of(palette, "png", transparency=b"\x00\x80\xff"),
        "deep.png": file_of(deep, "png"),
        "deep.tiff": file_of(deep, "tiff"),
        "deep.pgm": file_of(deep, "ppm"),
        "float.tiff": file_of(PIL.Image.fromarray(np.arange(30, dtype="f4").reshape(5, 6) * 8), "tiff"),
        "grey.jpg": file_of(grey, "jpeg"),
        "cmyk.jpg": file_of(rgb.convert("CMYK"), "jpeg"),
        "rgb-in-rgb.jpg": file_of(rgb, "jpeg", keep_rgb=True),
        "progressive.jpg": file_of(rgb, "jpeg", progressive=True, optimize=True),
        "two-pictures.jpg": file_of(rgb, "mpo", save_all=True, append_images=[rgb]),
        "rgb.bmp": file_of(rgb, "bmp"),
        "rgb.ppm": file_of(rgb, "ppm"),
        "rgb.gif": file_of(rgb, "gif"),
        "rgb.tif": file_of(rgb, "tiff"),
        "rgba.webp": file_of(rgba, "webp"),
        "rgb.tga": file_of(rgb, "tga"),
        "png-named.jpg": file_of(rgb, "png"),
        "jpg-named.png": file_of(rgb, "jpeg"),
    }
    for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
        for quality in (30, 95):
            name = f"rgb-{subsampling.replace(':', '')}-{quality}.jpg"
            files[name] = file_of(rgb, "jpeg", subsampling=subsampling, quality=quality)
    return files


@pytest.fixture(params=["with simplejpeg", "without"])
def fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "without":
        monkeypatch.setattr("torchdata_ais.codecs.image._simplejpeg", lambda: None)
    else:
        pytest.importorskip("simplejpeg")
    return request.param != "without"


@pytest.mark.parametrize("spec", SPECS_OF_WEBDATASET)
def test_every_spec_gives_webdatasets_result_on_every_file(spec: str, fast: bool) -> None:
    autodecode = pytest.importorskip("webdataset.autodecode")
    decode, theirs = Decoder(spec), autodecode.imagehandler(spec)
    for name, data in corpus().items():
        field = name.rpartition(".")[2]
        ours, expected = decode({"__key__": "a", field: data})[field], theirs("." + field, data)
        assert type(ours) is type(expected), name
        if isinstance(expected, PIL.Image.Image):
            assert (ours.mode, ours.size, ours.tobytes()) == (
                expected.mode,
                expected.size,
                expected.tobytes(),
            ), name
            continue
        assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape), name
        assert np.array_equal(np.asarray(ours), np.asarray(expected)), name
        if isinstance(ours, torch.Tensor):
            assert ours.is_contiguous(), name
        else:
            assert ours.flags.writeable, name


def test_rgbtorch_is_torchrgb() -> None:
    data = corpus()["rgb.png"]
    assert torch.equal(imagehandler("rgbtorch")(".png", data), imagehandler("torchrgb")(".png", data))


AS_IT_IS = resized(None, None)


def test_simplejpeg_takes_plain_colour_jpegs_and_nothing_else() -> None:
    pytest.importorskip("simplejpeg")
    taken = {name for name, data in corpus().items() if decode_rgb(data, AS_IT_IS, MAX_PIXELS) is not None}
    plain = {name for name in corpus() if name.startswith("rgb-4")}
    assert taken == plain | {"progressive.jpg", "jpg-named.png", "two-pictures.jpg"}


def test_a_cut_jpeg_is_an_error_and_never_half_an_image(fast: bool) -> None:
    data = corpus()["rgb-420-95.jpg"]
    decode = Decoder("rgb8")
    for end in [*range(0, len(data) - 2, 61), len(data) - 40]:
        with pytest.raises(DecodeError, match="Field 'jpg'"):
            decode({"__key__": "a", "jpg": data[:end]})


def test_damaged_images_fail_or_not_alike_with_and_without_simplejpeg(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("simplejpeg")
    whole = corpus()["rgb-420-95.jpg"]
    rng = np.random.default_rng(5)
    handler = imagehandler("rgb8")

    def outcome(data: bytes) -> object:
        try:
            return handler.decode(data).tobytes()
        except Exception as error:
            return type(error)

    for _ in range(300):
        damaged = bytearray(whole)
        for position in rng.integers(0, len(whole), int(rng.integers(1, 4))):
            damaged[position] = rng.integers(0, 256)
        with monkeypatch.context() as patch:
            mine = outcome(bytes(damaged))
            patch.setattr("torchdata_ais.codecs.image._simplejpeg", lambda: None)
            assert mine == outcome(bytes(damaged))


def test_a_cut_png_is_an_error() -> None:
    data = corpus()["rgb.png"]
    for end in range(0, len(data) - 16, 97):
        with pytest.raises(DecodeError):
            Decoder("pil")({"__key__": "a", "png": data[:end]})


@pytest.mark.parametrize("extension", NO_PICTURES)
def test_files_that_are_no_pictures_stay_bytes_under_an_image_spec(extension: str) -> None:
    assert Decoder("rgb8")({"__key__": "a", extension: b"data"})[extension] == b"data"


def test_all_other_extensions_of_webdataset_are_claimed() -> None:
    autodecode = pytest.importorskip("webdataset.autodecode")
    refused = set(NO_PICTURES)
    assert set(autodecode.IMAGE_EXTENSIONS) - refused <= IMAGE_EXTENSIONS
    assert not refused & IMAGE_EXTENSIONS


def test_postscript_under_another_name_is_never_run() -> None:
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    with pytest.raises(DecodeError, match="no image that Pillow can read"):
        Decoder("pil")({"__key__": "a", "png": program})


def test_img_and_image_fields_are_decoded_only_if_they_are_images() -> None:
    decode = Decoder("rgb8")
    sample = decode({"__key__": "a", "image": corpus()["grey.jpg"], "img": b"a disk image"})
    assert sample["image"].shape == (37, 53, 3)
    assert sample["img"] == b"a disk image"


def test_sixteen_bits_are_clipped_or_scaled_by_choice() -> None:
    stored = (np.arange(30, dtype=np.uint16) * 2184).reshape(5, 6)
    for name in ("deep.png", "deep.tiff", "deep.pgm"):
        data, field = corpus()[name], name.rpartition(".")[2]
        clipped = Decoder("l8")({"__key__": "a", field: data})[field]
        scaled = Decoder("l8", sixteen_bit="scale")({"__key__": "a", field: data})[field]
        assert np.array_equal(clipped, np.minimum(stored, 255))
        assert np.array_equal(scaled, np.rint(stored / 257).astype(np.uint8))
        rgb = Decoder("rgb8", sixteen_bit="scale")({"__key__": "a", field: data})[field]
        assert np.array_equal(rgb[..., 1], scaled)
    whole = imagehandler("l8", sixteen_bit="scale").decode(
        file_of(PIL.Image.fromarray(np.full((2, 2), 65535, np.uint16)), "png")
    )
    assert whole.max() == 255


def test_a_mask_keeps_the_numbers_that_are_stored() -> None:
    trimap = np.array([[1, 2, 3], [3, 2, 1]], np.uint8)
    palette = PIL.Image.fromarray(trimap, "L").copy()
    palette.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200, 9, 9, 9])
    deep = np.array([[0, 300], [65535, 7]], np.uint16)
    cases = [
        (PIL.Image.fromarray(trimap), trimap, torch.uint8),
        (palette, trimap, torch.uint8),
        (PIL.Image.fromarray(trimap > 1), (trimap > 1).astype(np.uint8), torch.uint8),
        (PIL.Image.fromarray(deep), deep, torch.int32),
    ]
    for image, stored, dtype in cases:
        data = file_of(image, "png")
        assert np.array_equal(imagehandler("mask").decode(data), stored)
        tensor = imagehandler("torchmask").decode(data)
        assert tensor.dtype == dtype
        assert np.array_equal(tensor.numpy(), stored)
    with pytest.raises(DecodeError, match="one value a pixel"):
        imagehandler("mask").decode(corpus()["rgb.png"])


def grey_png(rows: list[list[int]], bits: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packed = b""
    for row in rows:
        text = "".join(f"{value:0{bits}b}" for value in row)
        text += "0" * (-len(text) % 8)
        packed += b"\0" + int(text, 2).to_bytes(len(text) // 8, "big")
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), bits, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(packed))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_mask_of_few_bits_is_not_spread_over_255(bits: int) -> None:
    rows = [[value % 2**bits for value in range(7)], [(3 * value) % 2**bits for value in range(7)]]
    assert imagehandler("mask").decode(grey_png(rows, bits)).tolist() == rows


def test_a_mask_handler_first_and_a_spec_for_the_rest() -> None:
    trimap = np.array([[1, 2], [3, 1]], np.uint8)
    decode = Decoder(imagehandler("torchmask", "trimap.png"), "torchrgb8", size=(4, 6))
    sample = decode(
        {
            "__key__": "a",
            "trimap.png": file_of(PIL.Image.fromarray(trimap), "png"),
            "image.png": corpus()["rgb.png"],
        }
    )
    assert sample["image.png"].shape == (3, 4, 6)
    assert sample["trimap.png"].tolist() == np.kron(trimap, np.ones((2, 3), int)).tolist()


def with_orientation(image: PIL.Image.Image, orientation: int) -> bytes:
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    return file_of(image, "jpeg", exif=exif, quality=95)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_followed_only_on_request(orientation: int, fast: bool) -> None:
    image = PIL.Image.fromarray(texture(8, 12)).resize((64, 40), PIL.Image.Resampling.BICUBIC)
    data = with_orientation(image, orientation)
    upright = PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(data)))
    assert imagehandler("rgb8").decode(data).shape == (40, 64, 3)
    assert np.array_equal(imagehandler("rgb8", exif=True).decode(data), np.asarray(upright))
    small = imagehandler("rgb8", exif=True, size=(10, 20)).decode(data)
    assert small.shape == (10, 20, 3)
    expected = np.asarray(upright.resize((20, 10), PIL.Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(small - expected).mean() < 3  # the JPEG decoder shrank it first
    if orientation >= 5:  # the decoder must not shrink 64 x 40 by the factor that 40 x 64 would allow
        exact = imagehandler("rgb8", exif=True, size=(10, 21)).decode(data).astype(int)
        expected = np.asarray(upright.resize((21, 10), PIL.Image.Resampling.BILINEAR))
        assert np.abs(exact - expected).max() <= 1
    longer = imagehandler("pil", exif=True, shorter=20).decode(data)
    assert longer.size == ((20, 32) if orientation >= 5 else (32, 20))


def test_pil_images_are_plain_and_loaded() -> None:
    image = Decoder("pil")({"__key__": "a", "jpg": corpus()["rgb-420-95.jpg"]})["jpg"]
    assert type(image) is PIL.Image.Image
    assert pickle.loads(pickle.dumps(image)).tobytes() == image.tobytes()


def test_an_unknown_spec_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="Did you mean torchrgb"):
        Decoder("torchrbg")
    with pytest.raises(UsageError, match="There is no spec 'PIL'"):
        Decoder("PIL")
