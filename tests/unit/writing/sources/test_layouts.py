"""`convert`: the layouts that people have, parts and splits of them, and what is wrong with them."""

from __future__ import annotations

import json
import logging
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.shards import lay, picture
from typer.testing import CliRunner

from torchdata_ais import AISFileLoader
from torchdata_ais.cli import app
from torchdata_ais.cli.checks import lint_shards
from torchdata_ais.errors import (
    AISError,
    DecodeError,
    DuplicateFieldError,
    EncodeError,
    MissingFieldError,
    NotFoundError,
    SampleError,
    StateError,
    UsageError,
)
from torchdata_ais.store import StoreOptions, list_objects
from torchdata_ais.testing import example_shards, write_shard
from torchdata_ais.writing import convert


def read(done: Any) -> list[dict[str, Any]]:
    samples: Any = AISFileLoader([shard.name for shard in done.shards]).group_samples()
    return [{name: value for name, value in one.items() if name != "__url__"} for one in samples]


def keys(done: Any) -> list[str]:
    return [sample["__key__"] for sample in read(done)]


def left_out(done: Any) -> dict[str, tuple[int, str]]:
    return {reason: (count, first) for reason, count, first in done.left_out}


def run(*words: object) -> Any:
    return CliRunner().invoke(app, ["convert", *map(str, words)])


# --- folders -----------------------------------------------------------------------------------------


def test_pictures_of_several_kinds_have_one_field_and_lint_finds_them_sound(tmp_path: Path) -> None:
    names = ["cat/a.jpg", "cat/b.JPEG", "dog/c.png", "dog/d.jpeg"]
    root = lay(tmp_path / "in", {name: picture(form="PNG" if "png" in name else "JPEG") for name in names})
    done = convert(root, f"{tmp_path}/out/s-%d.tar")
    assert [sorted(sample) for sample in read(done)] == [["__key__", "cls", "jpg"]] * 4
    report = lint_shards(f"{tmp_path}/out/s-0.tar", cluster=StoreOptions())
    assert (report.ok, list(report.problems())) == (True, [])
    own = convert(root, f"{tmp_path}/own/s-%d.tar", image_field="ending")
    assert [sorted(sample)[2] for sample in read(own)] == ["jpg", "jpg", "png", "jpg"]
    other = convert(root, f"{tmp_path}/other/s-%d.tar", image_field="image.jpg")
    assert {sorted(sample)[2] for sample in read(other)} == {"image.jpg"}


def test_what_stands_beside_a_picture_is_of_its_sample(tmp_path: Path) -> None:
    root = lay(
        tmp_path / "in",
        {
            "a.jpg": picture(1), "a.txt": "größe", "a.json": '{"n": 1}', "b.webp": picture(2, "WEBP"), "b.txt": "two",
            "c.txt": "no picture", "notes.md": "x", ".DS_Store": "x", "README": "x",
        },
    )  # fmt: skip
    done = convert(root, f"{tmp_path}/out/s-%d.tar")
    assert read(done) == [
        {"__key__": "a", "jpg": picture(1), "json": b'{"n": 1}', "txt": "größe".encode()},
        {"__key__": "b", "jpg": picture(2, "WEBP"), "txt": b"two"},
    ]
    assert left_out(done) == {
        "hidden by its name": (1, ".DS_Store"),
        "no picture, sound or video by its name": (2, "README"),
        "no picture, sound or video of this name beside it": (1, "c.txt"),
    }


