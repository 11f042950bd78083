"""Whole programs and single filters through webdataset 1.0.2 and through the facade: the same items come out.

A program is a function of the library. The shards have the shapes of well-known data sets. Where the facade differs on
purpose the program stands in `DIFFERENT`, with what comes out here, and why.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from differential_corpus import special, tar
from differential_samples import SHAPES, TYPES, image
from PIL import Image

import torchdata_ais.webdataset as ours
from torchdata_ais.errors import DecodeError, UsageError

theirs = pytest.importorskip("webdataset")
from webdataset import filters as their_filters  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::UserWarning"),
    pytest.mark.usefixtures("files_left_open"),
]


def plain(value: Any) -> Any:
    """Return `value` as something that can be compared: types, shapes and bytes included."""
    if isinstance(value, np.ndarray):
        return ("ndarray", str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, torch.Tensor):
        return ("tensor", *plain(value.numpy())[1:])
    if isinstance(value, Image.Image):
        return ("image", value.mode, *plain(np.asarray(value)))
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)([plain(inner) for inner in value])
    return f"{type(value).__name__} {value!r}"


@dataclass(frozen=True)
class Raised:
    """How a stream ended: equal to another if code that catches the one catches the other."""

    kind: type[BaseException]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Raised) and (
            issubclass(self.kind, other.kind) or issubclass(other.kind, self.kind)
        )

    __hash__ = None  # type: ignore[assignment]


KINDS: dict[type[BaseException], type[BaseException]] = {
    theirs.autodecode.DecodingError: DecodeError,
    AssertionError: UsageError,
}
"""What stands here for errors of webdataset's that say less; else an error here is of the class it has there."""


def outcome(run: Callable[[], Any]) -> Any:
    """Return the items of a program of ours, and the error at their end, if there is one."""
    items = []
    try:
        for item in run():
            items.append(plain(item))
    except Exception as error:
        return [*items, Raised(type(error))]
    return items


def wanted(run: Callable[[], Any]) -> Any:
    """Return the same of a program of webdataset's, with the error that is to come here."""
    items = outcome(run)
    if items and isinstance(items[-1], Raised):
        items[-1] = Raised(KINDS.get(items[-1].kind, items[-1].kind))
    return items


def dataset(lib: Any, shards: Any) -> Any:
    return lib.WebDataset(shards, shardshuffle=False)


def has_both(sample: dict[str, Any]) -> bool:
    return "txt" in sample and bool({"jpg", "png", "webp"} & sample.keys())


def clip(lib: Any, shards: Any) -> Any:
    return lib.DataPipeline(
        lib.SimpleShardList(shards),
        lib.split_by_node,
        lib.split_by_worker,
        lib.tarfile_to_samples(handler=lib.warn_and_continue),
        lib.select(has_both),
        lib.decode("pilrgb", handler=lib.warn_and_continue),
        lib.rename(image="jpg;png;jpeg;webp", text="txt"),
        lib.map_dict(image=np.asarray, text=str.upper),
        lib.to_tuple("image", "text"),
        lib.batched(2, partial=False),
    )


