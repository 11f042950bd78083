"""What is written comes back: any samples, any limits, every encoder, our reader and webdataset's."""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from torchdata_ais import AISFileLoader
from torchdata_ais.tar import archive_size
from torchdata_ais.writing import ShardWriter, TarWriter


def is_meta(path):
    """WebDataset's rule of names: what stands in or under ``__anything__`` belongs to no sample."""
    first = path.partition("/")[0]
    return len(first) >= 4 and first.startswith("__") and first.endswith("__")


letters = st.sampled_from("abcXYZ019_- éß漢'%")
words = st.text(letters, min_size=1, max_size=12)
folders = st.lists(words | st.just("d.x"), max_size=2).map(
    lambda parts: "".join(f"{part}/" for part in parts)
)
keys = st.builds(str.__add__, folders.filter(lambda folder: not is_meta(folder)), words)
fields = st.lists(st.text(st.sampled_from("abc09_é"), min_size=1, max_size=8), min_size=1, max_size=3).map(
    ".".join
)
written_fields = fields.filter(lambda field: field[0] != "_" and not field.endswith("gz"))


def samples_of(key):
    own = written_fields.filter(lambda field: not is_meta(f"{key}.{field}"))
    parts = st.dictionaries(own, st.binary(max_size=1500), min_size=1, max_size=4)
    return parts.map(lambda fields: {"__key__": key, **fields})


samples = st.lists(keys.flatmap(samples_of), max_size=12, unique_by=lambda sample: sample["__key__"])


def plain(sample):
    return {name: value for name, value in sample.items() if name not in ("__url__", "__local_path__")}


def ours(paths):
    return [plain(sample) for sample in AISFileLoader([str(path) for path in paths]).group_samples()]


def theirs(paths):
    tariterators = pytest.importorskip("webdataset.tariterators")
    found = []
    for path in paths:
        with path.open("rb") as stream:
            files = tariterators.tar_file_expander([{"url": str(path), "stream": stream}])
            found += [plain(sample) for sample in tariterators.group_by_keys(files)]
    return found


@settings(max_examples=examples(60), deadline=None)
@given(
    samples,
    st.integers(1, 5),
    st.sampled_from([1, 10240, 20480, 3e9]),
    st.sampled_from(["", ".gz", ".bz2", ".xz"]),
)
def test_a_series_holds_every_sample_once_in_order_within_its_limits(written, maxcount, maxsize, ending):
    with tempfile.TemporaryDirectory() as folder:
        with ShardWriter(f"{folder}/s-%03d.tar{ending}", maxcount=maxcount, maxsize=maxsize) as writer:
            for sample in written:
                writer.write(sample)
        paths = sorted(Path(folder).iterdir())
        assert [str(path) for path in paths] == [shard.name for shard in writer.shards]
        assert sum(shard.samples for shard in writer.shards) == len(written)
        if paths:
            assert ours(paths) == theirs(paths) == [dict(sorted(sample.items())) for sample in written]
        for shard in writer.shards:
            assert 1 <= shard.samples <= maxcount
            with tarfile.open(shard.name) as tar:
                content = sum(info.size + -info.size % 512 + info.offset_data - info.offset for info in tar)
            assert archive_size(content) <= maxsize or shard.samples == 1


@settings(max_examples=examples(60), deadline=None)
@given(samples, st.data())
def test_a_series_interrupted_anywhere_and_resumed_is_that_of_one_go(written, draw):
    stops = draw.draw(st.lists(st.integers(0, len(written)), max_size=3))
    limits = {"maxcount": draw.draw(st.integers(1, 4))}
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        with ShardWriter(f"{one}/%d.tar", **limits) as writer:
            for sample in written:
                writer.write(sample)
        for stop in stops:
            writer = ShardWriter(f"{other}/%d.tar", manifest=f"{other}/m.json", resume=True, **limits)
            for sample in written[:stop]:
                writer.write(sample)
            writer.discard()
        with ShardWriter(f"{other}/%d.tar", manifest=f"{other}/m.json", resume=True, **limits) as writer:
            for sample in written:
                writer.write(sample)
        shards = {path.name: path.read_bytes() for path in Path(other).glob("[0-9]*")}
        assert shards == {path.name: path.read_bytes() for path in Path(one).iterdir()}
        assert writer.total == len(written)


