"""What decoding may take: pixels as stored and as asked for, unpacked bytes; and orientations that are none."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from torchdata_ais.codecs import MAX_PIXELS, Decoder, imagehandler
from torchdata_ais.codecs.handlers import gunzip
from torchdata_ais.codecs.image import IMAGE_SPECS
from torchdata_ais.errors import DecodeError, UsageError
from torchdata_ais.testing import write_shard
from torchdata_ais.webdataset import decode as wds_decode


def picture(kind: str, width: int, height: int, mode: str = "RGB", **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.new(mode, (width, height)).save(stream, kind, **options)
    return stream.getvalue()


def png_head(width: int, height: int) -> bytes:
    """A PNG that says so many pixels and has none of them: whatever decodes it fails in another way."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )


def icon(inner: bytes) -> bytes:
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(inner), 22) + inner


def icns(inner: bytes) -> bytes:
    return b"icns" + struct.pack(">I", 16 + len(inner)) + b"ic07" + struct.pack(">I", 8 + len(inner)) + inner


def tiled_tiff(tile: int) -> bytes:
    """A TIFF of one pixel in a tile of `tile` x `tile`."""
    tags = [
        (256, 1),
        (257, 1),
        (258, 8),
        (259, 8),
        (262, 1),
        (277, 1),
        (322, tile),
        (323, tile),
        (324, 8),
        (325, 0),
    ]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + entries + bytes(4)


