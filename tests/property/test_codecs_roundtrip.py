"""What the encoder writes the decoder reads back, for any value; damage is an error or a value, never a crash."""

from __future__ import annotations

import contextlib
import gzip
import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from torchdata_ais.codecs import Decoder, build_encoder, tenbin
from torchdata_ais.codecs.handlers import gunzip
from torchdata_ais.errors import DecodeError

cbor2 = pytest.importorskip("cbor2")
check = settings(deadline=None, max_examples=examples(60))

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=12)
PACKED = st.recursive(
    SCALARS | st.binary(), lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=12
)
ARRAYS = nps.arrays(
    st.sampled_from(["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]),
    nps.array_shapes(min_dims=0, min_side=0, max_side=4),
)


def round_trip(field: str, value: Any) -> Any:
    data = build_encoder(allow_nan=True)({"__key__": "a", field: value})
    assert isinstance(data[field], bytes)
    return Decoder()(data)[field]


def equal(left: np.ndarray, right: Any) -> bool:
    return (
        isinstance(right, np.ndarray)
        and left.dtype == right.dtype
        and left.shape == right.shape
        and left.tobytes() == right.tobytes()
    )


@check
@given(JSON.filter(lambda value: not isinstance(value, str)))
def test_json(value: Any) -> None:
    assert round_trip("json", value) == value
    assert round_trip("json.gz", value) == value


@check
@given(st.lists(JSON))
def test_jsonl(values: list[Any]) -> None:
    assert round_trip("jsonl", values) == values


@check
@given(TEXT)
def test_text(value: str) -> None:
    for field in ("txt", "html", "transcript.gz"):
        assert round_trip(field, value) == value


@check
@given(st.integers())
def test_integers(value: int) -> None:
    if len(str(value)) < 4000:
        assert round_trip("cls", value) == value


@check
@given(PACKED)
def test_msgpack_and_cbor(value: Any) -> None:
    if not isinstance(value, (str, bytes)):
        assert round_trip("msgpack", value) == value
        assert round_trip("cbor", value) == value


@check
@given(ARRAYS)
def test_npy(array: np.ndarray) -> None:
    assert equal(array, round_trip("npy", array))


@check
@given(st.dictionaries(st.text("abc./_é", min_size=1, max_size=5), ARRAYS, max_size=4))
def test_npz(arrays: dict[str, np.ndarray]) -> None:
    back = round_trip("npz", arrays)
    assert list(back) == list(arrays)
    assert all(equal(arrays[name], back[name]) for name in arrays)


@check
@given(st.lists(ARRAYS, max_size=4))
def test_ten(arrays: list[np.ndarray]) -> None:
    back = round_trip("ten", arrays)
    assert len(back) == len(arrays)
    assert all(map(equal, arrays, back))


@settings(check, max_examples=examples(20))
@given(ARRAYS.filter(lambda array: array.dtype.kind != "u" or array.itemsize == 1))
def test_pt(array: np.ndarray) -> None:
    tensor = torch.from_numpy(array.copy())
    back = round_trip("pt", {"x": tensor, "n": [1, "s", None]})
    assert back["n"] == [1, "s", None]
    assert back["x"].dtype == tensor.dtype
    assert torch.equal(back["x"].nan_to_num(), tensor.nan_to_num())


@check
@given(nps.arrays(np.uint8, nps.array_shapes(min_dims=2, max_dims=2, max_side=9)), st.sampled_from([1, 3, 4]))
def test_lossless_images(plane: np.ndarray, channels: int) -> None:
    pixels = plane if channels == 1 else np.stack([plane, plane[::-1], plane ^ 3, plane // 2][:channels], 2)
    spec = {1: "l8", 3: "rgb8", 4: "rgba8"}[channels]
    for field in ("png", "tiff", "webp", "mask.png.gz"):
        data = build_encoder()({field: pixels})
        assert np.array_equal(Decoder(spec)(data)[field], pixels)


@check
@given(st.binary())
def test_bytes_of_any_field_pass_the_encoder(data: bytes) -> None:
    for field in ("jpg", "json", "x"):
        assert build_encoder()({field: data})[field] == data


@check
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=3), st.integers(0, 700))
def test_gunzip_gives_all_members_or_says_that_they_are_too_much(parts: list[bytes], limit: int) -> None:
    data = b"".join(map(gzip.compress, parts))
    whole = b"".join(parts)
    if len(whole) <= limit:
        assert gunzip(data, limit) == whole
    else:
        with pytest.raises(DecodeError):
            gunzip(data, limit)


@check
@given(
    st.binary(max_size=80),
    st.sampled_from(
        [
            "txt",
            "cls",
            "json",
            "jsonl",
            "npy",
            "npz",
            "ten",
            "msgpack",
            "txt.gz",
            "png",
            "jpg",
            "gif",
            "webp",
            "pt",
        ]
    ),
)
def test_any_bytes_decode_or_are_a_decode_error(data: bytes, field: str) -> None:
    with contextlib.suppress(DecodeError):
        Decoder()({"__key__": "a", field: data})


@check
@given(st.data())
def test_damaged_tenbin_is_an_array_or_a_decode_error(data: st.DataObject) -> None:
    whole = bytearray(tenbin.dumps([np.arange(3, dtype="i4"), np.ones((2, 2))]))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        arrays = tenbin.loads(bytes(whole))
    except DecodeError:
        return
    assert all(math.prod(array.shape) * array.itemsize == array.nbytes for array in arrays)
