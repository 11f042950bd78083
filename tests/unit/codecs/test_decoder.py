"""The driver: order of handlers, only, partial, pre, post, errors, copies, pickling, threads."""

from __future__ import annotations

import gzip
import io
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import PIL.Image
import pytest

from torchdata_ais.codecs import Continue, Decoder, basichandlers, handle_extension, imagehandler, torch_audio
from torchdata_ais.errors import DecodeError, UsageError


def png(value: int = 9) -> bytes:
    stream = io.BytesIO()
    PIL.Image.new("RGB", (5, 4), (value, value, value)).save(stream, "png")
    return stream.getvalue()


class Sample(dict):  # a dict with a place, like the package's own
    def __init__(self, *args: Any, url: str = "", offset: int = 0) -> None:
        super().__init__(*args)
        self.url = url
        self.offset = offset


SAMPLE = {
    "__key__": "d/a",
    "__url__": "ais://b/s.tar",
    "__note__": b"bytes",
    "__broken__": b"\xff",
    "png": png(),
    "seg.png": png(3),
    "cls": b"7",
    "json.gz": gzip.compress(b"[1]"),
    "bin": b"raw",
}


def kinds(sample: dict[str, Any]) -> dict[str, str]:
    return {field: type(value).__name__ for field, value in sample.items()}


def reverse(name: str, data: bytes) -> Any:
    return Continue(name[:-4], data[::-1]) if name.endswith(".rev") else None


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def shout(data: bytes) -> str:
    return data.decode().upper()


@pytest.mark.parametrize(
    ("specs", "options"),
    [
        ([basichandlers], {}),
        (["rgb8"], {}),
        (["torchl"], {"only": "png cls"}),
        (["rgb8"], {"only": ["seg.png"]}),
        (["rgb8"], {"only": "jpg"}),
        ([], {"only": "cls"}),
        ([handle_extension("png", len)], {}),
        ([handle_extension("seg.png", len), "rgb8"], {}),
        (["rgb8", handle_extension("seg.png", len)], {}),
        ([handle_extension("gz", len)], {"pre": []}),
        ([handle_extension("gz", len)], {}),
        (["rgb8"], {"post": []}),
        (["rgb8"], {"pre": [], "post": []}),
        (["rgb8"], {"pre": [reverse]}),
        ([lambda name, data: name], {"only": "png bin cls"}),
    ],
)
def test_handlers_run_in_webdatasets_order(specs: list[Any], options: dict[str, Any]) -> None:
    autodecode = pytest.importorskip("webdataset.autodecode")
    handlers = [autodecode.imagehandler(spec) if isinstance(spec, str) else spec for spec in specs]
    expected = autodecode.Decoder(handlers, **options)(SAMPLE)
    ours = Decoder(*specs, **options)(SAMPLE)
    assert list(ours) == list(expected)
    for field in expected:
        if field == "png" and not specs:
            continue
        assert type(ours[field]) is type(expected[field]), field
        assert np.array_equal(np.asarray(ours[field]), np.asarray(expected[field])), field


def test_without_specs_the_table_and_images_to_pil() -> None:
    assert kinds(Decoder()(SAMPLE)) == {
        "__key__": "str",
        "__url__": "str",
        "__note__": "str",
        "__broken__": "bytes",
        "png": "Image",
        "seg.png": "Image",
        "cls": "int",
        "json.gz": "list",
        "bin": "bytes",
    }


def test_a_handler_sees_the_name_with_a_leading_dot() -> None:
    seen = []

    def my_png_decoder(key: str, value: bytes) -> Any:
        seen.append((key, type(value)))
        return "mine" if key.endswith(".png") else None

    sample = Decoder(my_png_decoder)(SAMPLE)
    assert sample["png"] == sample["seg.png"] == "mine"
    assert [name for name, _ in seen] == [".png", ".seg.png", ".cls", ".json", ".bin"]
    assert {kind for _, kind in seen} == {bytes}