def test_a_folder_of_img2dataset_has_no_classes(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {"00000_stats.json": "{}", "00000.parquet": "x"}
    for number in range(3):
        stem = f"0000{number // 2}/00000000{number}"
        files |= {
            f"{stem}.jpg": picture(number),
            f"{stem}.txt": f"c{number}",
            f"{stem}.json": '{"width": NaN}',
        }
    done = convert(lay(tmp_path / "in", files), f"{tmp_path}/out/s-%d.tar")
    assert keys(done) == ["00000/000000000", "00000/000000001", "00001/000000002"]
    assert sorted(read(done)[0]) == ["__key__", "jpg", "json", "txt"]
    assert left_out(done) == {"img2dataset's own notes": (2, "00000.parquet")}
    assert done.classes is None


def test_hugging_faces_folder_is_read_by_its_table(tmp_path: Path) -> None:
    files = {"train/a.png": picture(1, "PNG"), "train/b.jpg": picture(2), "train/c.jpg": picture(3)}
    rows = '{"file_name": "a.png", "text": "an a"}\n{"file_name": "b.jpg"}'
    root = lay(tmp_path / "in", {**files, "train/metadata.jsonl": rows})
    done = convert(root / "train", f"{tmp_path}/out/s-%d.tar")
    assert read(done) == [
        {"__key__": "000000000", "jpg": picture(1, "PNG"), "text": b"an a"},
        {"__key__": "000000001", "jpg": picture(2)},
    ]
    assert left_out(done) == {"no row of metadata.jsonl names it": (1, "c.jpg")}
    with pytest.raises(UsageError, match=r"data sets of their own. Convert each by itself, such as .*/train"):
        convert(root, f"{tmp_path}/x/s-%d.tar")


def test_sounds_are_samples_like_pictures(tmp_path: Path) -> None:
    root = lay(
        tmp_path / "in", {"yes/a.wav": b"RIFF", "no/b.flac": b"fLaC", "no/b.txt": "no", "no/c.jpg": picture()}
    )
    calls: list[Any] = []
    done = convert(root, f"{tmp_path}/out/s-%d.tar", kind="audio", progress=lambda *call: calls.append(call))
    assert [(s["__key__"], s["cls"]) for s in read(done)] == [("no/b", b"0"), ("yes/a", b"1")]
    assert calls[-1] == (2, 2, "sound")
    assert left_out(done) == {"no sound by its name": (1, "no/c.jpg")}


@pytest.mark.parametrize(
    ("files", "error", "says"),
    [
        ({"train/cat/a.jpg": b"x", "val/cat/a.jpg": b"x"}, UsageError, "train, val are splits of a data set"),
        ({"a/x.jpg": b""}, SampleError, "The file a/x.jpg is empty"),
        ({"x.jpg": b"x", "x.txt": b"caf\xe9"}, EncodeError, "x.txt is not UTF-8: byte 3 is 0xe9"),
        ({"a/x.jpg": b"x", "a/x.jpeg": b"x"}, DuplicateFieldError, "x.jpeg and a/x.jpg would be the same field 'jpg'"),
        ({"x.jpg": b"x", "d/y.jpg": b"x"}, UsageError, "The file x.jpg stands beside folders"),
        ({"notes.md": b"x"}, NotFoundError, "no picture, sound or video; its files end in md"),
        ({}, NotFoundError, "no such shard or folder"),
        ({"x.jpg": b"x", "x.txt": "caf\xe9".encode("utf-16")}, EncodeError, "iconv -f utf-16 -t utf-8"),
        ({"a/x\ny.jpg": b"x"}, UsageError, "'a/x.ny.jpg' has a line break.* Rename the file"),
        ({"a/x.jpg": b"x", "s-0.tar": b"x"}, UsageError, "holds shards .s-0.tar. and pictures or sound .a/x.jpg"),
    ],
)  # fmt: skip
def test_folders_that_cannot_be_meant_make_nothing(
    tmp_path: Path, files: Any, error: type[AISError], says: str
) -> None:
    with pytest.raises(error, match=says):
        convert(lay(tmp_path / "in", files), f"{tmp_path}/out/deep/s-%d.tar")
    assert not (tmp_path / "out").exists()


def test_links_in_a_circle_are_named(tmp_path: Path) -> None:
    root = lay(tmp_path / "in", {"a/x.jpg": picture()})
    (root / "a" / "again").symlink_to(root)
    (root / "a" / "gone.jpg").symlink_to(root / "nothing")
    done = convert(root, f"{tmp_path}/out/s-%d.tar")
    assert keys(done) == ["a/x"]
    assert left_out(done)["a link to nothing"] == (1, "a/gone.jpg")
    assert left_out(done)["a link to a folder that it is in"][0] == 1


def test_broken_pictures_are_found_and_counted_by_check(tmp_path: Path) -> None:
    root = lay(tmp_path / "in", {"a.jpg": picture(), "b.jpg": picture()[:300], "c.jpg": b"no picture"})
    assert len(keys(convert(root, f"{tmp_path}/all/s-%d.tar"))) == 3
    with pytest.raises(DecodeError, match="'b'") as caught:
        convert(root, f"{tmp_path}/x/s-%d.tar", check=True)
    assert str(root / "b.jpg") in (caught.value.url or "")
    for processes in (1, 2):
        done = convert(
            root, f"{tmp_path}/good{processes}/s-%d.tar", check=True, on_error="skip", processes=processes
        )
        assert (keys(done), done.skipped) == (["a"], {"DecodeError": 2})
        (given_up,) = done.left_out
        assert (given_up.reason, given_up.number) == ("DecodeError", 2)
        assert "'b'" in given_up.first


# --- tables ------------------------------------------------------------------------------------------


def parquet(
    path: Path, columns: dict[str, Any], metadata: dict[str, Any] | None = None, **named: Any
) -> Path:
    made = pa.table(columns)
    if metadata is not None:
        made = made.replace_schema_metadata({"huggingface": json.dumps(metadata)})
    pq.write_table(made, path, **named)
    return path


def test_a_parquet_table_of_paths_captions_and_labels(tmp_path: Path) -> None:
    lay(tmp_path, {f"img/{n}.jpg": picture(n) for n in range(4)})
    path = parquet(tmp_path / "t.parquet", {
        "path": [f"img/{n}.jpg" for n in range(4)], "caption": ["a", "b", None, "d"],
        "label": ["dog", "cat", "dog", "dog"],
        "when": pa.array([0] * 4, pa.timestamp("s")),
    }, row_group_size=3)  # fmt: skip
    columns = {"path": "jpg", "caption": "txt", "label": "cls"}
    done = convert(path, f"{tmp_path}/out/s-%d.tar", columns=columns)
    assert [(int(s["cls"]), s.get("txt"), s["jpg"] == picture(n)) for n, s in enumerate(read(done))] == [
        (1, b"a", True), (0, b"b", True), (1, None, True), (1, b"d", True),
    ]  # fmt: skip
    assert json.loads(read(done)[0]["json"]) == {"when": "1970-01-01T00:00:00"}
    assert json.loads(Path(done.classes or "").read_text()) == ["cat", "dog"]
    shuffled = convert(path, f"{tmp_path}/mixed/s-%d.tar", columns=columns, shuffle=True, seed=5)
    assert sorted(map(str, read(shuffled))) == sorted(map(str, read(done)))
    assert keys(shuffled) != keys(done)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_an_empty_caption_is_a_text_and_a_null_is_none(tmp_path: Path, kind: str) -> None:
    lay(tmp_path, {"a.jpg": picture()})
    rows = {"jpg": ["a.jpg"] * 3, "caption": ["", None, "b"], "owner": ["", "x", None], "label": [1, None, 2]}
    path = tmp_path / f"t.{kind}"
    if kind == "parquet":
        parquet(path, rows)
    else:
        path.write_text("".join(json.dumps({name: rows[name][n] for name in rows}) + "\n" for n in range(3)))
    done = convert(path, f"{tmp_path}/out/s-%d.tar", columns={"caption": "txt", "label": "cls"})
    assert [(s.get("txt"), s.get("json"), s.get("cls")) for s in read(done)] == [
        (b"", b'{"owner": ""}', b"1"), (None, b'{"owner": "x"}', None), (b"b", None, b"2"),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv"])
def test_labels_that_pandas_made_floats_are_whole_numbers(tmp_path: Path, kind: str) -> None:
    lay(tmp_path, {"a.jpg": picture()})
    path, labels = tmp_path / f"t.{kind}", [10.0, 2.0, None, 0.0]
    if kind == "parquet":
        parquet(path, {"jpg": ["a.jpg"] * 5, "label": [*labels, float("nan")]})
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"jpg": "a.jpg", "label": one}) + "\n" for one in labels))
    else:
        path.write_text("jpg,label\n" + "".join(f"a.jpg,{'' if one is None else one}\n" for one in labels))
    done = convert(path, f"{tmp_path}/out/s-%d.tar", columns={"label": "cls"})
    assert [s.get("cls") for s in read(done)][:4] == [b"10", b"2", None, b"0"]
    assert done.classes is None


