"""A wrong call is never skipped: it passes every ``on_error=``, every handler and every loop, in every stage.

Wrong calls are, in all stages, codecs, writers, transforms and commands: a pickle that is not allowed, a library that
is missing, an argument that cannot work. Skipped, they would give an empty data set without a word, or a loop for ever.
"""

from __future__ import annotations

import functools
import io
import itertools
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchdata_ais.webdataset as wds
from torchdata_ais import AISFileLoader, AISObjectLoader, Safety, ShardWriter, convert
from torchdata_ais._util.arguments import check_function
from torchdata_ais.cli.checks import lint_shards
from torchdata_ais.cli.checks.resharding import reshard
from torchdata_ais.codecs import Decoder, build_encoder
from torchdata_ais.errors import (
    NEVER_SKIPPED,
    AISError,
    DecodeError,
    DecodeUsageError,
    EncodeError,
    EncodeUsageError,
    MissingLibraryError,
    SampleError,
    StateError,
    UsageError,
)
from torchdata_ais.jobs.etl.transform import ShardTransform, TransformError
from torchdata_ais.pipes import (
    Associator,
    Batcher,
    DictMapper,
    KeyExtractor,
    KeyRenamer,
    Renamer,
    SampleDecoder,
    SampleMapper,
    Selector,
    StreamDecoder,
    TarSampleGrouper,
    TupleMaker,
    TupleMapper,
)
from torchdata_ais.testing import shard_bytes, write_shard

PICKLE = pickle.dumps(1)
POLICIES: dict[str, Any] = {
    "skip": "skip",
    "warn": "warn",
    "handler": lambda error: True,
    "ignore_and_continue": wds.ignore_and_continue,
    "warn_and_continue": wds.warn_and_continue,
    "ignore_and_stop": wds.ignore_and_stop,
    "warn_and_stop": wds.warn_and_stop,
}
FATAL: dict[str, Exception] = {
    "usage": UsageError("wrong"),
    "library": MissingLibraryError("absent"),
    "state": StateError("other data"),
    "pickle": DecodeUsageError("refused"),
    "import": ModuleNotFoundError("absent"),
    "name": NameError("unknown"),
    "memory": MemoryError(),
}


def sample(**fields: Any) -> dict[str, Any]:
    return {"__key__": "a", "__url__": "s.tar", **fields}


def npy() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([{}], object), allow_pickle=True)
    return stream.getvalue()


@pytest.fixture
def shard(tmp_path: Path) -> str:
    return str(
        write_shard(tmp_path / "s.tar", {"a.cls": b"1", "a.pyd": PICKLE, "b.cls": b"2", "b.pyd": PICKLE})
    )


def raising(error: Exception) -> Callable[..., Any]:
    def fail(value: Any) -> Any:
        raise error

    return fail


def raising2(error: Exception) -> Callable[..., Any]:
    def fail(name: str, value: Any) -> Any:
        raise error

    return fail


# -- what a user's function raises: one definition for all stages


