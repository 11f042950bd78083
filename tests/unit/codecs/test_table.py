"""The field table against webdataset, damage, and what is refused."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch

from torchdata_ais.codecs import Decoder, MissingLibraryError, build_encoder, gzfilter, tenbin
from torchdata_ais.codecs import table as table_module
from torchdata_ais.errors import DecodeError

cbor2 = pytest.importorskip("cbor2")


def npy_of(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def npz_of(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def torch_file(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def decoded(field: str, data: bytes, **options: object) -> object:
    return Decoder(**options)({"__key__": "a", field: data})[field]


def same(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and list(left) == list(right)
            and all(same(left[k], right[k]) for k in left)
        )
    return type(left) is type(right) and left == right


def shared_fields() -> dict[str, bytes]:
    array = np.arange(6, dtype="f4").reshape(2, 3)
    ten = tenbin.dumps([array, np.arange(4)])
    fields: dict[str, bytes] = {}
    for name in ("txt", "text", "transcript"):
        fields[name] = "Grüße, 世界\n".encode()
    for name, text in zip(
        ("cls", "cls2", "index", "inx", "id"), (b"7", b" 007\n", b"-3", b"+12", b"1000"), strict=True
    ):
        fields[name] = text
    fields["json"] = b'{"a": [1, 2.5, null, NaN], "b": "\\u00fc"}'
    fields["jsn"] = json.dumps([1, "x"]).encode("utf-16")
    fields["npy"], fields["npz"] = npy_of(array), npz_of(x=array, y=np.array("s"))
    fields["ten"], fields["tb"] = ten, ten
    fields["pth"] = torch_file({"w": torch.arange(3)})
    fields["seg.json"] = b"[1]"
    fields["json.gz"] = gzip.compress(b'{"z": 1}')
    fields["two.txt.gz"] = gzip.compress(b"one ") + gzip.compress(b"two")
    fields["gz"] = gzip.compress(b"unnamed")
    fields["bin.gz"] = gzip.compress(b"nobody's")
    for name in ("bin", "unknown", "", "xml", "mp4", "wav", "jpgx"):
        fields[name] = b"\xff\x00raw"
    return fields


@pytest.mark.parametrize(
    "data", [b"2021_05", b"1_2", b"", b"+", b"- 1", b"1.0", "\u0663".encode(), b"1" * 5000]
)
@pytest.mark.parametrize("field", ["id", "index", "cls"])
def test_a_number_is_digits(field: str, data: bytes) -> None:
    with pytest.raises(DecodeError, match="no whole number"):
        decoded(field, data)


def test_the_byte_order_mark_of_a_text_is_no_part_of_it() -> None:
    mark = b"\xef\xbb\xbf"
    for field, data, value in [
        ("txt", b"a cat", "a cat"),
        ("html", b"<p>", "<p>"),
        ("cls", b"7\n", 7),
        ("json", b"[1]", [1]),
        ("jsonl", b"1\n2\n", [1, 2]),
    ]:
        assert decoded(field, mark + data) == decoded(field, data) == value
    assert decoded("txt", b"a" + mark) == "a\ufeff"


@pytest.mark.parametrize("field", list(shared_fields()))
def test_fields_that_webdataset_knows_decode_alike(field: str) -> None:
    autodecode = pytest.importorskip("webdataset.autodecode")
    data = shared_fields()[field]
    expected = autodecode.Decoder([])({"__key__": "a", field: data})[field]
    ours = decoded(field, data)
    if "NaN" in str(data):
        assert str(ours) == str(expected)
    else:
        assert same(ours, expected)


def test_fields_that_webdataset_only_promises_are_decoded() -> None:
    array = np.arange(3)
    for field in ("class", "count"):
        assert decoded(field, b"12\n") == 12
    for field in ("html", "htm"):
        assert decoded(field, "<p>ü".encode()) == "<p>ü"
    assert decoded("jsonl", b'{"a": 1}\r\n\n[2]\n"three"') == [{"a": 1}, [2], "three"]
    assert same(decoded("tenbin", tenbin.dumps([array])), [array])
    for field in ("mp", "msg", "msgpack", "messagepack"):
        assert decoded(field, b"\x82\xa1x\x01\xa1y\xc4\x01z") == {"x": 1, "y": b"z"}
    assert decoded("cbor", cbor2.dumps({"x": [1, b"y"]})) == {"x": [1, b"y"]}
    assert torch.equal(decoded("pt", torch_file(torch.ones(2))), torch.ones(2))


@pytest.mark.parametrize(("field", "data"), [("json", b"null"), ("msgpack", b"\xc0"), ("cbor", b"\xf6")])
def test_a_field_whose_value_is_none_is_none_and_not_bytes(field: str, data: bytes) -> None:
    assert decoded(field, data) is None


def test_arrays_are_writable() -> None:
    array = np.arange(6).reshape(2, 3)
    assert decoded("npy", npy_of(array)).flags.writeable
    assert decoded("npz", npz_of(x=array))["x"].flags.writeable
    assert decoded("ten", tenbin.dumps([array]))[0].flags.writeable


def test_an_npz_part_that_is_no_array_stays_bytes() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("note.txt", b"hello")
        archive.writestr("x.npy", npy_of(np.arange(2)))
    value = decoded("npz", stream.getvalue())
    assert value["note.txt"] == b"hello"
    assert value["x"].tolist() == [0, 1]


WRONG = {
    "txt": b"\xff\xfe\x00",
    "cls": b"cat",
    "class": b"3.0",
    "json": b"{",
    "jsonl": b"{}\n{",
    "npy": b"\x93NUMPY\x01",
    "npz": b"PK",
    "ten": b"~TenBin~",
    "msgpack": b"\xc1",
    "cbor": b"\xff",
    "pt": b"junk",
    "png": b"junk",
    "txt.gz": b"junk",
    "gz": b"",
}


@pytest.mark.parametrize("field", WRONG)
def test_bytes_that_are_not_what_the_name_says_are_a_decode_error(field: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decoded(field, WRONG[field])
    assert f"Field '{field}' of sample 'a' cannot be decoded" in str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("field", ["npy", "npz", "ten", "json", "msgpack", "txt.gz", "pt"])
def test_a_field_cut_at_any_byte_is_an_error(field: str) -> None:
    whole = {
        "npy": npy_of(np.arange(5)),
        "npz": npz_of(x=np.arange(5)),
        "ten": tenbin.dumps([np.arange(5, dtype="u1")]).rstrip(b"\0"),
        "json": b'{"a": [1, 2]}',
        "msgpack": b"\x82\xa1x\x01\xa1y\xc4\x01z",
        "txt.gz": gzip.compress(b"some text, some more text"),
        "pt": torch_file(torch.arange(5)),
    }[field]
    decoded(field, whole)
    for end in range(0, len(whole), max(1, len(whole) // 150)):
        if field == "ten" and end == 0:
            continue  # no arrays at all is a valid list
        with pytest.raises(DecodeError):
            decoded(field, whole[:end])


def test_gzip_with_a_wrong_checksum_or_trailing_junk_is_an_error() -> None:
    data = bytearray(gzip.compress(b"hello hello"))
    data[-6] ^= 1
    with pytest.raises(DecodeError, match="damaged"):
        decoded("txt.gz", bytes(data))
    with pytest.raises(DecodeError, match="damaged"):
        decoded("txt.gz", gzip.compress(b"hello") + b"junk")
    assert decoded("txt.gz", gzip.compress(b"hello") + bytes(512)) == "hello"


def test_a_gzip_bomb_is_refused_before_it_unpacks() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    assert len(bomb) < 60_000
    with pytest.raises(DecodeError, match=r"unpack to more than max_gz_bytes=1000000.*Raise max_gz_bytes="):
        decoded("bin.gz", bomb, max_gz_bytes=1_000_000)
    assert decoded("bin.gz", gzip.compress(bytes(1000)), max_gz_bytes=1000) == bytes(1000)
    with pytest.raises(DecodeError):
        decoded("bin.gz", gzip.compress(bytes(600)) + gzip.compress(bytes(401)), max_gz_bytes=1000)


def test_an_npz_bomb_is_refused() -> None:
    stream = io.BytesIO()
    np.savez_compressed(stream, x=np.zeros(1_000_000))
    with pytest.raises(DecodeError, match="8000128 bytes, more than max_gz_bytes"):
        decoded("npz", stream.getvalue(), max_gz_bytes=1_000_000)


def test_an_npy_header_that_claims_more_memory_than_there_is_is_bad_data() -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }"
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    with pytest.raises(DecodeError):
        decoded("npy", data)


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (exec, ("import os; os.environ['CODECS_EVIL'] = 'ran'",))


@pytest.mark.parametrize("field", ["pkl", "pickle", "pyd", "pt", "pth", "npy", "npz", "pkl.gz"])
def test_nothing_is_unpickled_without_allow_pickle(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODECS_EVIL", "no")
    data = {
        "pt": lambda: torch_file(Evil()),
        "pth": lambda: torch_file(Evil()),
        "npy": lambda: npy_of(np.array([Evil()], object)),
        "npz": lambda: npz_of(x=np.array([Evil()], object)),
        "pkl.gz": lambda: gzip.compress(pickle.dumps(Evil())),
    }.get(field, lambda: pickle.dumps(Evil()))()
    with pytest.raises(DecodeError, match="allow_pickle=True"):
        decoded(field, data)
    assert os.environ["CODECS_EVIL"] == "no"
    decoded(field, data, allow_pickle=True)
    assert os.environ["CODECS_EVIL"] == "ran"


def test_an_absent_cbor_library_is_no_bad_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(module: str, purpose: str) -> object:
        raise MissingLibraryError.at(f"{purpose} needs {module}", todo=f"pip install {module}")

    monkeypatch.setattr(table_module, "require", absent)
    with pytest.raises(ImportError, match="needs cbor2"):
        decoded("cbor", b"\xf6")


@pytest.mark.parametrize("code", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_tenbin_is_read_by_webdataset_and_reads_its_files(code: str) -> None:
    theirs = pytest.importorskip("webdataset.tenbin")
    arrays = [np.arange(6, dtype=code).reshape(1, 2, 3), np.zeros((0, 2), code), np.array([1], code)]
    assert same(tenbin.loads(tenbin.dumps(arrays)), arrays)
    if code != "u4":  # its table misspells uint32: it can neither write nor read one
        assert same(theirs.decode_buffer(tenbin.dumps(arrays)), arrays)
        assert same(tenbin.loads(bytes(theirs.encode_buffer(arrays))), arrays)


def test_tenbin_stores_scalars_big_endian_and_non_contiguous_arrays() -> None:
    arrays = [np.array(3.5), np.arange(6, dtype=">i4").reshape(2, 3).T]
    back = tenbin.loads(tenbin.dumps(arrays))
    assert back[0].shape == ()
    assert back[0] == 3.5
    assert np.array_equal(back[1], arrays[1])
    assert back[1].dtype.isnative


@pytest.mark.parametrize("length", [-80, -1, 2**62, 25])
def test_tenbin_refuses_lengths_that_lie(length: int) -> None:
    data = tenbin.dumps([np.arange(2, dtype="u1")])
    with pytest.raises(DecodeError):
        tenbin.loads(data[:8] + struct.pack("<q", length) + data[16:])


def test_tenbin_refuses_headers_that_lie() -> None:
    data = bytearray(tenbin.dumps([np.arange(4, dtype="i4")]))
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x55
        try:
            [array] = tenbin.loads(bytes(damaged))
        except DecodeError:
            continue
        assert array.nbytes == 16  # a name or a value differs, or the type is another of the same width


def test_gzfilter_is_a_handler_of_its_own() -> None:
    assert gzfilter(".txt", b"x") is None
    assert gzfilter(".txt.gz", gzip.compress(b"x")).key == ".txt"


def test_encoder_and_decoder_know_the_same_fields() -> None:
    encode = build_encoder(allow_pickle=True)
    for name in table_module._LOADERS:
        value = {"npz": {"x": np.arange(2)}, "jsonl": [1, 2]}.get(name)
        if value is None:
            numeric = name in {"cls", "cls2", "class", "count", "index", "inx", "id"}
            arrays = name in {"npy", "ten", "tb", "tenbin"}
            value = 3 if numeric else np.arange(2) if arrays else "text"
        if name in {"json", "jsn"}:
            value = {"a": 1}
        data = encode({"__key__": "a", name: value})[name]
        back = decoded(name, data, allow_pickle=True)
        assert same(back, [value] if name in {"ten", "tb", "tenbin"} else value), name