def test_an_id_with_an_underscore_is_a_word(tmp_path: Path) -> None:
    lay(tmp_path, {"a.jpg": picture()})
    (tmp_path / "t.csv").write_text("jpg,label\na.jpg,1_0\na.jpg,10\n")
    done = convert(tmp_path / "t.csv", f"{tmp_path}/out/s-%d.tar", columns={"label": "cls"})
    assert json.loads(Path(done.classes or "").read_text()) == ["10", "1_0"]
    (tmp_path / "u.csv").write_text("jpg,label\na.jpg,1_0\n")
    with pytest.raises(EncodeError, match="no whole number"):
        convert(tmp_path / "u.csv", f"{tmp_path}/no/s-%d.tar", columns={"label": "id"})


def test_hugging_faces_parquet_brings_pictures_and_names_of_classes(tmp_path: Path) -> None:
    images = [{"bytes": picture(n), "path": f"{n}.jpg"} for n in range(3)]
    label = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    lay(tmp_path / "data", {})
    (tmp_path / "data").mkdir()
    for number in range(2):
        parquet(tmp_path / f"data/{number}.parquet", {"image": images, "label": [0, 1, 1]}, label)
    done = convert(tmp_path / "data", f"{tmp_path}/out/s-%d.tar", columns={"label": "cls"})
    assert [(s["__key__"], s["cls"]) for s in read(done)][2:4] == [("000000002", b"1"), ("000000003", b"0")]
    assert {tuple(sorted(sample)) for sample in read(done)} == {("__key__", "cls", "jpg")}
    assert done.notes == {"classes": ["cat", "dog"]}