RGB = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
GREY = RGB[:, :, 0].copy()
VALUES = {
    **dict.fromkeys(["txt", "text", "transcript", "html", "htm"], "Grüße\n"),
    **dict.fromkeys(["cls", "cls2", "class", "count", "index", "inx", "id"], -17),
    **{field: {"a": [1, 2.5, None, "ß"]} for field in ["json", "jsn", "meta.json", "json.gz"]},
    "jsonl": [{"a": 1}, [2]],
    "npy": np.arange(6, dtype=np.float32).reshape(2, 3),
    "npz": {"x": np.arange(3), "y": np.zeros((2, 2))},
    **{
        field: [np.arange(4, dtype=np.int64), np.ones((2, 2), np.float32)]
        for field in ["ten", "tb", "tenbin"]
    },
    **{field: {"a": [1, "b", b"c"]} for field in ["mp", "msg", "msgpack", "messagepack"]},
    "cbor": {"a": [1, "b", b"c"]},
    **dict.fromkeys(["pt", "pth"], torch.arange(6).reshape(2, 3)),
    **dict.fromkeys(["png", "seg.png", "ppm", "tif", "tiff", "webp", "bmp"], RGB),
    "grey.pgm": GREY,
    "bin": b"\x00\xff",
}


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor | np.ndarray):
        return type(one) is type(other) and one.dtype == other.dtype and bool((one == other).all())
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("field", VALUES)
def test_every_encoder_comes_back_through_our_decoder(tmp_path, field):
    if field == "cbor":
        pytest.importorskip("cbor2")
    if field == "webp":
        pytest.importorskip("PIL._webp")
    value = VALUES[field]
    spec = "l8" if field.startswith("grey") else "rgb8"
    with TarWriter(tmp_path / "s.tar") as writer:
        writer.write({"__key__": "a", field: value})
    (sample,) = AISFileLoader([str(tmp_path / "s.tar")]).group_samples().decode(spec)
    assert same(sample[field], value), sample[field]


def test_a_jpeg_comes_back_nearly_as_it_was(tmp_path):
    smooth = np.tile(np.linspace(0, 255, 32, dtype=np.uint8)[:, None, None], (1, 32, 3))
    with TarWriter(tmp_path / "s.tar") as writer:
        writer.write(
            {"__key__": "a", "jpg": smooth, "pil.jpeg": Image.fromarray(smooth), "f.jpg": smooth / 255}
        )
    (sample,) = AISFileLoader([str(tmp_path / "s.tar")]).group_samples().decode("rgb8")
    for field in ("jpg", "pil.jpeg", "f.jpg"):
        assert np.abs(sample[field].astype(int) - smooth).max() <= 2


def test_a_pickle_comes_back_where_both_sides_allow_it(tmp_path):
    with TarWriter(tmp_path / "s.tar", allow_pickle=True) as writer:
        writer.write({"__key__": "a", "pkl": {1, 2}})
    (sample,) = AISFileLoader([str(tmp_path / "s.tar")]).group_samples().decode(allow_pickle=True)
    assert sample["pkl"] == {1, 2}


def test_a_tensor_in_memory_is_an_image_too():
    stream = io.BytesIO()
    with TarWriter(stream) as writer:
        writer.write({"__key__": "a", "png": torch.from_numpy(RGB).permute(2, 0, 1)})
    with tarfile.open(fileobj=io.BytesIO(stream.getvalue())) as tar:
        assert (np.asarray(Image.open(tar.extractfile("a.png"))) == RGB).all()