FILES: dict[str, tuple[str, bytes]] = {
    "png": ("png", picture("PNG", 30, 20)),
    "png, 16 bits": ("png", picture("PNG", 30, 20, "I;16")),
    "png, palette": ("png", picture("PNG", 30, 20, "P")),
    "png, alpha": ("png", picture("PNG", 30, 20, "RGBA")),
    "jpeg": ("jpg", picture("JPEG", 30, 20)),
    "jpeg, grey": ("jpg", picture("JPEG", 30, 20, "L")),
    "jpeg, cmyk": ("jpg", picture("JPEG", 30, 20, "CMYK")),
    "gif of frames": (
        "gif",
        picture("GIF", 30, 20, "L", save_all=True, append_images=[Image.new("L", (30, 20), 9)]),
    ),
    "tiff of frames": ("tif", picture("TIFF", 30, 20, save_all=True, append_images=[Image.new("L", (3, 3))])),
    "webp": ("webp", picture("WEBP", 30, 20)),
    "bmp": ("bmp", picture("BMP", 30, 20)),
    "ppm": ("ppm", picture("PPM", 30, 20)),
    "tga": ("tga", picture("TGA", 30, 20)),
    "jpeg 2000": ("jp2", picture("JPEG2000", 30, 20)),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("spec", ["pil", "rgb8", "torchrgba", "torchl8"])
def test_an_image_has_at_most_max_pixels(name: str, spec: str) -> None:
    field, data = FILES[name]
    sample = {"__key__": "a", "__url__": "s.tar", field: data}
    assert field in Decoder(spec, max_pixels=600)(sample)
    with pytest.raises(
        DecodeError, match=r"image has 20 x 30 pixels .*max_pixels=599. Raise max_pixels="
    ) as caught:
        Decoder(spec, max_pixels=599)(sample)
    error = caught.value
    assert (error.key, error.field, error.url) == ("a", field, "s.tar")
    with pytest.raises(DecodeError, match="max_pixels=599"):
        imagehandler(spec, max_pixels=599)(f".{field}", data)
    with pytest.raises(DecodeError, match="max_pixels=599"):
        list(wds_decode(spec, max_pixels=599)([sample]))


def test_a_mask_has_at_most_max_pixels() -> None:
    data = picture("PNG", 30, 20, "P")
    assert Decoder("mask", max_pixels=600)({"png": data})["png"].shape == (20, 30)
    with pytest.raises(DecodeError, match="max_pixels=599"):
        Decoder("mask", max_pixels=599)({"png": data})


@pytest.mark.parametrize("spec", sorted(IMAGE_SPECS))
@pytest.mark.parametrize("fmt", ["PNG", "JPEG", "GIF"])
def test_what_an_image_becomes_has_at_most_max_pixels(spec: str, fmt: str) -> None:
    line = picture(fmt, 300, 1, "L")
    decoder = Decoder(spec, shorter=10, max_pixels=29_999)
    with pytest.raises(
        DecodeError, match="1 x 300 pixels would become 10 x 3000, more than max_pixels=29999"
    ):
        decoder({"png": line})
    assert "png" in Decoder(spec, shorter=10, max_pixels=30_000)({"png": line})
    # On the way to 30 x 200 a column of 300 pixels is 300 x 200.
    column = picture(fmt, 1, 300, "L")
    with pytest.raises(DecodeError, match="300 x 1 pixels would become 300 x 200"):
        Decoder(spec, size=(30, 200), max_pixels=59_999)({"png": column})
    assert "png" in Decoder(spec, size=(30, 200), max_pixels=60_000)({"png": column})


def test_a_turned_image_is_measured_as_it_will_stand() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    line = picture("JPEG", 300, 1, exif=exif.tobytes())
    with pytest.raises(DecodeError, match="300 x 1 pixels would become 3000 x 10"):
        Decoder("rgb8", shorter=10, exif=True, max_pixels=29_999)({"jpg": line})
    assert Decoder("rgb8", shorter=10, exif=True)({"jpg": line})["jpg"].shape == (3000, 10, 3)


@pytest.mark.parametrize(
    ("field", "data", "shown"),
    [
        ("ico", icon(png_head(9000, 8000)), "8000 x 9000"),
        ("ico", icon(struct.pack("<IiiHH", 40, 9000, 16000, 1, 32) + bytes(24)), "8000 x 9000"),
        ("ico", icon(struct.pack("<IHHHH", 12, 9000, 16000, 1, 24) + bytes(24)), "8000 x 9000"),
        ("icns", icns(png_head(9000, 8000)), "8000 x 9000"),
        ("icns", icns(picture("JPEG2000", 900, 800, "L")), "800 x 900"),
        ("icns", icns(picture("JPEG2000", 900, 800, "L", no_jp2=True)), "800 x 900"),
        ("tif", tiled_tiff(8000), "8000 x 8000"),
        ("png", png_head(9000, 8000), "8000 x 9000"),
    ],
)
def test_what_stands_in_an_image_is_measured_before_it_is_decoded(
    field: str, data: bytes, shown: str
) -> None:
    with pytest.raises(DecodeError, match=f"{shown} pixels .*more than max_pixels=100000"):
        Decoder("rgb8", max_pixels=100_000)({field: data})


def test_icons_are_decoded_as_before() -> None:
    for data in (picture("ICO", 64, 64, "RGBA"), picture("ICO", 64, 64, "RGBA", bitmap_format="bmp")):
        assert Decoder("rgb8", max_pixels=64 * 64)({"ico": data})["ico"].shape == (64, 64, 3)
    assert Decoder("rgb8")({"icns": picture("ICNS", 128, 128, "RGBA")})["icns"].shape[2] == 3


def test_what_pillow_refuses_by_itself_says_how_to_allow_it() -> None:
    with pytest.raises(
        DecodeError, match=r"limit of 178956970 pixels.*Raise PIL\.Image\.MAX_IMAGE_PIXELS, and max_pi"
    ):
        Decoder("rgb8", max_pixels=1 << 40)({"png": png_head(100_000, 10_000)})
    assert Image.MAX_IMAGE_PIXELS == MAX_PIXELS


def test_sizes_that_no_image_can_have_are_wrong_calls() -> None:
    for options in (
        {"size": 10_000},
        {"size": (1, 90_000_000)},
        {"shorter": 9_460},
        {"size": 11, "max_pixels": 120},
    ):
        with pytest.raises(UsageError, match="pixels and more are asked for"):
            Decoder("rgb8", **options)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="max_pixels="):
            Decoder(imagehandler("rgb8", "png", **options))  # type: ignore[arg-type]
    for wrong in (0, -1, 1.5, True, "1"):
        with pytest.raises(UsageError, match="max_pixels="):
            Decoder("rgb8", max_pixels=wrong)  # type: ignore[arg-type]