def test_rows_may_name_urls_and_hold_bytes(tmp_path: Path, ais_cluster: Any, ais_bucket: Any) -> None:
    ais_bucket.object("a.jpg").get_writer().put_content(picture(1))
    url = f"{ais_cluster.endpoint}/v1/objects/{ais_bucket.name}/a.jpg?provider=ais"
    path = parquet(
        tmp_path / "t.parquet",
        {"jpg": [url, f"ais://{ais_bucket.name}/a.jpg"], "seg.png": [picture(2, "PNG")] * 2},
    )
    done = convert(
        path, f"{tmp_path}/out/s-%d.tar", cluster=ais_cluster.endpoint, root=f"ais://{ais_bucket.name}"
    )
    assert [(s["jpg"], s["seg.png"]) for s in read(done)] == [(picture(1), picture(2, "PNG"))] * 2


@pytest.mark.parametrize(
    ("name", "columns", "options", "error", "says"),
    [
        ("t.csv", {"path": ["a.jpg"], "caption": ["x"], "label": ["cat"]}, {}, UsageError,
         "column 'path' holds pictures or sound.*\"path\": \"jpg\", \"caption\": \"txt\", \"label\": \"cls\""),
        ("t.parquet", {"img": [picture()]}, {}, UsageError, "column 'img' holds pictures"),
        ("t.parquet", {"jpg": ["a.jpg", "no.jpg", "nor.jpg"]}, {}, MissingFieldError,
         "Row 2, column 'jpg': no such file; 2 of 3 are missing"),
        ("t.csv", b"jpg,seg.png,txt\na.jpg,,one mask less\n,,x\n", {}, MissingFieldError,
         "Row 2 names no file: jpg, seg.png is empty.*by on_error"),
        ("t.parquet", {"jpg": [1, 2]}, {}, EncodeError, "Row 1, column 'jpg' holds a int"),
        ("t.parquet", {"jpg": [b""]}, {}, SampleError, "Row 1, column 'jpg'|no field"),
        ("t.parquet", {"data": [b"xx"], "txt": ["a"]}, {}, EncodeError, "'data' holds bytes, and its name"),
        ("t.parquet", {"txt": ["a"]}, {"columns": {"txtt": "x"}}, UsageError,
         "no row has a column 'txtt'. Did you mean txt"),
        ("t.parquet", {"path": ["a.jpg"] * 3000, "cls": [f"c {n}" for n in range(3000)]}, {"columns": {"path": "jpg"}},
         UsageError, "'cls' has 3000 different values: hardly classes"),
        ("t.parquet", {"key": ["a", "a"], "txt": ["x", "y"]}, {}, DuplicateFieldError, "key 'a' already"),
        ("t.parquet", b"PAR1 and no more", {}, UsageError, "cannot be read: .*whole Parquet file"),
        ("t.csv", b"path,txt\na.jpg,caf\xe9\n", {}, UsageError, "line 2 is not UTF-8"),
        ("t.csv", b"path,path\n", {}, UsageError, "same name 'path'"),
        ("t.csv", "path,txt\n".encode("utf-16"), {}, UsageError, "iconv -f utf-16 -t utf-8"),
        ("t.csv", b'jpg,txt\na.jpg,"a\nb"\na.jpg,"open\na.jpg,x\n', {}, UsageError, "begins in line 4: .*quote"),
        ("t.csv", b"jpg,txt\na.jpg," + b"x" * 200_000, {}, UsageError, "line 2: .*as .jsonl or .parquet"),
        ("t.parquet", {"width": [7], "meta": [{"width": 9}]}, {"columns": {"meta": "json"}}, EncodeError,
         "Both the column 'meta' and the table have width for the field json.*\"meta.json\""),
        ("t.parquet", {"width": [7], "tags": [["a"]]}, {"columns": {"tags": "json"}}, EncodeError,
         "column 'tags' is no object, so that width cannot stand in json.*\"tags.json\""),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_meant_are_told_by_row_and_column(
    tmp_path: Path, name: str, columns: Any, options: Any, error: type[AISError], says: str
) -> None:
    lay(tmp_path, {"a.jpg": picture()})
    if isinstance(columns, bytes):
        (tmp_path / name).write_bytes(columns)
    elif name.endswith("csv"):
        lines = [columns, *zip(*columns.values(), strict=True)]
        (tmp_path / name).write_text("\n".join(",".join(line) for line in lines))
    else:
        parquet(tmp_path / name, columns)
    with pytest.raises(error, match=f"(?i){says}"):
        convert(tmp_path / name, f"{tmp_path}/out/s-%d.tar", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("mark", [";", "\t"])
def test_a_csv_of_a_spreadsheet_has_semicolons_or_tabs(tmp_path: Path, mark: str) -> None:
    lay(tmp_path, {"a.jpg": picture(), "t.csv": f"jpg{mark}txt{mark}cls\r\na.jpg{mark}one, two{mark}cat\r\n"})
    (sample,) = read(convert(tmp_path / "t.csv", f"{tmp_path}/out/s-%d.tar"))
    assert (sample["jpg"], sample["txt"], sample["cls"]) == (picture(), b"one, two", b"0")


def test_entries_of_an_object_stand_beside_other_columns(tmp_path: Path) -> None:
    parquet(tmp_path / "t.parquet", {"txt": ["a"], "width": [7], "meta": [{"height": 9}]})
    (sample,) = read(convert(tmp_path / "t.parquet", f"{tmp_path}/out/s-%d.tar", columns={"meta": "json"}))
    assert json.loads(sample["json"]) == {"width": 7, "height": 9}


@pytest.mark.parametrize(("kind", "count"), [("images", 1), ("shards", 3)])
def test_a_folder_of_shards_and_pictures_is_what_kind_says(tmp_path: Path, kind: Any, count: int) -> None:
    root = lay(tmp_path / "in", {"a/x.jpg": picture()})
    write_shard(str(root / "s-0.tar"), [(f"{n}.txt", b"x") for n in range(3)])
    assert len(keys(convert(root, f"{tmp_path}/out/s-%d.tar", kind=kind))) == count


# --- parts and splits --------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return lay(tmp_path / "tree", {f"{'ab'[n % 2]}/{n:02d}.jpg": picture(n) for n in range(23)})


@pytest.mark.parametrize("shuffle", [False, True])
def test_parts_are_the_whole_once_under_names_that_do_not_meet(
    tmp_path: Path, tree: Path, shuffle: bool
) -> None:
    whole = convert(tree, f"{tmp_path}/whole/s-%d.tar", shuffle=shuffle, seed=3)
    found: list[str] = []
    names: list[str] = []
    for part in (3, 1, 5, 2, 4):
        done = convert(
            tree, f"{tmp_path}/out/s-%03d.tar", part=f"{part}/5", maxcount=2, shuffle=shuffle, seed=3
        )
        assert {int(shard.name[-7:-4]) % 5 for shard in done.shards} == {part - 1}
        found += keys(done)
        names += [shard.name for shard in done.shards]
    assert sorted(found) == sorted(keys(whole))
    assert len(set(names)) == len(names) == len(list((tmp_path / "out").glob("*.tar")))
    with pytest.raises(UsageError, match="shards of this pattern already"):
        convert(tree, f"{tmp_path}/out/s-%03d.tar", part="2/5", maxcount=2)


def test_a_part_is_resumed_by_its_own_manifest(tmp_path: Path, tree: Path) -> None:
    class StopError(Exception):
        pass

    def stop(done: int, total: int, unit: str) -> None:
        if done == 9:
            raise StopError

    options: dict[str, Any] = {"maxcount": 2, "manifest": f"{tmp_path}/m.json", "part": "2/2"}
    whole = convert(tree, f"{tmp_path}/whole/s-%d.tar", **{**options, "manifest": None})
    with pytest.raises(StopError):
        convert(tree, f"{tmp_path}/out/s-%d.tar", progress=stop, **options)
    assert (tmp_path / "m-2-of-2.json").exists()
    done = convert(tree, f"{tmp_path}/out/s-%d.tar", resume=True, **options)
    assert [shard.checksum for shard in done.shards] == [shard.checksum for shard in whole.shards]
    assert [Path(shard.name).name for shard in done.shards] == [
        Path(shard.name).name for shard in whole.shards
    ]
    (tmp_path / "m-2-of-3.json").write_bytes((tmp_path / "m-2-of-2.json").read_bytes())
    with pytest.raises(StateError, match="shard_step"):
        convert(tree, f"{tmp_path}/out/s-%d.tar", resume=True, **{**options, "part": "2/3"})


def test_parts_of_shards_are_whole_shards(tmp_path: Path) -> None:
    shards = example_shards(tmp_path, counts=[3, 2, 4])
    found = [keys(convert(shards, f"{tmp_path}/out/s-%d.tar", part=f"{part}/2")) for part in (1, 2)]
    assert [len(part) for part in found] == [3, 6]
    assert len({key for part in found for key in part}) == 9


def test_numbered_keys_of_parts_do_not_meet(tmp_path: Path, tree: Path) -> None:
    found = [
        keys(convert(tree, f"{tmp_path}/out/s-%d.tar", part=f"{part}/2", keys="number")) for part in (1, 2)
    ]
    assert len({*found[0], *found[1]}) == 23


def test_a_split_is_drawn_by_the_seed_and_is_the_whole(tmp_path: Path, tree: Path) -> None:
    target = f"{tmp_path}/out/{{split}}-%d.tar"
    done = convert(tree, target, split="0.8/0.2", seed=1)
    assert done.splits == {"train": 18, "val": 5}
    assert len(set(keys(done))) == done.samples == 23
    again = convert(tree, f"{tmp_path}/again/{{split}}-%d.tar", split="0.8/0.2", seed=1)
    assert [shard.checksum for shard in again.shards] == [shard.checksum for shard in done.shards]
    other = convert(tree, f"{tmp_path}/other/{{split}}-%d.tar", split="a=0.5/b=0.5", seed=2)
    assert other.splits == {"a": 12, "b": 11}
    parts = [
        convert(tree, f"{tmp_path}/p/{{split}}-%d.tar", split="0.8/0.2", seed=1, part=f"{k}/2")
        for k in (1, 2)
    ]
    assert sum(part.splits["val"] for part in parts) == 5


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"part": "0/3"}, "part='0/3' is no part"),
        ({"part": "4/3"}, "the parts of 3|is no part"),
        ({"part": "3"}, "is no part"),
        ({"split": "0.9/0.2"}, "fractions that make 1"),
        ({"split": "0.9"}, "fractions that make 1"),
        ({"split": "a=0.5/a=0.5"}, "does not name each"),
        ({"split": "0.9/0.1"}, "needs a place in the names"),
        ({"part": "1/2", "index": True}, "of all parts"),
        ({"image_field": "a/b"}, "no name of a field"),
        ({"seed": "7"}, "seed='7'.*a whole number"),
        ({"maxcount": 0}, "allow no sample"),
        ({"resume": True}, "manifest="),
    ],
)
def test_arguments_are_looked_at_before_anything_is_made(
    tmp_path: Path, tree: Path, options: Any, says: str, ais_client: Any, ais_cluster: Any
) -> None:
    with pytest.raises(UsageError, match=says):
        convert(tree, f"{tmp_path}/out/s-%d.tar", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words",
    [["--split", "0.9/0.1"], ["--part", "9/3"], ["--maxsize", "0"], ["--resume"], ["--kind", "table"],
     ["--column", "a=b"], ["--part", "1/2", "--index"]],
)  # fmt: skip
def test_a_command_that_is_refused_makes_no_bucket(
    tmp_path: Path, tree: Path, words: list[str], ais_client: Any, ais_cluster: Any
) -> None:
    result = run(tree, "ais://test-none/s-%d.tar", *words, "--endpoint", ais_cluster.endpoint)
    assert result.exit_code in (1, 2), result.output
    assert "Traceback" not in result.output
    assert "test-none" not in [bucket.name for bucket in ais_client.cluster().list_buckets()]


