"""Arguments of a wrong kind, wherever users pass some: one clear error of ours that names the argument."""

# ruff: noqa: E501 - a case a line

from __future__ import annotations

import io
import itertools
import os
import pickle
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from PIL import Image

import torchdata_ais as package
from torchdata_ais import (
    AISFileLoader,
    AISSourceLister,
    LocalCluster,
    Mixture,
    Normalize,
    ObjectCache,
    SampleDataset,
    SampleIndex,
    ShardWriter,
    TarWriter,
    ais_loader,
    contact_sheet,
    convert,
    explain,
    merge_states,
    state_dict,
)
from torchdata_ais._util.arguments import checked
from torchdata_ais.cli.checks import lint_shards
from torchdata_ais.errors import AISError, ArgumentError, SampleError, UsageError
from torchdata_ais.integrations import as_node
from torchdata_ais.observe.display import display_shard_images
from torchdata_ais.testing import shard_bytes, write_shard


class Named:
    functional_name = "named"

    @checked
    def __init__(
        self, count: int = 1, *rest: int, path: str | os.PathLike[str] = "", size: int | None = None
    ) -> None:
        self.count = count


@checked
def taking(
    text: str,
    number: float = 1.0,
    mode: Literal["a", "b"] = "a",
    function: Callable[[int], int] | None = None,
    values: Iterable[int] = (),
    names: Mapping[str, str] | None = None,
    flag: bool = False,
) -> str:
    return text.upper()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: taking(5), r"taking\(text=5\): this is a int. Pass text"),  # type: ignore[arg-type]
        (lambda: taking("a", "1"), r"number='1'.*a number"),  # type: ignore[arg-type]
        (lambda: taking("a", mode="c"), r'mode=\'c\'\)\. Pass "a" or "b"'),  # type: ignore[arg-type]
        (lambda: taking("a", function=5), r"function=5.*a function or None"),  # type: ignore[arg-type]
        (lambda: taking("a", values=3), r"values=3.*a list"),  # type: ignore[arg-type]
        (lambda: taking("a", names=["x"]), r"names=\['x'\].*a dict or None"),  # type: ignore[arg-type]
        (lambda: taking("a", flag="no"), r"flag='no'.*True or False"),  # type: ignore[arg-type]
        (lambda: taking(None), r"text=None.*Pass text"),  # type: ignore[arg-type]
        (lambda: Named("1"), r"named\(count='1'\).*a whole number"),  # type: ignore[arg-type]
        (lambda: Named(path=7), r"path=7.*text or a path"),  # type: ignore[arg-type]
        (lambda: Named(size="1"), r"size='1'.*a whole number or None"),  # type: ignore[arg-type]
    ],
)
def test_each_annotation_is_told_in_words(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says) as caught:
        call()
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), ArgumentError)


def test_what_is_as_good_is_taken() -> None:
    assert taking("a", 1, "b", len, np.arange(3), {"a": "b"}, np.True_) == "A"  # type: ignore[arg-type]
    assert taking("a", np.float32(1), names=None, flag=0) == "A"  # type: ignore[arg-type]
    assert Named(np.int64(3), 1, 2, path=Path("x"), size=None).count == 3  # type: ignore[arg-type]
    assert Named(None).count is None  # type: ignore[arg-type]  # as good as left out, where it works


def test_what_a_function_itself_raises_is_left_as_it_is() -> None:
    @checked
    def fails(text: str) -> None:
        raise KeyError(text)

    with pytest.raises(KeyError):
        fails("a")


class Ground:
    """Shards of small pictures, and their index."""

    def __init__(self, folder: Path) -> None:
        out = io.BytesIO()
        Image.new("RGB", (16, 16)).save(out, "JPEG")
        self.folder, self.file = folder / "in", str(folder / "a file")
        self.folder.mkdir()
        Path(self.file).write_text("no folder")
        members = [
            (f"k{n}.{field}", out.getvalue() if field == "jpg" else b"1")
            for n in range(4)
            for field in ("cls", "jpg")
        ]
        self.shard = write_shard(self.folder / "s-0.tar", members)
        self.index = SampleIndex.build(self.shard)

    @property
    def pipe(self) -> Any:
        return (
            AISFileLoader([self.shard]).group_samples().decode("torchrgb8").to_tuple("jpg", "cls").batched(2)
        )


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("kinds"))


