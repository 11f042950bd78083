"""Options that belong together are one object; the single names of version 0.1 still say the same."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import AISFileLoader, ObjectCache, Safety, ShardWriter, TarWriter, ais_loader
from torchdata_ais.errors import AISError, SampleError, UsageError
from torchdata_ais.pipes.load_tar import LoadTarNames
from torchdata_ais.testing import example_shards, write_shard
from torchdata_ais.writing import Edit, SourceOptions, convert


@pytest.fixture
def cut(tmp_path: Path) -> str:
    """A shard of two samples without its end blocks."""
    path = Path(write_shard(tmp_path / "s.tar", {"a.txt": b"1" * 600, "b.txt": b"2" * 600}))
    path.write_bytes(path.read_bytes()[:3072])
    return str(path)


@pytest.mark.parametrize("how", [{"safety": Safety(require_end=False)}, {"require_end": False}])
def test_the_end_may_lack_where_it_is_said_so(cut: str, how: Any) -> None:
    assert len(list(AISFileLoader([cut], **how))) == 2
    with pytest.raises(AISError, match="end"):
        list(AISFileLoader([cut]))


@pytest.mark.parametrize("how", [{"safety": Safety(max_sample_bytes=500)}, {"max_sample_bytes": 500}])
def test_a_sample_is_bounded_by_either_name(cut: str, how: Any) -> None:
    with pytest.raises(SampleError):
        list(AISFileLoader([cut], **how))


@pytest.mark.parametrize("verify", [None, True, False])
@pytest.mark.parametrize("pin", [None, True, False])
def test_verify_and_pin_reach_the_transport(verify: Any, pin: Any) -> None:
    for how in ({"safety": Safety(verify=verify, pin=pin)}, {"verify": verify, "pin": pin}):
        pipe = AISFileLoader(["s.tar"], **how)
        options = pipe.transport.resolve(pipe)
        assert (options.verify, options.pin) == (verify is not False, pin is not False)


@pytest.mark.parametrize(
    "how",
    [
        {"safety": Safety(), "require_end": True},
        {"safety": Safety(), "pin": None},
        {"safety": 5},
        {"safety": {"require_end": False}},
        {"max_ratio": 0.5},
        {"max_sample_bytes": "1"},
        {"cache": ObjectCache("/tmp/x", 1), "cache_dir": "/tmp/y"},
        {"cache_dir": "/tmp/y", "cache_bytes": 0},
        {"cache_dir": "/tmp/y", "cache_bytes": "1 GB"},
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
    ):
        with pytest.raises(UsageError):
            make()


def test_a_cache_is_an_object_or_two_names(ais_bucket: Any, ais_client: Any, tmp_path: Path) -> None:
    shard = Path(example_shards(counts=(3,))[0])
    ais_bucket.object("s.tar").get_writer().put_content(shard.read_bytes())
    for how in ({"cache": ObjectCache(str(tmp_path / "one"), 1 << 20)}, {"cache_dir": tmp_path / "two"}):
        pipe = AISFileLoader([f"ais://{ais_bucket.name}/s.tar"], cluster=ais_client, **how)
        assert len(list(pipe.group_samples())) == 3
    kept = [[file for file in (tmp_path / name).rglob("*") if file.is_file()] for name in ("one", "two")]
    assert all(any(file.stat().st_size == shard.stat().st_size for file in files) for files in kept)


def test_a_pipe_with_options_objects_pickles(tmp_path: Path) -> None:
    pipe = AISFileLoader(example_shards(), safety=Safety(max_ratio=5), cache=ObjectCache(str(tmp_path), 9))
    assert len(list(pickle.loads(pickle.dumps(pipe)))) == len(list(pipe))


@pytest.mark.parametrize(
    ("kind", "most"),
    [(AISFileLoader, 13), (ShardWriter, 13), (TarWriter, 13), (ais_loader, 12), (convert, 13)],
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


def test_the_single_names_are_those_of_0_1() -> None:
    assert LoadTarNames.__annotations__.keys() == {
        *("require_end", "max_sample_bytes", "max_ratio", "verify", "pin", "cache_dir", "cache_bytes"),
    }
