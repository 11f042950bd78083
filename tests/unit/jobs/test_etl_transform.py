"""A function on every sample of a shard, without a cluster."""

from __future__ import annotations

import io
import linecache
import os
import subprocess
import sys
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset as wds
from aistore.sdk.etl.webserver import serialize_class
from aistore.sdk.etl.webserver.base_etl_server import ETLServer
from PIL import Image

from torchdata_ais import AISFileLoader
from torchdata_ais.codecs import EncodeError
from torchdata_ais.errors import DuplicateFieldError, TruncatedShardError, UsageError
from torchdata_ais.examples.pets import make_shards
from torchdata_ais.jobs.etl import ShardTransform, TransformError, shard_etl
from torchdata_ais.jobs.etl.make import fingerprint
from torchdata_ais.jobs.etl.transform import parse_args
from torchdata_ais.testing import shard_bytes, write_shard


def made(transform: ShardTransform, shard: bytes, url: str = "ais://b/s.tar", args: Any = "") -> bytes:
    blocks = (shard[start : start + 1000] for start in range(0, len(shard), 1000))
    return b"".join(transform.blocks(blocks, url, args))


def samples_in(shard: bytes, tmp_path: Path, name: str = "new.tar") -> list[dict[str, Any]]:
    (tmp_path / name).write_bytes(shard)
    return [dict(sample) for sample in AISFileLoader([str(tmp_path / name)]).group_samples()]


def names_in(shard: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(shard)) as archive:
        return archive.getnames()


def noted(out: bytearray) -> Callable[[bytes], bytes]:
    def note(block: bytes) -> bytes:
        out.extend(block)
        return b""

    return note


ROOT = Path(__file__).parents[3]
TWO = shard_bytes({"a.txt": b"one", "a.cls": b"1", "b.txt": b"two", "b.cls": b"2"})


def test_every_sample_goes_through_the_function(tmp_path: Path) -> None:
    def shout(sample: dict[str, Any]) -> dict[str, Any]:
        sample["txt"] = sample["txt"].upper()
        del sample["cls"]
        return sample

    new = samples_in(made(ShardTransform(shout), TWO), tmp_path)
    assert [(sample["__key__"], sample["txt"]) for sample in new] == [("a", b"ONE"), ("b", b"TWO")]
    assert "cls" not in new[0]


def test_none_leaves_a_sample_out_and_an_iterable_makes_several(tmp_path: Path) -> None:
    def split(sample: dict[str, Any]) -> Any:
        if sample["__key__"] == "a":
            return None
        return ({"__key__": f"{sample['__key__']}{n}", "cls": b"%d" % n} for n in range(3))

    assert [sample["__key__"] for sample in samples_in(made(ShardTransform(split), TWO), tmp_path)] == [
        "b0",
        "b1",
        "b2",
    ]


def test_a_shard_of_which_nothing_is_left_is_a_whole_and_empty_archive() -> None:
    new = made(ShardTransform(lambda sample: None), TWO)
    assert names_in(new) == []
    assert len(new) == 10240


def test_a_key_that_the_function_forgets_is_kept(tmp_path: Path) -> None:
    new = made(ShardTransform(lambda sample: {"txt": sample["txt"]}), TWO)
    assert [sample["__key__"] for sample in samples_in(new, tmp_path)] == ["a", "b"]


