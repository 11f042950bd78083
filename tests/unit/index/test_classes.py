"""Names of the classes: where they come from, what keeps them, and labels that mean other classes."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import (
    AISSampleReader,
    AISSourceLister,
    Mixture,
    SampleDataset,
    SampleIndex,
    ais_loader,
    convert,
)
from torchdata_ais.errors import DecodeError, UsageError
from torchdata_ais.store import StoreOptions
from torchdata_ais.testing import example_shards, shard_bytes


def data_set(folder: Path, names: Any, count: int = 3) -> SampleIndex:
    folder.mkdir()
    shards = example_shards(str(folder), counts=(count, count))
    if names is not None:
        (folder / "classes.json").write_text(json.dumps(names))
    return SampleIndex.build(shards)


def test_classes_are_kept_by_what_makes_an_index_of_an_index(tmp_path: Path) -> None:
    index = data_set(tmp_path / "a", ["cat", "dog"])
    index.save(tmp_path / "a")
    opened = SampleIndex.open(tmp_path / "a")
    part, rest = opened.split(0.5)
    for one in (
        index,
        opened,
        opened.select([0, 1]),
        part,
        rest,
        opened[1:],
        opened.with_column("n", [1] * 6),
    ):
        assert one.classes == ("cat", "dog")
    assert pickle.loads(pickle.dumps(opened)).classes == ("cat", "dog")
    opened.select([0]).save(tmp_path / "elsewhere")
    elsewhere = SampleIndex.open(tmp_path / "elsewhere", shards_from=tmp_path / "a")
    assert elsewhere.classes == ("cat", "dog")
    with pytest.raises(AttributeError):
        opened.classes = ("x",)  # type: ignore[misc]


def test_without_a_file_there_are_none(tmp_path: Path) -> None:
    assert data_set(tmp_path / "a", None).classes is None


def test_several_fields_are_a_mapping(tmp_path: Path) -> None:
    named = {"cls": ["cat", "dog"], "colour.cls": ["red"]}
    index = data_set(tmp_path / "a", named)
    assert index.classes == {"cls": ("cat", "dog"), "colour.cls": ("red",)}
    assert data_set(tmp_path / "b", {"cls": ["cat"]}).classes == ("cat",)


@pytest.mark.parametrize(
    "content", ['"cat"', "[1]", '{"cls": "cat"}', '{"cls": [1]}', "no json", "[" * 100_000]
)
def test_a_file_that_is_no_list_of_names_is_an_error(tmp_path: Path, content: str) -> None:
    index = data_set(tmp_path / "a", [])
    (tmp_path / "a" / "classes.json").write_text(content)
    with pytest.raises(UsageError, match="no list of names"):
        _ = index.classes


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (
            ["cat", "dog"],
            ["dog", "cat"],
            r"'cls' mean other classes in index 1 \(0 dog, 1 cat\) than in index 0 \(0 cat, 1 dog\)",
        ),
        (["cat"], ["dog"], "mean other classes"),
        ({"kind.cls": ["a", "b"]}, {"kind.cls": ["a", "c"]}, "'kind.cls' mean other classes"),
    ],
)
def test_labels_that_mean_other_classes_are_not_mixed(
    tmp_path: Path, one: Any, other: Any, says: str
) -> None:
    first, second = data_set(tmp_path / "a", one), data_set(tmp_path / "b", other)
    with pytest.raises(UsageError, match=says):
        SampleIndex.concat([first, second])
    with pytest.raises(UsageError, match=says):
        Mixture({first: 1, second: 1})


@pytest.mark.parametrize(
    "other", [["cat", "dog"], ["cat"], ["cat", "dog", "owl"], None, {"colour.cls": ["red"]}]
)
def test_labels_that_agree_are_mixed(tmp_path: Path, other: Any) -> None:
    first, second = data_set(tmp_path / "a", ["cat", "dog"]), data_set(tmp_path / "b", other)
    longest = ("cat", "dog", "owl") if other == ["cat", "dog", "owl"] else ("cat", "dog")
    expected: Any = {"cls": longest, "colour.cls": ("red",)} if isinstance(other, dict) else longest
    assert SampleIndex.concat([first, second]).classes == expected
    assert Mixture({first: 1, second: 1}).classes == expected
    with ais_loader(AISSampleReader(Mixture({first: 1, second: 1})).batched(2)) as loader:
        assert loader.classes == expected


def test_shards_of_two_folders_in_one_index_are_compared(tmp_path: Path) -> None:
    data_set(tmp_path / "a", ["cat", "dog"])
    data_set(tmp_path / "b", ["dog", "cat"])
    shards = [str(path) for folder in "ab" for path in sorted((tmp_path / folder).glob("*.tar"))]
    with pytest.raises(
        UsageError, match=r"mean other classes in .*b/classes\.json .* than in .*a/classes\.json"
    ):
        _ = SampleIndex.build(shards).classes


def test_loaders_and_data_sets_pass_the_names_on(tmp_path: Path) -> None:
    index = data_set(tmp_path / "a", ["cat", "dog"])
    stream = AISSourceLister(f"{tmp_path}/a/*.tar")
    assert stream.read_classes() == ("cat", "dog")
    assert SampleDataset(index).classes == ("cat", "dog")
    for pipe in (AISSampleReader(index), stream.load_tar().group_samples()):
        with ais_loader(pipe.batched(2)) as loader:
            assert loader.classes == ("cat", "dog")
    with ais_loader(AISSourceLister(example_shards()).load_tar().group_samples().batched(2)) as loader:
        assert loader.classes is None


def test_a_join_brings_the_names_under_its_prefix(tmp_path: Path) -> None:
    first, second = data_set(tmp_path / "a", ["cat", "dog"]), data_set(tmp_path / "b", ["dog", "cat"])
    joined = first.join(second, prefix="other.")
    assert joined.classes == {"cls": ("cat", "dog"), "other.cls": ("dog", "cat")}
    assert joined.select([0]).classes == joined.classes


def test_classes_of_a_converted_folder(tmp_path: Path, ais_bucket: Any, ais_cluster: Any) -> None:
    for name in ("dog", "cat"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "a.txt").write_text(name)
        (tmp_path / "photos" / name / "a.jpg").write_bytes(b"\xff\xd8\xff" + name.encode())
    target = f"ais://{ais_bucket.name}/train-%03d.tar"
    convert(str(tmp_path / "photos"), target, cluster=ais_cluster, index=True)
    index = SampleIndex.open(f"ais://{ais_bucket.name}/train-", cluster=ais_cluster)
    assert index.classes == ("cat", "dog")
    samples = SampleDataset(index)
    assert {sample["txt"].decode() for sample in samples if index.classes[int(sample["cls"])] == "cat"} == {
        "cat"
    }


def test_a_cluster_that_cannot_be_asked_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "s.tar").write_bytes(shard_bytes({"a.cls": b"1"}))
    index = SampleIndex.build(str(tmp_path / "s.tar"))
    index._options = StoreOptions(endpoint="http://127.0.0.1:9")
    index.parts.stored[0].shard(0)
    row = index.parts.stored[0]._rows[0]
    index.parts.stored[0]._rows[0] = row._replace(name="ais://pets/s.tar")
    with caplog.at_level(logging.WARNING, "torchdata_ais"):
        assert index.classes is None
    assert "the names of the classes are not known" in caplog.text


def named(folder: Path, names: list[str]) -> SampleIndex:
    """Return an index of samples whose ``txt`` is the name of the class that ``cls`` means."""
    folder.mkdir()
    for shard in range(2):
        fields: dict[str, bytes] = {}
        for number in range(6):
            key, label = f"{folder.name}{shard}{number}", number % len(names)
            fields |= {f"{key}.cls": b"%d\n" % label, f"{key}.txt": names[label].encode()}
        (folder / f"{shard}.tar").write_bytes(shard_bytes(fields))
    (folder / "classes.json").write_text(json.dumps(names))
    return SampleIndex.build(sorted(map(str, folder.glob("*.tar"))))


def are_right(samples: Any, classes: Any) -> bool:
    found = [(classes[int(sample["cls"])], sample["txt"].decode()) for sample in samples]
    return bool(found) and all(name == text for name, text in found)


def test_a_union_maps_labels_by_the_names_of_their_classes(tmp_path: Path) -> None:
    one, two = named(tmp_path / "a", ["cat", "dog"]), named(tmp_path / "b", ["dog", "owl", "cat"])
    three = named(tmp_path / "c", ["cat", "dog", "owl"])
    union = ("cat", "dog", "owl")
    both = SampleIndex.concat([one, two, three], classes="union")
    assert both.classes == union
    assert are_right(SampleDataset(both), union)
    part, rest = both.split(0.5, seed=1)
    for index in (both.select(range(7, 30)), part, rest, SampleIndex.concat([part, rest], classes="union")):
        assert index.classes == union
        assert are_right(SampleDataset(index), union)
        assert are_right(SampleDataset(pickle.loads(pickle.dumps(index))), union)
    mixture = Mixture({one: 1, two: 2, three: 1}, stop="all", classes="union")
    assert mixture.classes == union
    for workers in (0, 2):
        pipe = AISSampleReader(mixture, shuffle="samples").decode().to_tuple("cls", "txt").batched(5)
        with ais_loader(pipe, num_workers=workers, seed=1) as loader:
            assert loader.classes == union
            assert all(
                union[label] == text
                for labels, texts in loader
                for label, text in zip(labels, texts, strict=True)
            )
    assert are_right(SampleDataset(one), ("cat", "dog"))  # the index itself is as it was
    assert Mixture({one: 1, three: 1}, classes="union").sources[0].digest == one.digest


def test_another_union_is_another_data_set(tmp_path: Path) -> None:
    one, two = named(tmp_path / "a", ["cat", "dog"]), named(tmp_path / "b", ["dog", "cat"])
    first, second = (
        SampleIndex.concat([one, two], classes="union"),
        SampleIndex.concat([two, one], classes="union"),
    )
    assert first.digest != second.digest
    with pytest.raises(UsageError, match="labels are mapped"):
        first.save(tmp_path / "x")


def test_a_union_needs_names_and_labels_that_have_one(tmp_path: Path) -> None:
    one, two = named(tmp_path / "a", ["cat", "dog"]), data_set(tmp_path / "b", None)
    with pytest.raises(UsageError, match="of an index without names of classes"):
        SampleIndex.concat([one, two], classes="union")
    with pytest.raises(UsageError, match="classes='both'"):
        Mixture({one: 1, two: 1}, classes="both")  # type: ignore[arg-type]
    three = named(tmp_path / "c", ["dog", "cat"])
    (tmp_path / "c" / "classes.json").write_text('["dog"]')
    index = SampleIndex.concat([one, SampleIndex.build(str(tmp_path / "c" / "0.tar"))], classes="union")
    with pytest.raises(DecodeError, match="The label b'1' of 'cls' has no name"):
        list(SampleDataset(index))
    assert three.classes == ("dog",)


def test_a_union_maps_the_labels_of_joined_indexes_too(tmp_path: Path) -> None:
    one, two = named(tmp_path / "a", ["cat", "dog"]), named(tmp_path / "b", ["dog", "owl", "cat"])
    fields: dict[str, bytes] = {}
    for key in one.keys:
        fields |= {f"{key}.cls": b"0", f"{key}.txt": b"owl"}
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "0.tar").write_bytes(shard_bytes(fields))
    (tmp_path / "c" / "classes.json").write_text('["owl", "cat"]')
    three = SampleIndex.build(str(tmp_path / "c" / "0.tar"))
    union = ("dog", "owl", "cat")
    other = SampleIndex.concat([two, three], classes="union")
    joined = one.join(other, missing="drop", prefix="other.")
    assert joined.classes == {"cls": ("cat", "dog"), "other.cls": union}
    mixed = Mixture({joined: 1, two: 1}, stop="all", classes="union")
    assert mixed.classes == {"cls": ("cat", "dog", "owl"), "other.cls": union}
    for samples in (SampleDataset(joined), SampleDataset(joined.select([0, 3])), AISSampleReader(mixed)):
        for sample in samples:
            names = joined.classes["cls"] if isinstance(samples, SampleDataset) else mixed.classes["cls"]
            assert names[int(sample["cls"])] == sample["txt"].decode()
            if "other.cls" in sample:
                assert (union[int(sample["other.cls"])], sample["other.txt"]) == ("owl", b"owl")