def test_continue_goes_on_after_its_handler() -> None:
    decode = Decoder(reverse, handle_extension("txt", shout))
    assert decode({"txt.rev": b"cba"})["txt.rev"] == "ABC"
    assert decode({"txt.rev.rev": b"abc"})["txt.rev.rev"] == b"cba"  # once, as in webdataset
    assert decode({"txt.rev.gz": gzip.compress(b"cba")})["txt.rev.gz"] == "ABC"


def test_any_number_of_field_names_is_decoded_and_few_are_remembered() -> None:
    decode = Decoder()
    for number in range(2000):
        decoded = decode({f"{number}.cls": b"7", f"{number}.bin": b"7"})
        assert decoded == {f"{number}.cls": 7, f"{number}.bin": b"7"}
    assert len(decode._of_field) <= 256


@pytest.mark.parametrize(
    ("extensions", "matched"),
    [
        ("png", {"png", "seg.png", "left.seg.png"}),
        (".png", {"png", "seg.png", "left.seg.png"}),
        ("seg.png", {"seg.png", "left.seg.png"}),
        ("SEG.PNG", {"seg.png", "left.seg.png"}),
        ("cls left.seg.png", {"cls", "left.seg.png"}),
        ("ng", set()),
        ("eg.png", set()),
    ],
)
def test_extensions_match_whole_components_from_the_end(extensions: str, matched: set[str]) -> None:
    handler = handle_extension(extensions, lambda data: "yes")
    fields = {"png", "seg.png", "left.seg.png", "cls", "pngx"}
    assert {field for field in fields if handler("." + field, b"") == "yes"} == matched
    assert {field for field in fields if handler(field, b"") == "yes"} == matched


def test_a_value_that_is_not_bytes_fails_unless_partial() -> None:
    sample = {"__key__": "a", "cls": 7, "txt": b"x"}
    with pytest.raises(DecodeError, match=r"its value is int, not bytes.*partial=True"):
        Decoder()(sample)
    assert Decoder(partial=True)(sample) == {"__key__": "a", "cls": 7, "txt": "x"}
    assert Decoder(only="txt")(sample) == {"__key__": "a", "cls": 7, "txt": "x"}
    with pytest.raises(DecodeError, match="NoneType"):
        Decoder(partial=True)({"__key__": "a", "cls": None})


def test_bytearrays_and_memoryviews_are_bytes() -> None:
    sample = {"json": memoryview(b"x[7]y")[1:4], "txt": bytearray(b"hi"), "bin": memoryview(b"raw")}
    assert Decoder()(sample) == {"json": [7], "txt": "hi", "bin": b"raw"}
    assert type(Decoder()(sample)["bin"]) is bytes


def test_the_result_is_a_new_sample_of_the_same_kind() -> None:
    sample = Sample({"__key__": "a", "cls": b"7"}, url="ais://b/s.tar", offset=1024)
    decoded = Decoder()(sample)
    assert type(decoded) is Sample
    assert (decoded.url, decoded.offset) == ("ais://b/s.tar", 1024)
    assert decoded == {"__key__": "a", "cls": 7}
    assert sample == {"__key__": "a", "cls": b"7"}


def test_the_error_names_key_field_object_offset_and_cause_and_survives_pickling() -> None:
    sample = Sample({"__key__": "d/a", "__url__": "ais://b/s.tar", "cls": b"cat"}, offset=1536)
    with pytest.raises(DecodeError) as caught:
        Decoder()(sample)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.key, error.field, error.url, error.offset) == ("d/a", "cls", "ais://b/s.tar", 1536)
    assert "The 3 bytes are no whole number: plain text. Name text .txt" in str(error)
    assert 'on_error="skip"' in str(error)
    assert isinstance(caught.value.__cause__, DecodeError)
    assert DecodeError(str(error)).place == error.place