def write(pattern: Any, **named: Any) -> None:
    with ShardWriter(pattern, **named) as writer:
        writer.write({"__key__": "a", "cls": 1})


def tar(to: Any) -> None:
    with TarWriter(to) as writer:
        writer.write({"__key__": "a", "cls": 1})


CALLS: dict[str, tuple[Callable[[Ground], Any], str]] = {
    "load_tar(5)": (lambda g: AISFileLoader(5), "int is no source"),
    "load_tar(cache=)": (lambda g: list(AISFileLoader([g.shard], cache="x")), "cache='x'.*ObjectCache"),
    "ObjectCache(5)": (lambda g: ObjectCache(5), "folder=5"),
    "list_ais(prefix=)": (lambda g: AISSourceLister("ais://b", cluster="http://h:1", prefix=5), "prefix=5"),
    "loader[0]": (lambda g: ais_loader(g.pipe)[0], "no batch 0.*next"),
    "ais_loader(on_stats=)": (lambda g: ais_loader(g.pipe, on_stats="x"), "on_stats='x'.*a function"),
    "ais_loader(run_dir=)": (lambda g: ais_loader(g.pipe, run_dir=g.file), "run_dir="),
    "loader.set_epoch": (lambda g: ais_loader(g.pipe).set_epoch("1"), "set_epoch.epoch='1'"),
    "loader.trace": (lambda g: ais_loader(g.pipe, trace=True).trace(5), "trace.path=5"),
    "loader.load_state_dict": (lambda g: ais_loader(g.pipe).load_state_dict({}, allow=5), "allow=5"),
    "state_dict(5)": (lambda g: state_dict(5), "int is no pipe and no loader"),
    "merge_states(5)": (lambda g: merge_states(5), "state"),
    "explain(pipe, num_workers=)": (lambda g: explain(g.pipe, num_workers="2"), "num_workers='2'"),
    "RandomMix(probs=)": (lambda g: package.RandomMix(g.pipe, g.pipe, probs=["a", 3]), "probs='a'"),
    "Normalize": (lambda g: Normalize(mean="abc"), "mean='abc'"),
    "Mixture(5)": (lambda g: Mixture(5), "mixture without weights"),
    "index.take(None)": (lambda g: g.index.take(None), "take.. was given None.*list of numbers"),
    "index.take(text)": (lambda g: g.index.take(["a"]), "take.. was given"),
    "index.select": (lambda g: g.index.select(lambda: 1), "calls <lambda>"),
    "index.join(where=file)": (lambda g: g.index.join(g.index, prefix="o.", where=g.file), "this is a file, and no folder"),
    "index.join(where=5)": (lambda g: g.index.join(g.index, prefix="o.", where=5), "where=5"),
    "index.save(file)": (lambda g: g.index.save(g.file), "this is a file"),
    "index.save(5)": (lambda g: g.index.save(5), "where=5"),
    "index.export": (lambda g: g.index.export("wids", 5), "where=5"),
    "index.kept_in(5)": (lambda g: g.index.kept_in(5), "folder=5"),
    "SampleIndex.open(index_dir=5)": (lambda g: SampleIndex.open(g.folder, index_dir=5), "index_dir=5"),
    "SampleDataset['a']": (lambda g: SampleDataset(g.index)["a"], "asked for 'a'"),
    "SampleDataset[None]": (lambda g: SampleDataset(g.index)[None], "asked for None"),
    "contact_sheet(size=)": (lambda g: contact_sheet([{"jpg": np.zeros((3, 9, 9))}], size="3"), "size='3'"),
    "display_shard_images(objects=)": (lambda g: display_shard_images("http://h:1", "b", "s", objects=-1), "objects=-1"),
    "lint(require=5)": (lambda g: lint_shards(g.shard, require=5), "require=5"),
    "as_node(5)": (lambda g: as_node(5), "as_node.loader=5|loader"),
    "convert(target=5)": (lambda g: convert(str(g.folder), 5), "target=5"),
    "convert(processes=)": (lambda g: convert(g.shard, "o-%d.tar", processes="2"), "processes='2'"),
    "convert(progress=)": (lambda g: convert(g.shard, "o-%d.tar", progress=lambda: 1), "convert.progress=. calls"),
    "convert(image_field=)": (lambda g: convert(g.shard, "o-%d.tar", image_field=5), "image_field=5"),
    "convert(image_field='cls')": (lambda g: convert(g.shard, "o-%d.tar", image_field="cls"), "read as integer"),
    "convert(resume=)": (lambda g: convert(g.shard, "o-%d.tar", resume="yes"), "resume='yes'"),
    "convert(manifest=5)": (lambda g: convert(g.shard, "o-%d.tar", manifest=5), "manifest=5"),
    "convert to no shard's name": (lambda g: convert(g.shard, "o-%d.tar.lz4"), "No reader would know.*end|End the pattern"),
    "convert to a file": (lambda g: convert(g.shard, f"{g.file}/x/o-%d.tar"), "this is a file, and no folder"),
    "ShardWriter(5)": (lambda g: write(5), "ShardWriter.pattern=5"),
    "ShardWriter(index=)": (lambda g: write("o-%d.tar", index=5), "index=5 says no place"),
    "ShardWriter(post=)": (lambda g: write("o-%d.tar", post=lambda: 1), "ShardWriter.post=. calls"),
    "ShardWriter(opener=)": (lambda g: write("o-%d.tar", opener=5), "ShardWriter.opener="),
    "ShardWriter(user=)": (lambda g: write("o-%d.tar", user=5), "user=5"),
    "ShardWriter(manifest=folder)": (lambda g: write("o-%d.tar", manifest=str(g.folder)), "This is a folder"),
    "ShardWriter(manifest=nowhere/)": (lambda g: write("o-%d.tar", manifest="no/m.json"), "no folder"),
    "ShardWriter(manifest=other)": (lambda g: write("o-%d.tar", manifest=g.file), "no manifest"),
    "TarWriter(folder)": (lambda g: tar(g.folder), "This is a folder"),
    "TarWriter(file/x)": (lambda g: tar(f"{g.file}/x.tar"), "a file, and no folder"),
    "LocalCluster(targets=)": (lambda g: LocalCluster(targets="2"), "targets='2'"),
    "LocalCluster(root=5)": (lambda g: LocalCluster(root=5), "root=5"),
    "shard_bytes": (lambda g: shard_bytes(["a"]), "no member of a shard"),
    "write_shard(folder)": (lambda g: write_shard(g.folder, {}), "This is a folder"),
    "object_url(name=5)": (lambda g: package.object_url("http://h:1", "b", 5), "not 5"),
    "expand_object_urls": (lambda g: package.expand_object_urls("http://h:1", "b", None), "None is no template"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_each_names_its_argument(
    name: str, ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, says = CALLS[name]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AISError) as caught:
        call(ground)
    assert re.search(says, caught.value.sentences), caught.value.sentences
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing is made"
    assert Path(ground.file).read_text() == "no folder"


def test_a_conversion_that_writes_nothing_is_an_error(tmp_path: Path, ground: Ground) -> None:
    def bad(sample: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("bad value")

    out = tmp_path / "out"
    for named, says in (
        ({"map": bad, "on_error": "skip"}, "4 by SampleError, the first: Map failed on the sample 'k0'"),
        ({"map": bad, "on_error": "skip", "part": "1/1"}, "4 by SampleError"),
        ({"select": lambda sample: False}, "all 4 samples were left out|All 4 samples"),
    ):
        with pytest.raises((SampleError, UsageError), match=says):
            convert(ground.shard, f"{out}/a-%d.tar", manifest=str(tmp_path / "m.json"), **named)
        assert not out.exists()
        assert not (tmp_path / "m.json").exists()
    empty = write_shard(tmp_path / "empty.tar", {})
    with pytest.raises(AISError, match="The source has no sample"):
        convert(empty, f"{out}/a-%d.tar")
    done = convert(ground.shard, f"{out}/a-%d.tar", part="1/2")
    assert done.samples == 0, "a part of a small source may have none"


def test_iterating_stays_what_it_was(ground: Ground) -> None:
    with ais_loader(ground.pipe) as loader:
        assert len(list(itertools.islice(loader, 1))) == 1
    with pytest.raises(TypeError, match="next"):
        _ = loader["a"]