STAGES: dict[str, Callable[[Exception, Any], Any]] = {
    "map_sample": lambda error, on_error: SampleMapper([sample(x=1)], raising(error), on_error=on_error),
    "map_tuple": lambda error, on_error: TupleMapper([(1,)], raising(error), on_error=on_error),
    "map_dict": lambda error, on_error: DictMapper([sample(x=1)], x=raising(error), on_error=on_error),
    "select": lambda error, on_error: Selector([sample(x=1)], raising(error), on_error=on_error),
    "associate": lambda error, on_error: Associator([sample(x=1)], raising(error), on_error=on_error),
    "xdecode": lambda error, on_error: StreamDecoder([sample(x=b"1")], x=raising(error), on_error=on_error),
    "decode": lambda error, on_error: SampleDecoder([sample(x=b"1")], raising2(error), on_error=on_error),
    "decode in threads": lambda error, on_error: SampleDecoder(
        [sample(x=b"1")], raising2(error), on_error=on_error, threads=2
    ),
    "decode, pre": lambda error, on_error: SampleDecoder(
        [sample(x=b"1")], pre=raising2(error), on_error=on_error
    ),
    "load_tar, select_files": lambda error, on_error: AISFileLoader(
        [SHARD[0]], select_files=raising(error), on_error=on_error
    ),
    "load_tar, rename_files": lambda error, on_error: AISFileLoader(
        [SHARD[0]], rename_files=raising(error), on_error=on_error
    ),
    "facade map": lambda error, on_error: wds.map(raising(error), handler=handler_of(on_error))([sample()]),
    "facade decode": lambda error, on_error: wds.decode(raising2(error), handler=handler_of(on_error))(
        [sample(x=b"1")]
    ),
    "facade batched": lambda error, on_error: wds.batched(
        2, collation_fn=raising(error), handler=handler_of(on_error)
    )([(1,)]),
    "facade shards": lambda error, on_error: wds.tarfile_to_samples(
        select_files=raising(error), handler=handler_of(on_error)
    )([{"url": SHARD[0]}]),
    "facade WebDataset": lambda error, on_error: wds.WebDataset(
        [SHARD[0]], rename_files=raising(error), handler=handler_of(on_error), empty_check=False
    ),
}
SHARD = [""]


def handler_of(on_error: Any) -> Any:
    return on_error if callable(on_error) else wds.ignore_and_continue


@pytest.mark.parametrize("policy", ["skip", "handler", "warn_and_continue", "ignore_and_stop"])
@pytest.mark.parametrize("kind", FATAL)
@pytest.mark.parametrize("stage", STAGES)
def test_no_stage_skips_it(stage: str, kind: str, policy: str, shard: str) -> None:
    SHARD[0] = shard
    with pytest.raises(type(FATAL[kind])):
        list(STAGES[stage](FATAL[kind], POLICIES[policy]))


@pytest.mark.parametrize("stage", STAGES)
def test_what_else_a_function_raises_is_an_error_of_its_sample(stage: str, shard: str) -> None:
    SHARD[0] = shard
    assert list(STAGES[stage](ValueError("bad value"), "skip")) == []


def test_no_handler_is_asked_and_none_of_ours_would_agree(shard: str) -> None:
    asked: list[Exception] = []
    pipe = SampleMapper(
        [sample()], raising(UsageError("wrong")), on_error=lambda error: asked.append(error) or True
    )
    with pytest.raises(UsageError):
        list(pipe)
    assert asked == []
    for name in (
        "ignore_and_continue",
        "warn_and_continue",
        "ignore_and_stop",
        "warn_and_stop",
        "reraise_exception",
    ):
        for error in FATAL.values():
            with pytest.raises(NEVER_SKIPPED):
                getattr(wds, name)(error)


def test_commands_and_caches_of_the_facade_do_not_skip_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchdata_ais.webdataset.cache import FileKeeper, StreamingOpen

    for error in FATAL.values():
        monkeypatch.setattr(StreamingOpen, "_open", lambda self, url, error=error: raising(error)(url))
        with pytest.raises(type(error)):
            list(StreamingOpen(handler=lambda error: True)(["x.tar"]))

        class Keeper(FileKeeper):
            open = staticmethod(lambda url, options, error=error: raising(error)(url))

        keeper = Keeper(str(tmp_path), 1)
        with pytest.raises(type(error)):
            list(wds.tarfile_samples(["http://h/x.tar"], lambda error: True, cache=keeper))


# -- pickles that are not allowed


REFUSED = {"pyd": PICKLE, "pkl": PICKLE, "pickle": PICKLE, "npy": npy()}


