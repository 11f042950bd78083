"""Encoding: the table against webdataset, images of every shape, what is refused, reproducible bytes."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from torchdata_ais import ShardWriter, TarWriter, convert
from torchdata_ais.codecs import Decoder, EncodeError, build_encoder, imagehandler
from torchdata_ais.codecs.encoder import FORMATS
from torchdata_ais.errors import UsageError

cbor2 = pytest.importorskip("cbor2")


def encoded(field: str, value: object, spec: object = True, **options: object) -> bytes:
    return build_encoder(spec, **options)({"__key__": "a", field: value})[field]


SHARED = {
    "cls": 7,
    "cls2": np.int64(3),
    "class": 1,
    "count": 0,
    "index": -4,
    "txt": "Grüße",
    "text": "",
    "transcript": "x\n",
    "html": "<p>",
    "json": {"a": [1, 2.5, None], "b": "ü"},
    "jsn": [1],
    "npy": np.arange(6).reshape(2, 3),
    "pth": {"w": torch.arange(3)},
    "ten": [np.arange(3, dtype="f4")],
    "tb": np.arange(2),
    "raw": b"\x00\xff",
    "name": "any str",
    "png": b"already a file",
}


@pytest.mark.parametrize("field", SHARED)
def test_the_table_writes_what_webdataset_writes(field: str) -> None:
    writer = pytest.importorskip("webdataset.writer")
    theirs = bytes(writer.make_encoder(True)({field: SHARED[field]})[field])
    ours = encoded(field, SHARED[field])
    if field == "pth":
        loaded = [torch.load(io.BytesIO(data), weights_only=True)["w"] for data in (ours, theirs)]
        assert torch.equal(*loaded)
    else:
        assert ours == theirs


def test_metadata_is_handed_on_as_it_is() -> None:
    sample = {"__key__": "a", "__url__": "u", "__n__": 7, "_x": None, "cls": 1}
    for spec in (True, {"cls": str}):
        assert build_encoder(spec)(sample) == {**sample, "cls": b"1"}


def test_bytes_pass_in_any_field() -> None:
    for value in (b"ab", bytearray(b"ab"), memoryview(b"xaby")[1:3]):
        for field in ("jpg", "json", "nobody.knows"):
            for spec in (True, False, None, {"jpg": len}):
                data = encoded(field, value, spec)
                assert type(data) is bytes
                assert data == b"ab"


def test_numpy_and_torch_numbers_are_accepted_as_labels_and_in_json() -> None:
    for value in (np.uint8(7), np.array(7), torch.tensor(7), 7):
        assert encoded("cls", value) == b"7"
        assert encoded("json", {"n": value}) == b'{"n": 7}'
    assert encoded("cls", True) == b"1"
    assert encoded("json", {"x": np.float32(0.5), "y": np.arange(3), "z": torch.ones(2)}) == (
        b'{"x": 0.5, "y": [0, 1, 2], "z": [1.0, 1.0]}'
    )
    assert Decoder()({"msgpack": encoded("msgpack", [np.float32(0.5)])})["msgpack"] == [0.5]
    assert Decoder()({"cbor": encoded("cbor", {"n": np.int16(3)})})["cbor"] == {"n": 3}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cls", 3.7),
        ("cls", [1]),
        ("cls", "cat"),
        ("cls", np.float32(3.5)),
        ("cls", float("nan")),
        ("cls", float("inf")),
        ("cls", "1_0"),
        ("cls", "\u0663"),
        ("json", {"x": [float("nan")]}),
        ("json", '{"x": NaN}'),
        ("jsonl", [1, float("-inf")]),
        ("jsonl", "1\n-Infinity\n"),
        ("txt", 7),
        ("json", "not json"),
        ("json", {"x": object()}),
        ("json", {1, 2}),
        ("jsonl", "{\n"),
        ("npy", np.array([object()])),
        ("npz", {"x": np.array([{}])}),
        ("npz", [1]),
        ("npz", {3: np.arange(2)}),
        ("ten", [np.array(["s"])]),
        ("ten", [np.array([True])]),
        ("ten", [np.zeros((1,) * 10)]),
        ("pkl", {"a": 1}),
        ("pickle", 1),
        ("png", [1, 2]),
        ("png", "path/to.png"),
        ("wav", 1.5),
        ("unknown", 7),
        ("", 7),
    ],
)
def test_a_value_that_would_not_read_back_is_refused_when_written(field: str, value: object) -> None:
    with pytest.raises(EncodeError) as caught:
        encoded(field, value)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.key, error.field) == ("a", field)
    assert f"Field {field!r} of sample 'a' cannot be written" in str(error)
    assert isinstance(error, ValueError)


def test_whole_floats_are_labels() -> None:
    for value in (3.0, np.float32(3), np.float64(3)):
        assert encoded("cls", value) == b"3"
    assert encoded("cls", -1e15) == b"-1000000000000000"


def test_nan_is_written_into_json_only_if_allowed(tmp_path: Path) -> None:
    for field, value in {"json": [float("nan")], "jsonl": [float("nan")]}.items():
        with pytest.raises(EncodeError, match="pass allow_nan=True"):
            encoded(field, value)
        assert b"NaN" in encoded(field, value, allow_nan=True)
    assert encoded("json", '{"x": NaN}', allow_nan=True) == b'{"x": NaN}'
    sample = {"__key__": "a", "json": {"x": float("inf")}}
    for writer in (TarWriter(str(tmp_path / "a.tar")), ShardWriter(str(tmp_path / "b-%d.tar"))):
        with pytest.raises(EncodeError), writer:
            writer.write(sample)
    with TarWriter(str(tmp_path / "c.tar"), allow_nan=True) as one:
        one.write(sample)
    with ShardWriter(str(tmp_path / "d-%d.tar"), allow_nan=True) as several:
        several.write(sample)
    assert b"Infinity" in (tmp_path / "c.tar").read_bytes()
    assert b"Infinity" in (tmp_path / "d-0.tar").read_bytes()
    with pytest.raises(EncodeError):
        convert(str(tmp_path / "c.tar"), str(tmp_path / "e-%d.tar"), decode="pil")
    convert(str(tmp_path / "c.tar"), str(tmp_path / "f-%d.tar"), decode="pil", allow_nan=True)
    assert b"Infinity" in (tmp_path / "f-0.tar").read_bytes()


def test_pickle_is_written_only_on_request() -> None:
    for field in ("pkl", "pickle", "pyd"):
        assert pickle.loads(encoded(field, {"a": {1}}, allow_pickle=True)) == {"a": {1}}
    assert np.load(io.BytesIO(encoded("npy", np.array([{}]), allow_pickle=True)), allow_pickle=True)[0] == {}


def test_a_str_is_taken_for_the_text_of_the_file() -> None:
    text = json.dumps({"a": 1})
    assert encoded("json", text) == text.encode()
    assert encoded("cls", " 7\n") == b" 7\n"
    assert encoded("jsonl", '{"a": 1}\n[2]') == b'{"a": 1}\n[2]'


def test_gz_compresses_once_and_reproducibly() -> None:
    data = encoded("json.gz", {"a": 1})
    assert gzip.decompress(data) == b'{"a": 1}'
    assert data[4:8] == bytes(4)  # no time
    assert encoded("txt.GZ", "hi")[:2] == b"\x1f\x8b"
    assert gzip.decompress(encoded("bin.gz", b"raw")) == b"raw"
    assert encoded("json.gz", data) == data  # copied from another shard
    assert encoded("gz", data) == data
    assert gzip.decompress(encoded("png.gz", np.zeros((2, 2), np.uint8)))[:4] == b"\x89PNG"
    assert encoded("txt.gz", b"as it is", False) == b"as it is"


def test_npz_and_ten_bytes_are_reproducible() -> None:
    value = {"file": np.arange(3), "allow_pickle": np.ones(2), "a/b": np.array(1)}
    assert encoded("npz", value) == encoded("npz", value)
    back = Decoder()({"npz": encoded("npz", value)})["npz"]
    assert list(back) == list(value)
    assert all(np.array_equal(back[name], value[name]) for name in value)
    assert np.load(io.BytesIO(encoded("npz", value)))["file"].tolist() == [0, 1, 2]


PIXELS = np.random.default_rng(3).integers(0, 256, (6, 5, 4)).astype(np.uint8)
EXACT_IMAGES = {
    "rows and columns": (PIXELS[..., 0], "l8", PIXELS[..., 0]),
    "one channel": (PIXELS[..., :1], "l8", PIXELS[..., 0]),
    "rgb": (PIXELS[..., :3], "rgb8", PIXELS[..., :3]),
    "rgba": (PIXELS, "rgba8", PIXELS),
    "grey tensor": (torch.from_numpy(PIXELS[..., 0].copy()), "l8", PIXELS[..., 0]),
    "one-plane tensor": (torch.from_numpy(PIXELS[None, ..., 0].copy()), "l8", PIXELS[..., 0]),
    "rgb tensor": (torch.from_numpy(PIXELS[..., :3].copy()).permute(2, 0, 1), "rgb8", PIXELS[..., :3]),
    "rgba tensor": (torch.from_numpy(PIXELS).permute(2, 0, 1), "rgba8", PIXELS),
    "floats": (PIXELS[..., :3] / 255, "rgb8", PIXELS[..., :3]),
    "half floats": ((PIXELS[..., :3] / 255).astype(np.float16), "rgb8", PIXELS[..., :3]),
    "float tensor": (torch.from_numpy(PIXELS[..., 0] / 255).float(), "l8", PIXELS[..., 0]),
    "bool": (PIXELS[..., 0] > 99, "l8", np.where(PIXELS[..., 0] > 99, 255, 0)),
    "strided": (PIXELS[::2, ::-1, :3], "rgb8", PIXELS[::2, ::-1, :3]),
    "pil": (PIL.Image.fromarray(PIXELS[..., :3]), "rgb8", PIXELS[..., :3]),
}
LOSSLESS = {"png": 4, "tif": 4, "tiff": 4, "webp": 4, "ppm": 3, "bmp": 3}


@pytest.mark.parametrize("extension", LOSSLESS)
@pytest.mark.parametrize("case", EXACT_IMAGES)
def test_lossless_formats_give_every_image_back(extension: str, case: str) -> None:
    value, spec, expected = EXACT_IMAGES[case]
    if spec == "rgba8" and LOSSLESS[extension] < 4:
        with pytest.raises(EncodeError, match="cannot store an image of mode RGBA"):
            encoded(extension, value)
        return
    assert np.array_equal(imagehandler(spec).decode(encoded(extension, value)), expected)


def test_pgm_and_pbm_and_gif_store_what_they_can() -> None:
    grey, bits = PIXELS[..., 0], PIXELS[..., 0] > 99
    assert encoded("pgm", grey).startswith(b"P5")
    assert encoded("pbm", bits).startswith(b"P4")
    for extension, value, expected in [("pgm", grey, grey), ("gif", grey, grey), ("pbm", bits, bits * 255)]:
        assert np.array_equal(imagehandler("l8").decode(encoded(extension, value)), expected)
    for extension, value in [("pgm", PIXELS[..., :3]), ("pbm", grey), ("gif", PIXELS)]:
        with pytest.raises(EncodeError, match="cannot store"):
            encoded(extension, value)


def test_palettes_and_sixteen_bits_keep_their_numbers() -> None:
    palette = PIL.Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8)).copy()
    palette.putpalette([9, 8, 7, 6, 5, 4, 3, 2, 1])
    deep = np.array([[0, 300], [65535, 7]], np.uint16)
    for extension in ("png", "tiff"):
        assert imagehandler("mask").decode(encoded(extension, palette)).tolist() == [[0, 1], [2, 1]]
        assert imagehandler("mask").decode(encoded(extension, deep)).tolist() == deep.tolist()
    assert imagehandler("rgb8").decode(encoded("ppm", palette))[0, 0].tolist() == [9, 8, 7]


def test_jpegs_are_as_good_as_webdatasets_and_quality_is_a_choice() -> None:
    writer = pytest.importorskip("webdataset.writer")
    smooth = np.add.outer(np.arange(60) * 2, np.arange(80)).astype(np.uint8)
    rgb = np.stack([smooth, smooth // 2, 255 - smooth], 2)
    for extension in ("jpg", "jpeg", "img", "image"):
        assert encoded(extension, rgb) == writer.make_encoder(True)({extension: rgb})[extension]
    assert np.abs(imagehandler("rgb8").decode(encoded("jpg", rgb)).astype(int) - rgb).max() <= 6
    assert len(encoded("jpg", rgb, quality=50)) < len(encoded("jpg", rgb)) / 2
    assert len(encoded("webp", PIXELS, quality=20)) < len(encoded("webp", PIXELS))
    with pytest.raises(EncodeError, match="RGBA"):
        encoded("jpg", PIXELS)


def test_floats_are_rounded_and_not_cut() -> None:
    image = imagehandler("l8").decode(encoded("png", np.array([[0.999, 0.5, 0.0, 1.0005, -0.0005]])))
    assert image.tolist() == [[255, 128, 0, 255, 0]]


@pytest.mark.parametrize(
    "value",
    [
        np.array([[1.5]]),
        np.array([[-0.1]]),
        np.array([[np.nan]]),
        np.array([[np.inf]]),
        np.zeros((0, 3)),
        np.zeros((2, 2), np.int64),
        np.zeros((2, 2, 3), np.uint16),
        np.zeros((2, 2, 2), np.uint8),
        np.zeros((3, 2, 2), np.uint8),
        np.zeros(4, np.uint8),
        torch.zeros((2, 2, 3), dtype=torch.uint8),
        np.zeros((2, 2), complex),
    ],
)
def test_arrays_that_are_no_images_are_refused(value: object) -> None:
    with pytest.raises(EncodeError):
        encoded("png", value)


def test_every_image_extension_of_webdatasets_writer_is_written() -> None:
    writer = pytest.importorskip("webdataset.writer")
    assert {"jpg", "jpeg", "img", "image", "png", "pbm", "pgm", "ppm", "tif", "tiff"} <= set(FORMATS)
    from torchdata_ais.codecs import encoder

    assert set(writer.default_handlers) <= set(FORMATS) | set(encoder._ENCODERS)


def test_switched_off_encoding_takes_bytes_and_text_only() -> None:
    for spec in (False, None):
        assert encoded("json", b"{}", spec) == b"{}"
        assert encoded("txt", "ü", spec) == "ü".encode()
        with pytest.raises(EncodeError, match="int, not bytes, and encoding is switched off"):
            encoded("cls", 7, spec)


def test_encoders_by_ending_the_longest_first() -> None:
    spec = {"png": lambda v: b"any", "seg.png": lambda v: "seg", ".cls": lambda v: bytearray(b"%d" % v)}
    assert encoded("png", 1, spec) == b"any"
    assert encoded("seg.png", 1, spec) == b"seg"
    assert encoded("left.SEG.png", 1, spec) == b"seg"
    assert encoded("cls", 7, spec) == b"7"
    assert gzip.decompress(encoded("cls.gz", 7, spec)) == b"7"
    assert encoded("txt", "x", spec) == b"x"
    with pytest.raises(EncodeError, match="no entry"):
        encoded("json", {}, spec)


def test_a_function_is_the_encoder_and_anything_else_is_refused() -> None:
    assert build_encoder(lambda sample: {"x": b"1"})({"cls": 7}) == {"x": b"1"}
    for wrong in ("table", 7, ["cls"]):
        with pytest.raises(UsageError):
            build_encoder(wrong)
    for quality in (0, 101, 2.5, True):
        with pytest.raises(UsageError):
            build_encoder(quality=quality)


def test_encoders_pickle() -> None:
    again = pickle.loads(pickle.dumps(build_encoder(quality=80)))
    assert again({"cls": 7}) == {"cls": b"7"}
    assert pickle.loads(pickle.dumps(build_encoder({"a": str})))({"a": 7}) == {"a": b"7"}