def test_a_contact_sheet_decodes_no_bomb(tmp_path: Any) -> None:
    from torchdata_ais.observe.display import contact_sheet

    write_shard(tmp_path / "s.tar", {})
    for field in ("png", "image"):
        with pytest.raises(DecodeError, match="max_pixels="):
            contact_sheet([{"__key__": "a", field: png_head(12_000, 12_000), "cls": b"1"}])


# -- compressed fields


def test_gunzip_gives_what_gzip_was_given() -> None:
    parts = [b"", b"x", bytes(3_000_000), np.random.default_rng(0).bytes(200_000), b"y" * 70_000]
    for padding in (0, 7, 600):
        packed = b"".join(gzip.compress(part) + bytes(padding) for part in parts)
        assert gunzip(packed, 1 << 30) == b"".join(parts)
        assert len(gunzip(packed, sum(map(len, parts)))) == sum(map(len, parts))
        with pytest.raises(DecodeError, match="unpack to more than max_gz_bytes="):
            gunzip(packed, sum(map(len, parts)) - 1)
    for cut in (0, 1, 5, 15):
        with pytest.raises(DecodeError, match=r"end early|damaged"):
            gunzip(gzip.compress(b"text")[:cut], 100)
    for bad in (gzip.compress(b"a") + b"junk", b"junk", b"a" * 99):
        with pytest.raises(DecodeError, match="damaged"):
            gunzip(bad, 100)


@pytest.mark.parametrize("members", [1, 40])
def test_gunzip_never_holds_more_than_max_bytes_and_2_mib(members: int) -> None:
    size = 16 << 20
    packed = gzip.compress(bytes(2 * size // members)) * members
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="max_gz_bytes"):
            gunzip(packed, size)
        bomb = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        assert len(gunzip(packed, 2 * size)) == 2 * size // members * members
        whole = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The buffer asks for an eighth more than it fills; what is not filled takes no memory.
    assert bomb < size * 9 // 8 + (2 << 20)
    assert whole < 2 * size * 9 // 8 + (2 << 20)


# -- orientations


def exif_of(kind: int, count: int, value: bytes) -> bytes:
    """EXIF with nothing but an orientation, of a type that it should not have."""
    return (
        b"Exif\0\0II*\0" + struct.pack("<IHHHI", 8, 1, 0x0112, kind, count) + value.ljust(4, b"\0") + bytes(4)
    )


NONSENSE = {
    "text": exif_of(2, 4, b"six"),
    "no text": exif_of(2, 1, b""),
    "zero": exif_of(3, 1, struct.pack("<H", 0)),
    "nine": exif_of(3, 1, struct.pack("<H", 9)),
    "two": exif_of(3, 2, struct.pack("<HH", 6, 6)),
    "a fraction": exif_of(11, 1, struct.pack("<f", 6.5)),
    "bytes": exif_of(7, 4, b"\6\6\6\6"),
}


@pytest.mark.parametrize("name", NONSENSE)
@pytest.mark.parametrize("spec", ["rgb8", "pil", "mask", "torchl8"])
def test_an_orientation_that_is_none_is_1(name: str, spec: str) -> None:
    data = picture("JPEG", 30, 20, "L", exif=NONSENSE[name])
    plain = Decoder(spec)({"jpg": data})["jpg"]
    turned = Decoder(spec, exif=True)({"jpg": data})["jpg"]
    assert np.asarray(turned).shape == np.asarray(plain).shape


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, about the EXIF data
def test_damaged_exif_is_orientation_1_and_a_sound_one_counts() -> None:
    for junk in (b"Exif\0\0junk", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b"Exif\0\0"):
        data = picture("JPEG", 30, 20, exif=junk)
        assert Decoder("rgb8", exif=True)({"jpg": data})["jpg"].shape == (20, 30, 3)
    exif = Image.Exif()
    exif[0x0112] = 6
    data = picture("JPEG", 30, 20, exif=exif.tobytes())
    assert Decoder("rgb8", exif=True)({"jpg": data})["jpg"].shape == (30, 20, 3)
