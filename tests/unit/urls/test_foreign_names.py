"""Names from data are checked before they become a path, a URL or an object name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.forged_index import forge_index
from helpers.hostile_names import HOSTILE

from torchdata_ais import AISSampleReader, AISSourceLister, SampleDataset, SampleIndex
from torchdata_ais.cli._objects import Found, target_names
from torchdata_ais.errors import AISError, SampleIndexError, StateError, UsageError
from torchdata_ais.index import IndexWriter, LocalFolder, RemoteFolder, ShardEntry, ShardSamples, StoredIndex
from torchdata_ais.integrations.hugging_face import _state_in
from torchdata_ais.observe.diagnosis.flight_record import read_flight
from torchdata_ais.observe.diagnosis.run_folder import read_run
from torchdata_ais.store import StoreOptions, list_objects
from torchdata_ais.testing import example_shards, write_shard
from torchdata_ais.urls import (
    ObjectURL,
    ShardPlaces,
    folder_file_fault,
    index_file_fault,
    object_fault,
    path_fault,
)
from torchdata_ais.writing import ShardWriter


def test_the_hostile_names_are_many() -> None:
    assert len(set(HOSTILE)) >= 60


@pytest.mark.parametrize("name", HOSTILE)
def test_promise_8_no_function_takes_a_hostile_name(name: str, tmp_path: Path) -> None:
    assert index_file_fault(name)
    for places in (
        ["ais://pets/train-"],
        ["http://h:1/"],
        [tmp_path],
        ["ais://pets/train-", "http://h:1/", tmp_path],
    ):
        assert ShardPlaces.of(places).fault(name), places
    if "://" not in name:
        assert path_fault(tmp_path, name if name.startswith("/") else f"{tmp_path}/../{name}" if name else "")
    if "/" in name or name in ("", ".", "..") or "\0" in name:
        assert folder_file_fault(name)
    if {".", ".."} & set(name.split("/")) or "\0" in name or "\n" in name:
        assert object_fault(name)


@pytest.mark.parametrize("name", [None, 5, b"x", ["x"]])
def test_a_name_of_another_type_is_refused(name: object, tmp_path: Path) -> None:
    assert index_file_fault(name)
    assert folder_file_fault(name)
    assert ShardPlaces.of([tmp_path]).fault(name)


def test_good_names_pass(tmp_path: Path) -> None:
    assert not index_file_fault("samples-0123456789abcdef-00ff00ff.arrow", "samples")
    assert index_file_fault("samples-0123456789abcdef-00ff00ff.arrow", "counts")
    assert index_file_fault("samples-0123456789abcdef-0.arrow\n")
    (tmp_path / "a").mkdir()
    places = ShardPlaces.of([tmp_path, "ais://pets/a/{0..3}.tar", "s3://b", "http://me:pw@H:1/data"])
    for name in (
        f"{tmp_path}/x.tar", f"{tmp_path}/a/../x.tar", f"file://{tmp_path}/x.tar", "ais://pets/a/7 b%2F?#.tar",
        "s3://b/x.tar", "http://h:1/data/x.tar?sig=***", "http://***@h:1/data/x.tar",
    ):  # fmt: skip
        assert places.fault(name) == "", name
    for name in (
        "ais://pets/b.tar",
        "http://h:1/other/x.tar",
        "http://h:12/data/x",
        "s3://b2/x.tar",
        f"{tmp_path}2/x",
    ):
        assert places.fault(name), name


def test_links_pipes_and_devices_are_refused_without_waiting(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "s.tar").write_bytes(b"private")
    (inside / "good.tar").write_bytes(b"x")
    os.mkfifo(inside / "fifo.tar")
    (inside / "link.tar").symlink_to(outside / "s.tar")
    (inside / "folder").symlink_to(outside)
    (inside / "loop.tar").symlink_to(inside / "loop.tar")
    (inside / "near.tar").symlink_to(inside / "good.tar")
    places = ShardPlaces.of([inside])
    found = {
        name: places.fault(f"{inside}/{name}") for name in ("fifo.tar", "link.tar", "folder/s.tar", "folder")
    }
    assert all(found.values()), found
    assert not places.fault(f"{inside}/good.tar")
    assert not places.fault(f"{inside}/near.tar")
    assert ShardPlaces.of([outside]).fault("/dev/zero")
    assert ShardPlaces.of(["/"]).fault("/dev/zero") == "it is not a regular file"


@pytest.mark.parametrize(
    "name", [name for name in HOSTILE if "/" in name or name in ("", ".", "..") or "\0" in name]
)
def test_promise_8_folders_refuse_names_that_lead_elsewhere(name: str, tmp_path: Path) -> None:
    remote = RemoteFolder("ais://b/i", StoreOptions(endpoint="http://127.0.0.1:9"))
    for folder in (LocalFolder(tmp_path / "index"), remote):
        for call in (folder.read, folder.has, folder.remove, lambda name, to=folder: to.write(name, b"x")):
            with pytest.raises(UsageError, match="no file of an index can be called"):
                call(name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", ["parts", "counts", "fields", "before"])
def test_promise_8_a_head_with_hostile_names_touches_no_file(field: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    SampleIndex.build(example_shards(data, counts=(3, 2))).save(data / ".index")
    victim = tmp_path / "thesis.txt"
    names = [
        *HOSTILE,
        str(victim),
        "../../thesis.txt",
        "shards.arrow",
        "samples-0123456789abcdef-0.arrow.bak",
    ]
    shutil.copytree(data / ".index", tmp_path / "good")
    for name in names:
        victim.write_text("ten years")
        shutil.rmtree(data / ".index")
        shutil.copytree(tmp_path / "good", data / ".index")
        forge_index(data / ".index", head={field: name})
        with pytest.raises(SampleIndexError, match=r"its head (names|is)|head is not readable"):
            StoredIndex(LocalFolder(data / ".index"))
        with pytest.raises(SampleIndexError):
            SampleIndex.open(data, index_dir=tmp_path / "kept")
    SampleIndex.build(str(data), where=data / ".index")  # over the last of them
    assert victim.read_text() == "ten years"
    assert len(SampleIndex.open(data)) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "good", "thesis.txt"]


@pytest.mark.parametrize("name", [name for name in HOSTILE if "\ud800" not in name])
def test_promise_8_an_index_names_no_shard_elsewhere(name: str, tmp_path: Path) -> None:
    place = tmp_path / "index"
    one = ShardSamples(["k"], [0], [1024], [("txt",)], [(1,)], None)
    writer = IndexWriter(LocalFolder(place))
    for shard in (f"{place}/a.tar", name, f"{place}/b.tar"):
        writer.add(ShardEntry(shard), one)
    writer.finish()
    with pytest.raises(SampleIndexError, match=r"names .* as a shard: "):
        SampleIndex.open(place)


@pytest.mark.ci
def test_all_names_of_a_large_index_are_compared_page_by_page(tmp_path: Path) -> None:
    count = 3 * 4096
    writer = IndexWriter(LocalFolder(tmp_path))
    one = ShardSamples(["k"], [0], [1024], [("txt",)], [(1,)], None)
    for number in range(count):
        name = (
            "/etc/passwd"
            if number == 2 * 4096 + 7
            else f"{tmp_path}/a-folder-with-a-long-name/s-{number:09d}.tar"
        )
        writer.add(ShardEntry(name), one)
    writer.finish()
    index = SampleIndex.open(tmp_path)
    assert index[4096].key == "k"
    with pytest.raises(SampleIndexError, match="names '/etc/passwd' as a shard"):
        index.take([2 * 4096])  # another shard of that page
    with pytest.raises(SampleIndexError, match="/etc/passwd"):
        list(index.shards)


def test_shards_from_allows_further_places(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    shards = example_shards(tmp_path / "data", counts=(3, 2))
    SampleIndex.build(shards).save(tmp_path / "index")
    with pytest.raises(SampleIndexError, match="shards_from="):
        SampleIndex.open(tmp_path / "index")
    for places in (
        tmp_path / "data",
        str(tmp_path),
        shards,
        [tmp_path / "data"],
        f"{tmp_path}/data/shard-*.tar",
    ):
        assert len(SampleIndex.open(tmp_path / "index", shards_from=places)) == 5
    for places in (tmp_path / "dat", shards[:1], "ais://pets/", []):
        with pytest.raises(SampleIndexError):
            SampleIndex.open(tmp_path / "index", shards_from=places)
    for places in (5, "-", [5]):
        with pytest.raises(UsageError):
            SampleIndex.open(tmp_path / "index", shards_from=places)  # type: ignore[arg-type]


def test_shards_from_is_taken_wherever_an_index_is_opened_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "more").mkdir()
    shards = [
        *example_shards(tmp_path / "data", counts=(3,)),
        *example_shards(tmp_path / "more", counts=(2,)),
    ]
    SampleIndex.build(shards).save(tmp_path / "data")
    place, more = str(tmp_path / "data"), tmp_path / "more"
    openers: list[Callable[..., Any]] = [
        lambda **how: list(AISSampleReader(place, **how)),
        lambda **how: list(AISSampleReader([place], **how)),
        lambda **how: list(AISSourceLister(place).read_samples(**how)),
        lambda **how: SampleDataset(place, **how),
        lambda **how: SampleDataset(Path(place), **how),
    ]
    for opener in openers:
        with pytest.raises(SampleIndexError, match="shards_from="):
            opener()
        assert len(opener(shards_from=more)) == 5
    index = SampleIndex.open(place, shards_from=more)
    for call in (AISSampleReader, SampleDataset):
        with pytest.raises(UsageError, match="an index that is open"):
            call(index, shards_from=more)


def test_a_pipe_in_the_place_of_an_index_file_is_not_waited_for(tmp_path: Path) -> None:
    SampleIndex.build(example_shards(tmp_path, counts=(3,))).save(tmp_path)
    stored = next(tmp_path.glob("samples-*.arrow"))
    stored.unlink()
    os.mkfifo(stored)
    with pytest.raises(AISError, match="not a regular file"):
        list(SampleIndex.open(tmp_path))
    stored.unlink()
    stored.symlink_to(tmp_path / "shards.arrow")
    with pytest.raises(AISError, match="it is a link"):
        list(SampleIndex.open(tmp_path))


def test_a_shard_that_became_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (shard,) = example_shards(tmp_path, counts=(3,))
    index = SampleIndex.build(shard)
    Path(shard).unlink()
    os.mkfifo(shard)
    with pytest.raises(AISError, match="not a regular file"):
        SampleDataset(index)[0]


@pytest.mark.parametrize("name", HOSTILE)
def test_promise_8_indexes_of_other_tools_name_no_shard_elsewhere(name: str, tmp_path: Path) -> None:
    (tmp_path / ".nv-meta").mkdir()
    for file, content in (
        (tmp_path / ".nv-meta/.info.json", {"shard_counts": {name: 1}}),
        (tmp_path / "s.json", {"wids_version": 1, "shardlist": [{"url": name, "nsamples": 1}]}),
        (
            tmp_path / "b.json",
            {"wids_version": 1, "base": name, "shardlist": [{"url": "../../x", "nsamples": 1}]},
        ),
    ):
        file.write_text(json.dumps(content))
        # A name such as "..\\x" is that of a file in the folder, which is missing.
        with pytest.raises(SampleIndexError, match=r"names .* as a shard: |it is not there|is not there"):
            SampleIndex.open(file)


@pytest.mark.parametrize("name", [*HOSTILE, "s-001.tar", None, 5])
def test_promise_8_a_manifest_names_shards_of_its_series(name: object, tmp_path: Path) -> None:
    pattern, manifest = f"{tmp_path}/s-%03d.tar", f"{tmp_path}/s.json"
    with ShardWriter(pattern, manifest=manifest) as writer:
        writer.write({"__key__": "a", "txt": "x"})
    content = json.loads(Path(manifest).read_text())
    content["shards"][0]["name"] = name
    Path(manifest).write_text(json.dumps(content))
    with pytest.raises(StateError, match=r"The manifest names .* as shard 0"):
        ShardWriter(pattern, manifest=manifest, resume=True)


@pytest.mark.parametrize("name", [name for name in HOSTILE if {"", ".", ".."} & set(name.split("/"))])
def test_promise_8_objects_are_copied_to_no_other_folder(name: str) -> None:
    with pytest.raises(UsageError, match="no name that is safe"):
        target_names([Found(ObjectURL("ais://b/x"), name)], True, "out/")


@pytest.mark.parametrize("whole", ["../../x", "/x", "", "0" * 15, "0" * 17, "G" * 16])
def test_promise_8_digests_of_a_head_lead_nowhere(whole: str, tmp_path: Path) -> None:
    SampleIndex.build(example_shards(tmp_path, counts=(3,))).save(tmp_path)
    forge_index(tmp_path, head={"digest": whole})
    with pytest.raises(SampleIndexError, match="16 hexadecimal digits"):
        SampleIndex.open(tmp_path)


def test_files_of_ranks_are_not_waited_for(tmp_path: Path) -> None:
    for name in ("rank-00000.json", "loader-0.json", "flight-0.json"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "rank-00001.json").symlink_to("/dev/zero")
    assert [note.partition(" ")[0] for note in read_run(tmp_path)[1]] == [
        "rank-00000.json",
        "rank-00001.json",
    ]
    with pytest.raises(UsageError, match="not a regular file"):
        read_flight(tmp_path / "flight-0.json")
    with pytest.raises(StateError, match="not a regular file"):
        _state_in(tmp_path)


def test_a_pipe_in_a_folder_of_shards_is_not_waited_for(tmp_path: Path) -> None:
    example_shards(tmp_path, counts=(3,))
    os.mkfifo(tmp_path / "shard-001.tar")
    for source in (tmp_path, f"{tmp_path}/*.tar"):
        with pytest.raises(UsageError, match="not a regular file"):
            list_objects(source, options=StoreOptions())


def test_a_forged_index_in_the_place_of_a_new_one_is_made_again(tmp_path: Path) -> None:
    place = tmp_path / ".index"
    SampleIndex.build(example_shards(tmp_path, counts=(3, 2)), where=place)
    forge_index(place, rows=lambda table: [row.update(start=-1) for row in table])
    assert len(list(SampleIndex.build(str(tmp_path), where=place))) == 5


def test_an_export_writes_no_file_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "b").mkdir()
    shards = [f"{tmp_path}/data/a/s.tar", f"{tmp_path}/data/a/../b/s.tar"]
    for shard in shards:
        write_shard(shard, [("k.txt", b"x")])
    index = SampleIndex.build(shards)
    with pytest.raises(UsageError, match="would be written outside"):
        index.export("energon", tmp_path / "out")
    assert not list(tmp_path.glob("b"))
