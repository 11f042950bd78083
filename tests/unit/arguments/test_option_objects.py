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
    loaders,
    pipes,
    store,
    writing,
)
from torchdata_ais.errors import AISError, SampleError, UsageError
from torchdata_ais.jobs import etl
from torchdata_ais.testing import example_shards, write_shard
from torchdata_ais.writing import Edit, SourceOptions, convert


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
    [(AISFileLoader, 13), (TarWriter, 13), (convert, 13)],
)
def test_constructors_have_few_names(kind: Any, most: int) -> None:
    assert len(inspect.signature(kind).parameters) <= most


def _written(folder: Path, **how: Any) -> list[bytes]:
    done = convert(example_shards(counts=(3, 2)), f"{folder}/s-%d.tar", **how)
    return [Path(shard.name).read_bytes() for shard in done.shards]


def test_an_edit_says_the_same_as_its_single_names(tmp_path: Path) -> None:
    how: dict[str, Any] = {"select": bool, "fields": "cls", "keys": "number"}
    one = _written(tmp_path / "one", edit=Edit(**how), maxcount=2)
    assert one == _written(tmp_path / "two", **how, maxcount=2)
    assert one != _written(tmp_path / "three", maxcount=2)


def test_options_of_the_source_say_the_same_as_their_single_names(tmp_path: Path) -> None:
    table = tmp_path / "t.jsonl"
    table.write_text("".join(f'{{"label": {number}}}\n' for number in range(20)))
    how: dict[str, Any] = {"kind": "table", "columns": {"label": "cls"}, "shuffle": True}
    written = []
    for name, one in (("one", {"source_options": SourceOptions(**how)}), ("two", how), ("three", {})):
        (shard,) = convert(table, f"{tmp_path}/{name}-%d.tar", **one).shards
        written.append(Path(shard.name).read_bytes())
    assert written[0] == written[1] != written[2]


@pytest.mark.parametrize(
    "how",
    [
        {"source_options": SourceOptions(), "shuffle": False},
        {"source_options": "table"},
        {"kind": "folder"},
        {"edit": Edit(), "fields": "cls"},
        {"edit": "cls"},
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
    "resolve_options",  # keywords that name fields of StoreOptions
    "Folder",  # a protocol
    "convert", "shard_etl",
}  # fmt: skip
"""Public names that take keywords by ``**``."""


def test_no_public_name_hides_its_options() -> None:
    hidden = set()
    for module in (torchdata_ais, pipes, store, writing, loaders, dataloader2, etl, index):
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