@pytest.mark.parametrize("field", REFUSED)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_refused_pickle_passes_every_policy(field: str, policy: str) -> None:
    samples = [sample(cls=b"1", **{field: REFUSED[field]})]
    with pytest.raises(DecodeUsageError, match="allow_pickle=True") as caught:
        list(SampleDecoder(samples, on_error=POLICIES[policy]))
    error = caught.value
    assert (error.key, error.url, error.field) == ("a", "s.tar", field)
    assert f"Field {field!r} of sample 'a' cannot be decoded" in str(error)
    assert isinstance(error, (UsageError, DecodeError))
    assert type(pickle.loads(pickle.dumps(error))) is DecodeUsageError
    with pytest.raises(UsageError, match="allow_pickle=True"):
        list(wds.decode("pil", handler=handler_of(POLICIES[policy]))(samples))


def test_the_pth_of_a_whole_object_is_refused(shard: str) -> None:
    import torch

    stream = io.BytesIO()
    torch.save(Path(), stream)
    with pytest.raises(DecodeUsageError, match="allow_pickle=True"):
        list(SampleDecoder([sample(pth=stream.getvalue())], on_error="skip"))


def test_an_endless_program_of_the_facade_ends(shard: str) -> None:
    dataset = wds.DataPipeline(
        wds.SimpleShardList([shard]),
        itertools.cycle,
        wds.tarfile_to_samples(handler=wds.ignore_and_continue),
        wds.decode("pil", handler=wds.ignore_and_continue),
        wds.to_tuple("token.pyd", "cls", handler=wds.ignore_and_continue),
    )
    with pytest.raises(UsageError, match=r"Field 'pyd' of sample 'a'.*allow_pickle"):
        next(iter(dataset))
    resampled = wds.WebDataset([shard], resampled=True, handler=wds.ignore_and_continue)
    with pytest.raises(UsageError, match="allow_pickle"):
        next(iter(resampled.decode(handler=wds.ignore_and_continue).to_tuple("cls")))
    with pytest.raises(UsageError, match="allow_pickle"):
        next(iter(wds.WebDataset([shard]).decode(handler=wds.warn_and_continue).repeat().with_epoch(10)))


def test_a_value_that_is_decoded_already_passes_every_policy() -> None:
    twice = SampleDecoder(SampleDecoder([sample(cls=b"1")]), on_error="skip")
    with pytest.raises(UsageError, match=r"its value is int, not bytes.*partial=True"):
        list(twice)
    missing = SampleDecoder([sample(cls=None), sample(cls=b"1")], on_error="skip")
    assert [one["cls"] for one in missing] == [1]


# -- writers, conversions, transforms, checks


@pytest.mark.parametrize("field", ["pyd", "pkl", "pickle"])
def test_a_refused_pickle_is_not_skipped_by_writers(field: str, tmp_path: Path, shard: str) -> None:
    with pytest.raises(EncodeUsageError, match="allow_pickle=True") as caught:
        build_encoder()(sample(**{field: {1}}))
    assert (caught.value.key, caught.value.field) == ("a", field)
    assert isinstance(caught.value, (UsageError, EncodeError))
    with pytest.raises(UsageError), ShardWriter(f"{tmp_path}/w-%d.tar") as writer:
        writer.write(sample(**{field: {1}}))

    def adds(made: dict[str, Any]) -> dict[str, Any]:
        return {"__key__": made["__key__"], field: {1}}

    for processes in (1, 2):
        with pytest.raises(UsageError, match="allow_pickle=True"):
            convert(
                shard, f"{tmp_path}/c{processes}-%d.tar", map=adds, on_error="skip", processes=processes,
                start_method="fork",
            )  # fmt: skip
        with pytest.raises(UsageError, match="allow_pickle=True"):
            convert(
                shard, f"{tmp_path}/d{processes}-%d.tar", decode="pil", on_error="warn", processes=processes
            )


