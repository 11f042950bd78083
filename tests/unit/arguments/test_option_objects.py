"""Objects of options that belong together: `Safety`, `ObjectCache`, `Edit`, `SourceOptions`."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest

import torchdata_ais
from torchdata_ais import (
    AISFileLoader,
    ObjectCache,
    Safety,
    TarWriter,
    dataloader2,
    index,
    integrations,
    loaders,
    pipes,
    store,
    webdataset,
    writing,
)
from torchdata_ais.errors import AISError, SampleError, UsageError
from torchdata_ais.jobs import etl
from torchdata_ais.testing import example_shards, write_shard
from torchdata_ais.writing import Edit, SourceOptions, conversion, convert


@pytest.fixture
def cut(tmp_path: Path) -> str:
    """A shard of two samples without its end blocks."""
    path = Path(write_shard(tmp_path / "s.tar", {"a.txt": b"1" * 600, "b.txt": b"2" * 600}))
    path.write_bytes(path.read_bytes()[:3072])
    return str(path)


def test_the_end_may_lack_where_it_is_said_so(cut: str) -> None:
    assert len(list(AISFileLoader([cut], safety=Safety(require_end=False)))) == 2
    with pytest.raises(AISError, match="end"):
        list(AISFileLoader([cut]))


def test_safety_bounds_a_sample(cut: str) -> None:
    with pytest.raises(SampleError):
        list(AISFileLoader([cut], safety=Safety(max_sample_bytes=500)))


@pytest.mark.parametrize("verify", [None, True, False])
@pytest.mark.parametrize("pin", [None, True, False])
def test_verify_and_pin_reach_the_transport(verify: Any, pin: Any) -> None:
    pipe = AISFileLoader(["s.tar"], safety=Safety(verify=verify, pin=pin))
    options = pipe.transport.resolve(pipe)
    assert (options.verify, options.pin) == (verify is not False, pin is not False)


@pytest.mark.parametrize(
    "how",
    [
        {"safety": Safety(), "require_end": True},
        {"safety": Safety(), "pin": None},
        {"safety": 5},
        {"safety": {"require_end": False}},
        {"require_end": False},
        {"cache_dir": "/tmp/y"},
    ],
)
def test_what_is_said_twice_or_cannot_work_is_refused_when_the_pipe_is_made(how: Any) -> None:
    with pytest.raises(UsageError):
        AISFileLoader(["s.tar"], **how)


def test_wrong_values_are_refused_by_the_object_itself() -> None:
    for make in (
        lambda: Safety(max_ratio=0),
        lambda: Safety(max_sample_bytes=-1),
        lambda: ObjectCache("/tmp/x", 0),
        lambda: ObjectCache("/tmp/x", "1 GB"),  # type: ignore[arg-type]
        lambda: ObjectCache(5),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError):
            make()


def test_a_cache_keeps_shards_in_a_folder_of_either_kind(
    ais_bucket: Any, ais_client: Any, tmp_path: Path
) -> None:
    shard = Path(example_shards(counts=(3,))[0])
    ais_bucket.object("s.tar").get_writer().put_content(shard.read_bytes())
    for cache in (ObjectCache(str(tmp_path / "one"), 1 << 20), ObjectCache(tmp_path / "two")):
        pipe = AISFileLoader([f"ais://{ais_bucket.name}/s.tar"], cluster=ais_client, cache=cache)
        assert len(list(pipe.group_samples())) == 3
    kept = [[file for file in (tmp_path / name).rglob("*") if file.is_file()] for name in ("one", "two")]
    assert all(any(file.stat().st_size == shard.stat().st_size for file in files) for files in kept)


def test_a_pipe_with_options_objects_pickles(tmp_path: Path) -> None:
    pipe = AISFileLoader(example_shards(), safety=Safety(max_ratio=5), cache=ObjectCache(str(tmp_path), 9))
    assert len(list(pickle.loads(pickle.dumps(pipe)))) == len(list(pipe))


@pytest.mark.parametrize(
    ("kind", "most"),
    [(AISFileLoader, 13), (TarWriter, 13)],
)
def test_constructors_have_few_names(kind: Any, most: int) -> None:
    assert len(inspect.signature(kind).parameters) <= most


def _written(folder: Path, **how: Any) -> list[bytes]:
    done = convert(example_shards(counts=(3, 2)), f"{folder}/s-%d.tar", **how)
    return [Path(shard.name).read_bytes() for shard in done.shards]


def test_convert_passes_on_each_of_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of 40 parameters may be forgotten, or passed as another: each arrives as the object it was."""
    job: dict[str, Any] = {}
    monkeypatch.setattr(conversion, "SourceOptions", lambda *given: given)
    monkeypatch.setattr(conversion, "Edit", lambda *given: given)
    monkeypatch.setattr(
        conversion, "ConversionJob", lambda *given, **named: job.update(named, given=given) or 1 / 0
    )
    given = {name: object() for name in inspect.signature(convert).parameters if name != "target"}
    with pytest.raises(ZeroDivisionError):
        convert.__wrapped__(target="x", **given)  # type: ignore[attr-defined]
    how = dict(zip(SourceOptions.__annotations__, job.pop("how"), strict=True))
    edit = dict(zip(Edit.__annotations__, job.pop("edit"), strict=True))
    source, _ = job.pop("given")
    assert {**how, **edit, **job.pop("writer"), **job, "source": source} == given


@pytest.mark.parametrize(
    "how",
    [
        {"kind": "folder"},
        {"keys": "count"},
        {"select": 3},
        {"map": lambda: None},
        {"map": len, "rng": True},
        {"endpiont": "h"},
    ],
)
def test_an_edit_that_cannot_work_is_refused(tmp_path: Path, how: Any) -> None:
    with pytest.raises(UsageError):
        _written(tmp_path, **how)
    assert not list(tmp_path.rglob("*.tar"))


HIDDEN = {
    "DictMapper", "KeyRenamer", "Renamer", "StreamDecoder",  # keywords that name fields
    "Folder",  # a protocol
    "map_dict", "rename", "rename_keys", "xdecode",  # the same in webdataset's names
    "OpenTelemetryStats",  # keywords that name attributes
    "Processor",  # arguments of the function that they take
}  # fmt: skip
"""Public names that take keywords by ``**``."""


def test_no_public_name_hides_its_options() -> None:
    hidden = set()
    for module in (
        torchdata_ais,
        pipes,
        store,
        writing,
        loaders,
        dataloader2,
        etl,
        index,
        integrations,
        webdataset,
    ):
        for name in module.__all__:
            public = getattr(module, name)
            if not callable(public) or getattr(public, "__module__", "").partition(".")[0] != "torchdata_ais":
                continue
            try:
                signature = inspect.signature(public)
            except ValueError:
                continue
            kinds = {parameter.kind for parameter in signature.parameters.values()}
            if inspect.Parameter.VAR_KEYWORD in kinds:
                hidden.add(name)
    assert hidden == HIDDEN