def test_a_handlers_own_error_is_wrapped_but_the_programs_faults_are_not() -> None:
    def fails(error: BaseException) -> Any:
        def handler(name: str, data: bytes) -> Any:
            raise error

        return handler

    for error in (RuntimeError("x"), KeyError("k"), OSError(5, "io"), RecursionError(), AssertionError()):
        with pytest.raises(DecodeError) as caught:
            Decoder(fails(error))({"__key__": "a", "bin": b""})
        assert caught.value.__cause__ is error
    for error in (MemoryError(), ImportError("no"), NameError("no"), KeyboardInterrupt(), GeneratorExit()):
        with pytest.raises(type(error)) as raised:
            Decoder(fails(error))({"__key__": "a", "bin": b""})
        assert raised.value is error


def test_something_else_than_a_sample_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"not tuple.*group_samples"):
        Decoder()(("path", b"data"))


def test_specs_that_cannot_work_are_refused_when_built() -> None:
    for specs, options in [
        ([["rgb8"]], {}),
        ([7], {}),
        ([], {"pre": ["gz"]}),
        ([], {"post": [None]}),
        (["jpg"], {}),
    ]:
        with pytest.raises(UsageError):
            Decoder(*specs, **options)
    for wrong in ("", "  ", "."):
        with pytest.raises(UsageError):
            handle_extension(wrong, len)
    with pytest.raises(UsageError):
        handle_extension("png", "rgb8")


def test_pre_and_post_may_be_single_functions() -> None:
    decode = Decoder(pre=reverse, post=handle_extension("txt", shout))
    assert decode({"txt.rev": b"cba", "cls": b"7"}) == {"txt.rev": "ABC", "cls": b"7"}


@pytest.mark.parametrize("audio", [[], [torch_audio]])
def test_decoders_pickle_and_decode_the_same_afterwards(audio: list[Any]) -> None:
    specs = [handle_extension("txt", shout), imagehandler("mask", "seg.png", size=2), "torchrgb8"]
    decode = Decoder(*specs, *audio, size=3, only="png cls txt seg.png json.gz", allow_pickle=True)
    again = pickle.loads(pickle.dumps(decode))
    assert isinstance(again, Decoder)
    sample = {**SAMPLE, "txt": b"hi", "seg.png": grey()}
    left, right = decode(sample), again(sample)
    assert list(left) == list(right)
    assert all(np.array_equal(np.asarray(left[field]), np.asarray(right[field])) for field in left)
    assert (left["txt"], left["png"].shape, left["seg.png"].shape) == ("HI", (3, 3, 3), (2, 2))


def grey() -> bytes:
    stream = io.BytesIO()
    PIL.Image.new("L", (5, 4), 2).save(stream, "png")
    return stream.getvalue()


def test_one_decoder_serves_many_threads() -> None:
    decode = Decoder("rgb8", size=7)
    samples = [{"__key__": str(i), "png": png(i), "cls": str(i).encode()} for i in range(200)]
    with ThreadPoolExecutor(8) as pool:
        for i, sample in enumerate(pool.map(decode, samples)):
            assert sample["__key__"] == str(i)
            assert sample["cls"] == i
            assert sample["png"].shape == (7, 7, 3)
            assert (sample["png"] == i).all()


@pytest.mark.parametrize(
    ("only", "says"),
    [
        ("image.jpg cls", "no field 'image.jpg'; it has 'jpg txt', which stay bytes"),
        ("picture label", "no field 'picture label'; it has 'jpg cls txt', which stay bytes"),
        ("cls caption", ""),  # which other samples may have
        ("jpg cls", ""),
        (".cls", ""),
    ],
)
def test_names_of_only_that_seem_wrong_are_said_once(only, says, caplog):
    file = io.BytesIO()
    PIL.Image.new("RGB", (2, 2)).save(file, "JPEG")
    jpeg, decode = file.getvalue(), Decoder("pil", only=only)
    for _ in range(2):
        decode({"__key__": "a", "jpg": jpeg, "cls": b"1", "txt": b"t"})
    assert [says in record.getMessage() for record in caplog.records] == ([True] if says else [])