# --- classes -----------------------------------------------------------------------------------------


def test_a_later_series_beside_the_shards_has_the_same_numbers(tmp_path: Path) -> None:
    train = lay(tmp_path / "train", {f"{name}/a.jpg": picture() for name in ("cat", "dog", "owl")})
    val = lay(tmp_path / "val", {f"{name}/a.jpg": picture() for name in ("dog", "owl")})
    convert(train, f"{tmp_path}/out/train-%d.tar")
    done = convert(val, f"{tmp_path}/out/val-%d.tar")
    assert [(s["__key__"], s["cls"]) for s in read(done)] == [("dog/a", b"1"), ("owl/a", b"2")]
    assert done.notes["classes"] == ["cat", "dog", "owl"]
    more = lay(tmp_path / "more", {"cat/a.jpg": picture(), "elk/a.jpg": picture()})
    with pytest.raises(UsageError, match=r"does not have 'elk'.*folder or prefix of its own"):
        convert(more, f"{tmp_path}/out/more-%d.tar")
    assert not list((tmp_path / "out").glob("more-*"))


def test_names_of_classes_go_with_shards_that_are_cut_anew(tmp_path: Path) -> None:
    root = lay(tmp_path / "in", {f"{name}/a.jpg": picture() for name in ("cat", "dog")})
    convert(root, f"{tmp_path}/a/s-%d.tar")
    done = convert(f"{tmp_path}/a", f"{tmp_path}/b/s-%d.tar")
    assert json.loads((tmp_path / "b/classes.json").read_text()) == ["cat", "dog"]
    assert done.classes == f"{tmp_path}/b/classes.json"