PROGRAMS: dict[tuple[str, str], Callable[[Any, Any], Any]] = {
    ("imagenet", "arrays in batches"): lambda lib, s: (
        dataset(lib, s).decode("rgb").to_tuple("jpg;png", "cls").batched(2)
    ),
    ("imagenet", "tensors, no last batch"): lambda lib, s: (
        dataset(lib, s).decode("torchrgb8").to_tuple("jpg cls").batched(2, partial=False)
    ),
    ("imagenet", "dicts in batches"): lambda lib, s: (
        dataset(lib, s).decode("l8").map(lambda x: {"n": x["cls"], "i": x["jpg"]}).batched(3)
    ),
    ("imagenet", "rebatched"): lambda lib, s: (
        dataset(lib, s).decode("torch").to_tuple("jpg", "__key__").batched(2).unbatched().batched(3)
    ),
    ("imagenet", "lists"): lambda lib, s: (
        dataset(lib, s).to_tuple("__key__", "cls").listed(2).unlisted().slice(1, 4)
    ),
    ("imagenet", "two passes"): lambda lib, s: dataset(lib, s).decode().to_tuple("cls").repeat(2),
    ("imagenet", "seven items"): lambda lib, s: dataset(lib, s).decode().to_tuple("cls").with_epoch(7),
    ("imagenet", "loader"): lambda lib, s: (
        lib.WebLoader(dataset(lib, s).decode("torchrgb").to_tuple("jpg", "cls").batched(2), batch_size=None)
        .unbatched()
        .batched(3)
    ),
    ("imagenet", "loader batches"): lambda lib, s: lib.WebLoader(
        dataset(lib, s).decode("torchrgb").to_tuple("jpg", "cls"), batch_size=2
    ),
    ("imagenet", "Decoder"): lambda lib, s: dataset(lib, s).map(lib.Decoder([lib.imagehandler("rgb8")])),
    ("pets", "article"): lambda lib, s: (
        dataset(lib, s)
        .shuffle(size=1000, seed=3)
        .decode("torchrgb")
        .to_tuple("cls", "image.jpg", "trimap.png")
        .batched(4)
    ),
    ("pets", "extract_keys"): lambda lib, s: (
        dataset(lib, s).decode("rgb8").extract_keys("*.jpg", "*cls;*.index")
    ),
    ("pets", "rename_keys"): lambda lib, s: (
        dataset(lib, s).rename_keys(mask="*.png", keep_unselected=True).decode("l")
    ),
    ("openimages", "readme"): lambda lib, s: lib.DataPipeline(
        lib.SimpleShardList(s), lib.tarfile_to_samples(), lib.decode("rgb"), lib.to_tuple("jpg;png", "json")
    ),
    ("openimages", "partial(f)"): lambda lib, s: lib.DataPipeline(
        lib.SimpleShardList(s),
        lib.tarfile_samples,
        lib.decode("torchrgb"),
        lib.to_tuple("jpg;png", "json"),
        partial(noise, n=2),
    ),
    ("img2dataset", "all fields"): lambda lib, s: dataset(lib, s).decode("pil"),
    ("img2dataset", "one field"): lambda lib, s: (
        dataset(lib, s).decode("pil", only="txt").to_tuple("txt", "json")
    ),
    ("open_clip", "train"): clip,
    ("open_clip", "missing is an error"): lambda lib, s: dataset(lib, s).to_tuple("jpg;png", "txt"),
    ("open_clip", "missing is skipped"): lambda lib, s: dataset(lib, s).to_tuple(
        "jpg;png", "txt", handler=lib.ignore_and_continue
    ),
    ("open_clip", "missing ends it"): lambda lib, s: dataset(lib, s).to_tuple(
        "jpg;png", "txt", handler=lib.ignore_and_stop
    ),
    ("open_clip", "missing is None"): lambda lib, s: dataset(lib, s).to_tuple(
        "jpg;png", "txt", missing_is_error=False
    ),
    ("librispeech", "own handler"): lambda lib, s: dataset(lib, s).decode(
        lib.handle_extension("flac wav", len)
    ),
    ("publaynet", "map_tuple"): lambda lib, s: (
        dataset(lib, s).decode("pil").to_tuple("png", "json").map_tuple(np.asarray, None)
    ),
    ("clip benchmark", "rgb"): lambda lib, s: dataset(lib, s).decode("rgb8").to_tuple("webp", "cls"),
    ("dotted npy", "decode"): lambda lib, s: dataset(lib, s).decode("rgb"),
    ("dotted npy", "only"): lambda lib, s: dataset(lib, s).decode("rgb", only=["samlens.npy"]),
    ("dotted npy", "no handlers"): lambda lib, s: dataset(lib, s).decode(pre=[], post=[]),
}


def noise(items: Iterator[Any], n: int) -> Iterator[Any]:
    for picture, data in items:
        yield picture + n, data