@pytest.mark.parametrize("kind", FATAL)
def test_no_conversion_skips_it(kind: str, tmp_path: Path, shard: str) -> None:
    for name in ("map", "select", "decode", "encoder"):
        with pytest.raises(type(FATAL[kind])):
            convert(shard, f"{tmp_path}/{name}-%d.tar", on_error="skip", **{name: raising(FATAL[kind])})
    with pytest.raises(SampleError, match="2 by SampleError"):
        convert(shard, f"{tmp_path}/v-%d.tar", on_error="skip", map=raising(ValueError("bad")))


@pytest.mark.parametrize("kind", FATAL)
def test_a_transform_does_not_take_it_for_an_error_of_a_sample(kind: str) -> None:
    def blocks(function: Callable[..., Any]) -> list[bytes]:
        return list(ShardTransform(function).blocks([shard_bytes({"a.cls": b"1"})], "ais://b/s.tar"))

    with pytest.raises(type(FATAL[kind])):
        blocks(raising(FATAL[kind]))
    with pytest.raises(TransformError):
        blocks(raising(ValueError("bad")))
    pickles = ShardTransform(lambda made: made, decode="pil")
    with pytest.raises(UsageError, match="allow_pickle"):
        list(pickles.blocks([shard_bytes({"a.pyd": PICKLE})], "ais://b/s.tar"))


def test_lint_and_its_mending_end_with_it(shard: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"allow_pickle.*--no-decode"):
        lint_shards(shard)
    report = lint_shards(shard, decode=False)
    with pytest.raises(UsageError, match="allow_pickle"):
        reshard(report, f"{tmp_path}/m-%d.tar")
    assert reshard(report, f"{tmp_path}/n-%d.tar", decode=False).samples == 2


# -- libraries that are missing