def test_values_are_decoded_before_and_encoded_after(tmp_path: Path) -> None:
    def shrink(sample: dict[str, Any], args: Any) -> dict[str, Any]:
        picture = sample.pop("image.jpg").resize((args["size"], args["size"]))
        return {**sample, "image.png": picture, "npy": np.asarray(picture, np.float32) / 255}

    transform = ShardTransform(shrink, decode="pil")
    new = made(transform, next(make_shards([3])), args={"size": 8})
    (first, *others) = samples_in(new, tmp_path)
    assert Image.open(io.BytesIO(first["image.png"])).size == (8, 8)
    assert np.load(io.BytesIO(first["npy"])).shape == (8, 8, 3)
    assert first["cls"].isdigit()
    assert len(others) == 2
    assert {name.partition(".")[2] for name in names_in(new)} == {"cls", "image.png", "npy", "trimap.png"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves files open
def test_webdataset_reads_what_comes_out(tmp_path: Path) -> None:
    (tmp_path / "new.tar").write_bytes(made(ShardTransform(lambda sample: sample, decode="pil"), TWO))
    dataset = wds.WebDataset(str(tmp_path / "new.tar"), shardshuffle=False).decode().to_tuple("txt", "cls")
    assert list(dataset) == [("one", 1), ("two", 2)]


@pytest.mark.parametrize("name", ["s.tgz", "s.tar.gz", "s.tar.xz"])
def test_a_compressed_shard_stays_compressed(name: str, tmp_path: Path) -> None:
    import gzip
    import lzma

    packed = (lzma if name.endswith("xz") else gzip).compress(TWO)
    new = made(ShardTransform(lambda sample: sample), packed, f"ais://b/{name}")
    assert new[:2] == packed[:2]
    assert [sample["txt"] for sample in samples_in(new, tmp_path, name)] == [b"one", b"two"]


def test_what_the_function_raises_names_function_sample_and_shard() -> None:
    def picky(sample: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("not this one")

    with pytest.raises(
        TransformError, match=r"picky\(\) failed over the sample 'a': ValueError: not this one"
    ) as raised:
        made(ShardTransform(picky), TWO)
    assert (raised.value.url, raised.value.key) == ("ais://b/s.tar", "a")
    assert isinstance(raised.value.__cause__, ValueError)


def test_an_iterator_that_fails_in_the_middle_is_an_error_too() -> None:
    def halves(sample: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"__key__": "x", "txt": b""}
        raise ValueError("broken")

    with pytest.raises(TransformError, match="broken"):
        made(ShardTransform(halves), TWO)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda sample: 5, TransformError, "'int' object is not iterable"),
        (lambda sample: [5], TransformError, "it returned a int, not a sample"),
        (lambda sample: [{"txt": b""}] * 2, DuplicateFieldError, "Two samples of the new shard have the key 'a'"),
        (lambda sample: {"jpg": object()}, EncodeError, "object"),
    ],
)  # fmt: skip
def test_what_is_no_sample_is_refused(function: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        made(ShardTransform(function), TWO)


@pytest.mark.parametrize("end", [520, 600, 1536, 2048, 4096])
def test_a_cut_shard_is_an_error_and_its_result_has_no_end(end: int) -> None:
    blocks = ShardTransform(lambda sample: sample).blocks([TWO[:end]], "ais://b/s.tar")
    out = bytearray()
    with pytest.raises(TruncatedShardError):
        out += b"".join(map(noted(out), blocks))
    assert not out.endswith(bytes(1024))


def test_a_missing_module_is_not_blamed_on_the_sample() -> None:
    def needs(sample: dict[str, Any]) -> dict[str, Any]:
        import no_such_module_here  # noqa: F401

        return sample

    with pytest.raises(ModuleNotFoundError):
        made(ShardTransform(needs), TWO)


def test_memory_does_not_grow_with_the_shard() -> None:
    payload = os.urandom(1 << 20)

    def shard() -> Iterator[bytes]:
        one = shard_bytes({"KEY.bin": payload})[: 512 + len(payload)]
        for number in range(60):
            header = bytearray(one[:512])
            header[:3] = b"%03d" % number
            header[148:156] = b" " * 8
            header[148:156] = b"%06o\0 " % sum(header)
            yield bytes(header) + one[512:]
        yield bytes(10240)

    tracemalloc.start()
    try:
        total = sum(map(len, ShardTransform(lambda sample: sample).blocks(shard(), "ais://b/s.tar")))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total > 60 << 20
    assert peak < 20 << 20


def test_arguments_are_json_or_text() -> None:
    assert parse_args('{"a": [1]}') == {"a": [1]}
    assert parse_args("not json {") == "not json {"


# -- the server class


def test_the_decorator_makes_a_server_class_of_the_sdk() -> None:
    @shard_etl(decode="pil", quality=90, size=8)
    def tiny(sample: Any) -> Any:
        """Make it small."""
        return sample

    assert issubclass(tiny, ETLServer)
    assert (tiny.__name__, tiny.__doc__) == ("tiny", "Make it small.")
    assert tiny.transform is ETLServer.transform  # so that the SDK streams


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: shard_etl(5), "was given a int"),
        (lambda: shard_etl(lambda: 1), r"takes \(\)"),
        (lambda: shard_etl(lambda sample, rng: 1), r"takes \(sample, rng\)"),
        (lambda: shard_etl(decode="nonsense")(lambda sample: 1), "nonsense"),
        (lambda: shard_etl(size=8)(lambda sample: 1), "size= without decode="),
    ],
)
def test_what_cannot_work_is_refused_at_once(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


HELPER = """
FACTOR = 3

def helper(number):
    return number * FACTOR

def triple(sample):
    sample["cls"] = str(helper(int(sample["cls"]))).encode()
    return sample
"""


@pytest.mark.ci
def test_code_of_own_modules_travels_with_the_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod has no such file: what is pickled by reference cannot be imported there."""
    (tmp_path / "own_etl_module.py").write_text(HELPER)
    monkeypatch.syspath_prepend(tmp_path)
    import own_etl_module  # type: ignore[import-not-found]

    payload = serialize_class(shard_etl(own_etl_module.triple))
    program = (
        "import base64, os, sys, cloudpickle\n"
        "server = cloudpickle.loads(base64.b64decode(sys.stdin.read()))\n"
        "from torchdata_ais.testing import shard_bytes\n"
        "out = b''.join(server.shard_transform.blocks([shard_bytes({'a.cls': b'5'})], 'ais://b/s.tar'))\n"
        "print(out[512:514].decode(), 'own_etl_module' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, input=payload, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout.split() == ["15", "False"], done.stderr


def test_a_fingerprint_tells_code_and_settings_apart() -> None:
    def one(sample: Any) -> Any:
        return sample

    def two(sample: Any) -> Any:
        return None

    assert fingerprint(shard_etl(one)) == fingerprint(shard_etl(one))
    prints = {
        fingerprint(shard_etl(one)),
        fingerprint(shard_etl(two)),
        fingerprint(shard_etl(decode="pil")(one)),
    }
    assert len(prints) == 3
    without_source = [eval(f"lambda sample: {{'txt': {text!r}}}") for text in (b"a", b"b", b"a")]
    first, second, third = (fingerprint(shard_etl(function)) for function in without_source)
    assert first == third != second


def test_a_fingerprint_without_source_is_that_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since Python 3.13 ``python -c`` leaves its program where the source of eval() is looked for."""
    monkeypatch.setitem(linecache.cache, "<string>", (12, None, ["import this\n"], "<string>"))
    first, second = (
        fingerprint(shard_etl(eval(f"lambda sample: {{'txt': {text!r}}}"))) for text in (b"a", b"b")
    )
    assert first != second


def test_members_are_written_by_the_naming_rule(tmp_path: Path) -> None:
    shard = Path(
        write_shard(tmp_path / "in.tar", {"d/a.seg.PNG": b"x", "README": b"r", "d/a.cls": b"1"})
    ).read_bytes()
    new = made(ShardTransform(lambda sample: sample), shard)
    assert names_in(new) == ["d/a.cls", "d/a.seg.png"]