def test_the_names_in_a_bucket_are_no_shard(tmp_path: Path, ais_cluster: Any, ais_bucket: Any) -> None:
    root = lay(tmp_path / "in", {f"{name}/a.jpg": picture() for name in ("cat", "dog")})
    name = f"ais://{ais_bucket.name}"
    done = convert(root, f"{name}/s-%d.tar", cluster=ais_cluster.endpoint)
    assert done.classes == f"{name}/classes.json"
    assert json.loads(ais_bucket.object("classes.json").get_reader().read_all()) == ["cat", "dog"]
    options = StoreOptions(endpoint=ais_cluster.endpoint)
    assert [url.rpartition("/")[2] for url in list_objects(name, options=options)] == ["s-0.tar?provider=ais"]
    assert len(list_objects(name, options=options, beside=True)) == 2
    assert len(list_objects(f"{name}/classes.json", options=options)) == 1


def test_what_was_left_out_is_told_by_the_command_and_by_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = lay(tmp_path / "in", {"cat/a.jpg": picture(), "dog/b.jpg": b"", "notes.md": "x"})
    result = run(root, f"{tmp_path}/s-%d.tar", "--on-error", "skip")
    assert result.exit_code == 0, result.output
    assert "2 classes: cat 0, dog 1; noted in" in result.stdout
    assert "note: 1 left out (no picture, sound or video by its name): notes.md" in result.stderr
    assert "note: 1 left out (SampleError): The file dog/b.jpg is empty" in result.stderr
    with caplog.at_level(logging.WARNING, "torchdata_ais"):
        convert(root, f"{tmp_path}/t-%d.tar", on_error="skip")
    assert "such as notes.md" in caplog.text