@pytest.mark.parametrize(("module", "field"), [("cbor2", "cbor")])
def test_a_missing_library_of_a_field_is_told(
    module: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for policy in POLICIES.values():
        with pytest.raises(MissingLibraryError, match=r"Field 'cbor' of sample 'a'.*pip install") as caught:
            list(SampleDecoder([sample(**{field: b"\xf6"})], on_error=policy))
        assert (caught.value.key, caught.value.field) == ("a", field)
    with pytest.raises(MissingLibraryError, match=r"Field 'cbor' of sample 'a'.*pip install"):
        build_encoder()(sample(**{field: 1}))


@pytest.mark.parametrize(("module", "spec"), [("soundfile", "audio"), ("av", "video")])
def test_a_missing_library_of_a_spec_is_told_when_the_pipe_is_made(
    module: str, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for make in (
        lambda: SampleDecoder([], spec, on_error="skip"),
        lambda: wds.decode(spec, handler=wds.ignore_and_continue),
        lambda: wds.decode(getattr(wds, f"torch_{spec}"), handler=wds.ignore_and_continue),
    ):
        with pytest.raises(MissingLibraryError, match="pip install"):
            make()
    name, data = {"audio": ("wav", b"RIFF"), "video": ("mp4", b"....")}[spec]
    late = SampleDecoder([sample(**{name: data})], post=getattr(wds, f"torch_{spec}"), on_error="skip")
    with pytest.raises(MissingLibraryError, match=f"Field '{name}' of sample 'a'"):
        list(late)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python has Zstandard itself")
def test_a_missing_library_of_a_shard_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    path = tmp_path / "s.tar.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
    with pytest.raises(MissingLibraryError, match="pip install"):
        list(AISFileLoader([str(path)], on_error="skip"))
    with pytest.raises(MissingLibraryError, match="pip install"):
        list(wds.WebDataset([str(path)], handler=wds.ignore_and_continue))
    with (
        pytest.raises(MissingLibraryError, match="pip install"),
        ShardWriter(f"{tmp_path}/w-%d.tar.zst") as writer,
    ):
        writer.write(sample(cls=1))


# -- arguments that cannot work


def two(one: Any, other: Any) -> None: ...


ARGUMENTS: dict[str, Callable[[], Any]] = {
    "load_tar select_files": lambda: AISFileLoader([], select_files="cls", on_error="skip"),  # type: ignore[arg-type]
    "load_tar select_files arity": lambda: AISFileLoader([], select_files=two, on_error="skip"),  # type: ignore[arg-type]
    "load_tar rename_files": lambda: AISFileLoader([], rename_files=two, on_error="skip"),  # type: ignore[arg-type]
    "load_tar max_sample_bytes": lambda: AISFileLoader(
        [], safety=Safety(max_sample_bytes="1GB"), on_error="skip"
    ),  # type: ignore[arg-type]
    "load_tar max_ratio": lambda: AISFileLoader([], safety=Safety(max_ratio=None), on_error="skip"),  # type: ignore[arg-type]
    "load_tar open_shards": lambda: AISFileLoader([], open_shards=0, on_error="skip"),
    "load_tar retry": lambda: AISFileLoader([], retry=5, on_error="skip"),  # type: ignore[arg-type]
    "load_tar prefetch_bytes": lambda: AISFileLoader([], prefetch_bytes="1", on_error="skip"),  # type: ignore[arg-type]
    "load_tar options": lambda: AISFileLoader([], cluster={}, on_error="skip"),  # type: ignore[arg-type]
    "load_objects max_object_bytes": lambda: AISObjectLoader([], max_object_bytes="1", on_error="skip"),  # type: ignore[arg-type]
    "on_error": lambda: SampleMapper([], len, on_error="ignore"),  # type: ignore[arg-type]
    "on_error arity": lambda: SampleMapper([], len, on_error=two),  # type: ignore[arg-type]
    "max_errors": lambda: SampleMapper([], len, on_error="skip", max_errors="3"),  # type: ignore[arg-type]
    "max_errors below 0": lambda: SampleMapper([], len, on_error="skip", max_errors=-1),
    "group_samples require": lambda: TarSampleGrouper([], require=[5], on_error="skip"),  # type: ignore[list-item]
    "to_tuple": lambda: TupleMaker([], "jpg", None, on_error="skip"),  # type: ignore[arg-type]
    "rename": lambda: Renamer([], image=5, on_error="skip"),  # type: ignore[arg-type]
    "rename_keys pair": lambda: KeyRenamer([], ("a", "b", "c"), on_error="skip"),  # type: ignore[arg-type]
    "rename_keys": lambda: KeyRenamer([], image=5, on_error="skip"),  # type: ignore[arg-type]
    "extract_keys": lambda: KeyExtractor([], 5, on_error="skip"),  # type: ignore[arg-type]
    "xdecode rule": lambda: StreamDecoder([], "*.npy", on_error="skip"),  # type: ignore[arg-type]
    "xdecode arity": lambda: StreamDecoder([], x=two, on_error="skip"),  # type: ignore[arg-type]
    "map_sample": lambda: SampleMapper([], "f", on_error="skip"),  # type: ignore[arg-type]
    "map_sample arity": lambda: SampleMapper([], two, on_error="skip"),
    "map_sample rng arity": lambda: SampleMapper([], lambda one: one, rng=True, on_error="skip"),
    "map_tuple arity": lambda: TupleMapper([], None, two, on_error="skip"),  # type: ignore[arg-type]
    "map_dict arity": lambda: DictMapper([], cls=two, on_error="skip"),  # type: ignore[arg-type]
    "select arity": lambda: Selector([], two, on_error="skip"),  # type: ignore[arg-type]
    "associate arity": lambda: Associator([], two, on_error="skip"),  # type: ignore[arg-type]
    "batched arity": lambda: Batcher([], 2, two),  # type: ignore[arg-type]
    "decode spec": lambda: SampleDecoder([], "torchrgb9", on_error="skip"),
    "decode arity": lambda: SampleDecoder([], lambda data: data, on_error="skip"),  # type: ignore[arg-type, misc]
    "decode only": lambda: SampleDecoder([], only=5, on_error="skip"),
    "decode pre": lambda: SampleDecoder([], pre=5, on_error="skip"),
    "decode max_gz_bytes": lambda: SampleDecoder([], max_gz_bytes="1", on_error="skip"),
    "decode max_pixels": lambda: SampleDecoder([], max_pixels="1", on_error="skip"),
    "decode size": lambda: SampleDecoder([], "rgb8", size="224", on_error="skip"),
    "decode size above max_pixels": lambda: SampleDecoder([], "rgb8", size=99_999, on_error="skip"),
    "decode shorter above max_pixels": lambda: SampleDecoder([], "rgb8", shorter=9, max_pixels=80),
    "facade map": lambda: wds.map(two, handler=wds.ignore_and_continue),
    "facade handler": lambda: wds.map(len, handler=5),
    "facade batched": lambda: list(wds.batched(2, collation_fn=two, handler=wds.ignore_and_continue)([])),
    "facade select_files": lambda: list(
        wds.tarfile_to_samples(select_files=5, handler=wds.ignore_and_continue)(["s.tar"])
    ),
    "facade unknown spec": lambda: wds.decode("rbg", handler=wds.ignore_and_continue),
    "encoder function": lambda: build_encoder({"cls": 5}),  # type: ignore[dict-item]
    "encoder arity": lambda: build_encoder({"cls": two}),  # type: ignore[dict-item]
    "encoder of samples": lambda: build_encoder(two),  # type: ignore[arg-type]
    "convert map": lambda: convert("s.tar", "o-%d.tar", map=two, on_error="skip"),
    "convert rng": lambda: convert("s.tar", "o-%d.tar", map=len, rng=True, on_error="skip"),
    "convert select": lambda: convert("s.tar", "o-%d.tar", select=5, on_error="skip"),  # type: ignore[arg-type]
    "convert decode": lambda: convert("s.tar", "o-%d.tar", decode=5, on_error="skip"),  # type: ignore[arg-type]
    "convert encoder": lambda: convert("s.tar", "o-%d.tar", encoder={"cls": two}, on_error="skip"),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_that_cannot_work_is_told_when_the_stage_is_made(name: str) -> None:
    with pytest.raises(UsageError):
        ARGUMENTS[name]()


def test_functions_of_any_kind_are_taken(shard: str) -> None:
    class Doing:
        def __call__(self, value: Any) -> Any:
            return value

        def method(self, value: Any, more: int = 0) -> Any:
            return value

    def fixed(function: Callable[..., Any]) -> Callable[[Any], Any]:
        @functools.wraps(function)
        def call(value: Any) -> Any:
            return function(value, 1)

        return call

    import torch

    for function in (
        len, int, str, dict, np.asarray, np.float32, torch.tensor, torch.nn.Identity(), Doing(), Doing().method,
        functools.partial(two, 1), fixed(two), functools.lru_cache(two), str.upper, lambda *values: values, Path,
        functools.partial(two, other=1), Exception,
    ):  # fmt: skip
        check_function(function, 1, "map_sample()")
    with pytest.raises(UsageError, match=r"map_sample\(\) calls two\(one, other\) with 1 value: .*'other'"):
        check_function(two, 1, "map_sample()")


def test_the_definition() -> None:
    """Everything below UsageError is the call's; nothing that only the data are to blame for is."""
    kinds = [kind for kind in vars(sys.modules["torchdata_ais.errors"]).values() if isinstance(kind, type)]
    fatal = {
        kind.__name__ for kind in kinds if issubclass(kind, NEVER_SKIPPED) and issubclass(kind, AISError)
    }
    assert fatal == {
        "ArgumentError",
        "UsageError",
        "StateError",
        "MissingLibraryError",
        "DecodeUsageError",
        "EncodeUsageError",
    }
    assert not issubclass(SampleError, NEVER_SKIPPED)
    assert Decoder()({"cls": b"1"}) == {"cls": 1}