@pytest.mark.parametrize(("shape", "program"), PROGRAMS)
def test_programs_give_the_same(shape: str, program: str, tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(special("folder/", b"5") + tar(SHAPES[shape]))
    run = PROGRAMS[shape, program]
    expected = wanted(lambda: run(theirs, str(path)))
    assert outcome(lambda: run(ours, str(path))) == expected
    assert expected
    assert not isinstance(expected[0], Raised)


@pytest.mark.parametrize("field", TYPES)
def test_fields_decode_to_the_same(field: str) -> None:
    items = [{"__key__": "a", "__url__": b"u", field: TYPES[field]}]
    expected = wanted(lambda: theirs.decode()(iter(items)))
    assert outcome(lambda: ours.decode()(iter(items))) == expected
    assert not isinstance(expected[0], Raised)
    if field != "jpg":
        assert outcome(lambda: ours.decode("rgb8")(iter(items))) == expected
    for bad in (b"\xff\xfe\x00", b"1.5.2", *([] if field.endswith(".gz") else [b""])):
        broken = [{"__key__": "a", field: bad}]
        assert outcome(lambda b=broken: ours.decode()(b)) == wanted(lambda b=broken: theirs.decode()(b))


@pytest.mark.parametrize("spec", theirs.autodecode.imagespecs)
def test_image_specs_decode_to_the_same(spec: str) -> None:
    kinds = [("PNG", m) for m in ("L", "RGB", "RGBA", "P", "1", "LA", "I;16")] + [
        ("JPEG", m) for m in ("L", "RGB", "CMYK")
    ]
    for kind, mode in kinds:
        items = [{"__key__": "a", "x.PNG": image(kind, mode)}]
        expected = wanted(lambda i=items: theirs.decode(spec)(iter(i)))
        assert outcome(lambda i=items: ours.decode(spec)(iter(i))) == expected, (kind, mode)


NUMBERS = [{"__key__": str(i), "x": i, "y": None if i == 2 else str(i)} for i in range(5)]
FILTERS: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = [
    ("map", (lambda s: s["x"] or None,), {}, NUMBERS),
    ("map", (lambda s: 1 // (s["x"] - 2),), {"handler": lambda e: True}, NUMBERS),
    ("map", (lambda s: 1 // (s["x"] - 2),), {"handler": lambda e: False}, NUMBERS),
    ("map", (lambda s: 1 // (s["x"] - 2),), {}, NUMBERS),
    ("to_tuple", ("x", "y"), {}, NUMBERS),
    ("to_tuple", ("x", "y"), {"none_is_error": False}, NUMBERS),
    ("to_tuple", ("x", "z"), {"missing_is_error": False}, NUMBERS),
    ("to_tuple", ("x", "z"), {"missing_is_error": False, "none_is_error": True}, NUMBERS),
    ("to_tuple", ("x y",), {"handler": lambda e: True}, NUMBERS),
    ("to_tuple", (["z", "x"], "__key__"), {}, NUMBERS),
    ("rename", (), {"a": "z;x", "keep": False}, NUMBERS),
    ("rename", (), {"a": ["z", "x"]}, NUMBERS),
    ("rename", (), {"a": "z"}, NUMBERS),
    ("map_dict", (), {"x": str}, NUMBERS),
    ("map_dict", (), {"z": str}, NUMBERS),
    ("map_tuple", (None, str), {}, [(1, 2), (3, 4, 5), [6]]),
    ("select", (lambda s: s["x"] > 2,), {}, NUMBERS),
    ("slice", (1, 4, 2), {}, range(9)),
    ("slice", (3,), {}, range(9)),
    ("batched", (2,), {}, [(1, 2.5, "a", True), (2, 3.5, "b", False), (3, 4.5, "c", True)]),
    ("batched", (2,), {"collation_fn": None, "partial": False}, range(5)),
    ("batched", (2,), {"collation_fn": sum}, range(5)),
    ("batched", (2,), {}, [(1,), (1, 2)]),
    ("batched", (2,), {}, [{"a": np.zeros(2), "b": torch.ones(1)}] * 3),
    ("batched", (2,), {}, [(np.zeros(2),), (np.zeros(3),)]),
    ("unbatched", (), {}, [(np.arange(3), ["a", "b", "c"]), {"x": torch.arange(2)}]),
    ("associate", ({"1": {"z": 5}},), {}, NUMBERS),
    ("associate", (lambda key: {"z": key},), {}, NUMBERS),
    ("extract_keys", ("x", "y"), {}, NUMBERS),
    ("extract_keys", ("q", "y"), {"ignore_missing": True}, NUMBERS),
    ("extract_keys", ("*",), {}, NUMBERS),
    ("rename_keys", (("a", "x"),), {"must_match": False}, NUMBERS),
    ("xdecode", (), {"n": lambda stream: int(stream.read())}, [{"a.n": b"17", "t.txt": b"x", "b.bin": b"y"}]),
    ("shuffle", (5,), {"seed": 7}, range(50)),
    ("shuffle", (20, 3), {"seed": 0}, range(50)),
    ("shuffle", (20,), {"rng": random.Random(3)}, range(50)),
    ("info", (), {"n": 0}, NUMBERS),
    ("resampled", (7,), {}, ["a"]),
    ("rsample", (1.0,), {}, range(5)),
    ("rsample", (0.0,), {}, range(5)),
]


@pytest.mark.parametrize(("name", "args", "named", "items"), FILTERS)
def test_filters_give_the_same(name: str, args: Any, named: dict[str, Any], items: Any) -> None:
    def run(lib: Any) -> Any:
        if isinstance(named.get("rng"), random.Random):
            named["rng"].seed(3)
        return getattr(lib, name)(*args, **named)(iter(pickle.loads(pickle.dumps(list(items)))))

    assert outcome(lambda: run(ours)) == wanted(lambda: run(theirs))


def test_shuffles_have_the_same_order_as_far_as_theirs_changes() -> None:
    for epochs in (1, 3):
        their, our = theirs.detshuffle(10, seed=5), ours.detshuffle(10, seed=5)
        assert [list(our(range(30))) for _ in range(epochs)] == [
            list(their.run(iter(range(30)))) for _ in range(epochs)
        ]
    shards = "s-{00..19}.tar"
    assert list(ours.SimpleShardList(shards, seed=4)) == list(theirs.SimpleShardList(shards, seed=4))


def twice(pipeline: Any) -> Any:
    return [*pipeline, "again", *pipeline]


def unpickling(lib: Any) -> dict[str, Any]:
    return {"allow_pickle": True} if lib is ours else {"only": "x"}


def same_twice(pipeline: Any) -> Any:
    return [list(pipeline) == list(pipeline)]


DIFFERENT: dict[str, tuple[Callable[[Any], Any], Any, str]] = {
    "seeded shuffle": (
        lambda lib: same_twice(lib.DataPipeline(lib.SimpleShardList([*"abcdefgh"]), lib.shuffle(8, seed=1))),
        [False],
        "an order that comes again in every epoch is no shuffle",
    ),
    "short epochs": (
        lambda lib: twice(lib.DataPipeline(lambda: iter(range(5))).with_epoch(3)),
        [0, 1, 2, "again", 3, 4, 0],
        "epochs that begin anew never reach the rest of the data",
    ),
    "a bound on one pass": (
        lambda lib: lib.DataPipeline(lambda: iter(range(5))).repeat(1, nbatches=3),
        [0, 1, 2],
        "the bound was ignored",
    ),
    "listed without the last": (
        lambda lib: lib.FluidWrapper(list(range(3))).listed(2, partial=False),
        [[0, 1]],
        "the argument was ignored",
    ),
    "numpy numbers": (
        lambda lib: lib.batched(2)([(np.int64(1),), (np.int64(2),)]),
        [(np.array([1, 2]),)],
        "they are numbers",
    ),
    "numpy truth values": (
        lambda lib: lib.batched(2)([(np.bool_(True),), (np.bool_(False),)]),
        [(np.array([True, False]),)],
        "they make an array, as numbers do",
    ),
    "key of a sample that had none": (
        lambda lib: lib.map(lambda s: {"x": 1})([{"y": 1}]),
        [{"x": 1}],
        "webdataset adds __key__: None",
    ),
    "pickle": (
        lambda lib: lib.decode()([{"__key__": "a", "pyd": pickle.dumps(1)}]),
        [Raised(DecodeError)],
        "data must not run code",
    ),
    "pickle on request": (
        lambda lib: lib.decode(**unpickling(lib))([{"pyd": pickle.dumps(1)}]),
        [{"pyd": 1}],
        "for shards of your own",
    ),
    "pickle by xdecode": (
        lambda lib: lib.xdecode()([{"a.pyd": pickle.dumps(1)}]),
        [Raised(DecodeError)],
        "data must not run code",
    ),
    "a function of xdecode that fails": (
        lambda lib: lib.xdecode(("*.x", len), defaults=[], must_decode=False)([{"a.x": b"1"}]),
        [Raised(DecodeError)],
        "the error names sample and field; there it is the function's own",
    ),
    "numbers the table promised": (
        lambda lib: lib.decode()([{"class": b"3", "count": b"4"}]),
        [{"class": 3, "count": 4}],
        "documented, not there",
    ),
    "other names of formats": (
        lambda lib: lib.decode()([{"html": b"<p>"}]),
        [{"html": "<p>"}],
        "what the writer writes can be read",
    ),
    "hdf5 beside images": (
        lambda lib: lib.decode("rgb")([{"h5": b"\x89HDF"}]),
        [{"h5": b"\x89HDF"}],
        "Pillow cannot read it, so it stays bytes",
    ),
    "rgbtorch": (
        lambda lib: [x["png"].shape[0] for x in lib.decode("rgbtorch")([{"png": image("PNG")}])],
        [3],
        "the README's name",
    ),
    "no bytes as gzip": (
        lambda lib: lib.decode()([{"txt.gz": b""}]),
        [Raised(DecodeError)],
        "cut off at its beginning, it is no empty text",
    ),
    "shuffle of a list": (lambda lib: lib.shuffle(5)([1]), [1], "a TypeError"),
    "shards by an iterable dataset": (
        lambda lib: [s["url"] for s in islice_first(lib, torch.utils.data.IterDataPipe)],
        ["x.tar"],
        "refused since 2023",
    ),
}


def islice_first(lib: Any, base: Any) -> Any:
    class Lister(base):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            yield {"url": "x.tar"}

    return lib.DataPipeline(lib.WebDataset(Lister(), shardshuffle=False).stage(0))


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_on_purpose_differs_so(name: str) -> None:
    program, expected, reason = DIFFERENT[name]
    assert reason
    assert outcome(lambda: program(ours)) == plain(expected) or outcome(lambda: program(ours)) == expected
    assert wanted(lambda: program(theirs)) != outcome(lambda: program(ours))


def test_the_plain_functions_have_webdatasets_names() -> None:
    for name in (
        "map",
        "to_tuple",
        "batched",
        "select",
        "shuffle",
        "rsample",
        "rename_keys",
        "extract_keys",
        "xdecode",
    ):
        assert hasattr(their_filters, f"_{name}")
        assert hasattr(ours.filters, f"_{name}")


@pytest.mark.parametrize("writing", [ours, theirs], ids=["ours", "theirs"])
def test_shards_of_either_writer_are_read_by_both(writing: Any, tmp_path: Path) -> None:
    finished: list[str] = []
    with writing.ShardWriter(f"{tmp_path}/s-%02d.tar", maxcount=2, post=finished.append) as writer:
        for i in range(3):
            sample = {"__key__": f"k{i}", "image.png": np.full((4, 5, 3), i, np.uint8), "cls": i, "json": [i]}
            writer.write({**sample, "npy": np.arange(i), "txt.gz": "zipped", "ten": [np.eye(2)]})
    results = [outcome(lambda lib=lib: dataset(lib, finished).decode("rgb8")) for lib in (ours, theirs)]
    assert results[0] == results[1]
    assert len(results[0]) == 3