def test_one_sample_of_a_table_that_fails_is_skipped_with_its_row(tmp_path: Path) -> None:
    lay(tmp_path, {"a.jpg": picture(), "t.csv": "jpg,txt\na.jpg,x\nno.jpg,y\n"})
    done = convert(tmp_path / "t.csv", f"{tmp_path}/out/s-%d.tar", on_error="skip")
    assert done.skipped == {"MissingFieldError": 1}
    assert "Row 2, column 'jpg'" in done.left_out[0].first


def test_shards_beside_no_classes_have_none(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "in.tar", {"a.txt": b"x"})
    assert convert(shard, f"{tmp_path}/out/s-%d.tar").classes is None


# --- a full disk -------------------------------------------------------------------------------------


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_disk_that_is_full_is_named_and_nothing_is_left(
    tmp_path: Path, ais_cluster: Any, ais_client: Any, is_local: bool
) -> None:
    root = lay(tmp_path / "in", {f"{n}.jpg": picture(n) + bytes(2_000_000) for n in range(3)})
    target = f"{tmp_path}/out/s-%d.tar" if is_local else "ais://test-full/s-%d.tar"
    with files_of_at_most(3_000_000):
        result = run(root, target, "--endpoint", ais_cluster.endpoint)
    assert result.exit_code == 1
    assert re.search(r"(out/\.s-0\.tar\.part|tmp).*File too large", result.stderr), result.output
    assert not (tmp_path / "out").exists()
    assert "test-full" not in [bucket.name for bucket in ais_client.cluster().list_buckets()]
