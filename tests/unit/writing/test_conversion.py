"""`convert`: from folders of images, tables and shards, in any number of processes, with the same result."""

from __future__ import annotations

import io
import json
import logging
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from torchdata_ais import AISFileLoader
from torchdata_ais._util.process_pool import OrderedPool
from torchdata_ais.cli import app
from torchdata_ais.codecs import Decoder
from torchdata_ais.errors import (
    DecodeError,
    DuplicateFieldError,
    MissingFieldError,
    NonAdjacentKeyError,
    NotFoundError,
    SampleError,
    StateError,
    TruncatedShardError,
    UsageError,
    WorkerDiedError,
)
from torchdata_ais.testing import example_shards, shard_bytes, write_shard
from torchdata_ais.writing import convert

ALL = [f"{number:05d}" for number in range(6)]  # the keys of example_shards()


def read(done):
    names = [shard.name for shard in done.shards]
    return [
        {key: value for key, value in sample.items() if key != "__url__"}
        for sample in AISFileLoader(names).group_samples()
    ]


def keys(done):
    return [sample["__key__"] for sample in read(done)]


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).glob("*.tar*"))}


def image(color, size=(8, 6), form="PNG"):
    stream = io.BytesIO()
    Image.new("RGB", size, (color, 100, 200)).save(stream, form)
    return stream.getvalue()


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    for index in range(9):
        folder = root / ("cat", "dog", "owl")[index % 3]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index}.png").write_bytes(image(index))
    return root


# --- folders of images -------------------------------------------------------------------------------


def test_a_folder_of_images_becomes_samples_with_class_numbers(tree, tmp_path):
    done = convert(tree, f"{tmp_path}/out/s-%d.tar", maxcount=4)
    samples = read(done)
    assert [s["__key__"] for s in samples] == [
        f"{c}/{i}" for k, c in enumerate(["cat", "dog", "owl"]) for i in (k, k + 3, k + 6)
    ]
    assert [int(s["cls"]) for s in samples] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert all(s["png"] == (tree / f"{s['__key__']}.png").read_bytes() for s in samples)
    assert [shard.samples for shard in done.shards] == [4, 4, 1]
    assert done.notes == {"classes": ["cat", "dog", "owl"]}


def test_images_without_classes_have_no_cls_and_other_files_are_reported(tmp_path, caplog):
    (tmp_path / "in" / ".cache").mkdir(parents=True)
    (tmp_path / "in" / "a.v1.JPG").write_bytes(b"1")
    (tmp_path / "in" / "notes.txt").write_bytes(b"2")
    (tmp_path / "in" / ".cache" / "x.jpg").write_bytes(b"3")
    with caplog.at_level(logging.WARNING, "torchdata_ais"):
        done = convert(tmp_path / "in", f"{tmp_path}/s-%d.tar")
    assert read(done) == [{"__key__": "a_v1", "jpg": b"1"}]
    assert "1 left out (no picture, sound or video of this name beside it), such as notes.txt" in caplog.text
    assert [(one.number, one.first) for one in done.left_out] == [(1, ".cache"), (1, "notes.txt")]


@pytest.mark.parametrize(
    ("files", "error", "says"),
    [
        (["cat/a.jpg", "b.jpg"], UsageError, "stands beside folders of classes"),
        (["cat/a.jpg", "cat/a.png"], DuplicateFieldError, "cat/a.jpg and cat/a.png would be the same field"),
        (["cat/a.b.jpg", "cat/a_b.jpg"], DuplicateFieldError, "same key"),
        (["cat/a.txt"], NotFoundError, "no picture, sound or video; its files end in txt"),
    ],
)
def test_folders_that_make_no_data_set_are_errors(tmp_path, files, error, says):
    for name in files:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(b"x")
    with pytest.raises(error, match=says):
        convert(tmp_path / "in", f"{tmp_path}/s-%d.tar")


def test_shuffling_is_by_seed_and_loses_nothing(tree, tmp_path):
    orders = [
        keys(convert(tree, f"{tmp_path}/{n}/s-%d.tar", shuffle=True, seed=seed))
        for n, seed in enumerate([1, 1, 2])
    ]
    assert orders[0] == orders[1] != orders[2]
    assert (
        sorted(orders[0])
        == sorted(orders[2])
        == keys(convert(tree, f"{tmp_path}/plain/s-%d.tar"))
        != orders[0]
    )


# --- tables ------------------------------------------------------------------------------------------


def test_rows_name_files_and_hold_values(tmp_path):
    (tmp_path / "img").mkdir()
    (tmp_path / "img" / "a.png").write_bytes(b"A")
    (tmp_path / "m.bin").write_bytes(b"M")
    (tmp_path / "t.jsonl").write_text(
        '{"key": "x", "file_name": "img/a.png", "cls": 3, "caption": "cat", "tags": ["a"]}\n\n'
        '{"file_name": "img/a.png", "seg.png": "img/a.png", "json": {"k": 1}, "mask": null, "more": 2}\n'
    )
    assert read(convert(tmp_path / "t.jsonl", f"{tmp_path}/s-%d.tar", columns={"mask": "npy"})) == [
        {"__key__": "x", "cls": b"3", "json": b'{"caption": "cat", "tags": ["a"]}', "png": b"A"},
        {"__key__": "000000001", "json": b'{"more": 2, "k": 1}', "png": b"A", "seg.png": b"A"},
    ]


@pytest.mark.parametrize(("name", "comma"), [("t.csv", ","), ("t.tsv", "\t")])
def test_csv_columns_can_be_renamed_and_files_can_be_elsewhere(tmp_path, name, comma):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.jpeg").write_bytes(b"A")
    rows = [["path", "label", "text"], ["a.jpeg", "3", '"two\nlines"'], ["a.jpeg", "4", ""]]
    (tmp_path / name).write_text("\ufeff" + "\n".join(comma.join(row) for row in rows), encoding="utf-8")
    done = convert(
        tmp_path / name,
        f"{tmp_path}/s-%d.tar",
        columns={"path": "jpg", "label": "cls"},
        root=tmp_path / "elsewhere",
    )
    assert read(done) == [
        {"__key__": "000000000", "cls": b"3", "jpg": b"A", "text": b"two\nlines"},
        {"__key__": "000000001", "cls": b"4", "jpg": b"A"},
    ]


@pytest.mark.parametrize(
    ("name", "text", "error", "says"),
    [
        ("t.csv", "jpg,cls\nno.jpg,1\n", MissingFieldError, "Row 1, column 'jpg'.*no such file"),
        ("t.csv", "txt,cls\na\n", UsageError, "Line 2 has 1 cells for 2 columns"),
        ("t.csv", "txt,txt\na,b\n", UsageError, "Two columns have the same name"),
        ("t.csv", "txt\n", NotFoundError, "(?i)no row"),
        ("t.csv", b"txt\n\xff\n", UsageError, "cannot be parsed"),
        ("t.jsonl", '{"txt": "a"}\n{"txt"\n', UsageError, "line 2"),
        ("t.jsonl", "[1]\n", UsageError, "line 1 is no JSON object"),
        ("t.jsonl", '{"key": "a.b", "txt": "x"}\n', UsageError, "a dot in its last part"),
        ("t.jsonl", '{"file_name": "noending"}\n', SampleError, "column 'file_name': no such file"),
        ("no.csv", None, NotFoundError, "no such file"),
    ],
)
def test_tables_that_make_no_samples_are_errors(tmp_path, name, text, error, says):
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(error, match=says):
        convert(tmp_path / name, f"{tmp_path}/s-%d.tar")


def test_columns_that_are_not_there_are_named(tmp_path):
    (tmp_path / "t.csv").write_text("txt\na\n")
    with pytest.raises(UsageError, match="No row has a column 'path'"):
        convert(tmp_path / "t.csv", f"{tmp_path}/s-%d.tar", columns={"path": "jpg"})
    (tmp_path / "t.csv").write_text("txt,label\na,b\n")
    with pytest.raises(UsageError, match="two columns for 'txt'"):
        convert(tmp_path / "t.csv", f"{tmp_path}/s-%d.tar", columns={"label": "txt"})


def test_a_table_and_its_files_can_be_in_a_bucket(ais_cluster, ais_bucket, tmp_path):
    ais_bucket.object("d/a.jpg").get_writer().put_content(b"A")
    ais_bucket.object("d/t.csv").get_writer().put_content(b"jpg,cls\na.jpg,7\n")
    done = convert(f"ais://{ais_bucket.name}/d/t.csv", f"{tmp_path}/s-%d.tar", cluster=ais_cluster.endpoint)
    assert read(done) == [{"__key__": "000000000", "cls": b"7", "jpg": b"A"}]


# --- shards ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("maxcount", [1, 4, 100])
def test_shards_are_cut_anew_and_every_sample_is_there_once(tmp_path, maxcount):
    done = convert(example_shards(tmp_path), f"{tmp_path}/out/s-%d.tar.gz", maxcount=maxcount)
    assert read(done) == [{"__key__": key, "cls": b"%d" % n, "txt": b"x" * n} for n, key in enumerate(ALL)]
    assert len(done.shards) == -(-6 // maxcount)


def test_samples_are_selected_mapped_and_their_fields_chosen(tmp_path):
    done = convert(
        example_shards(tmp_path),
        f"{tmp_path}/out/s-%d.tar",
        select=lambda sample: sample["cls"] != b"0",
        decode="pil",
        map=lambda sample: (
            None if sample["cls"] == 3 else {"cls": sample["cls"] * 10, "txt": "", "json": [1]}
        ),
        fields="cls json",
    )
    assert [(s["__key__"], s["cls"]) for s in read(done)] == [
        (key, b"%d" % (10 * n)) for n, key in enumerate(ALL) if n not in (0, 3)
    ]
    assert (done.dropped, done.samples) == (2, 4)
    assert set(read(done)[0]) == {"__key__", "cls", "json"}


def test_images_are_encoded_anew(tmp_path):
    shard = write_shard(tmp_path / "in.tar", {"a.jpg": image(3, (64, 48), "JPEG"), "a.cls": b"007"})
    done = convert(
        shard, f"{tmp_path}/s-%d.tar", decode=Decoder("pil", size=16, partial=True, post=[]), quality=80
    )
    (sample,) = read(done)
    assert Image.open(io.BytesIO(sample["jpg"])).size == (16, 16)
    assert sample["cls"] == b"007"


def test_keys_that_repeat_need_new_ones(tmp_path):
    shards = [write_shard(tmp_path / f"{n}.tar", {"a.cls": b"%d" % n, "b.cls": b"9"}) for n in range(2)]
    with pytest.raises(DuplicateFieldError, match="key 'a' already"):
        convert(shards, f"{tmp_path}/x/s-%d.tar")
    done = convert(shards, f"{tmp_path}/y/s-%d.tar", keys="number")
    assert [(s["__key__"], s["cls"]) for s in read(done)] == [
        ("000000000", b"0"), ("000000001", b"9"), ("000000002", b"1"), ("000000003", b"9"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (shard_bytes({"a.cls": b"1", "b.cls": b"2"})[:1100], TruncatedShardError),
        (shard_bytes([("a.cls", b"1"), ("b.cls", b"2"), ("a.txt", b"3")]), NonAdjacentKeyError),
        (shard_bytes([("a.cls", b"1"), ("a.CLS", b"2")]), DuplicateFieldError),
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_source_that_is_not_sound_stops_the_conversion_whatever_may_be_skipped(
    tmp_path, data, error, on_error
):
    (tmp_path / "in.tar").write_bytes(data)
    with pytest.raises(error):
        convert(tmp_path / "in.tar", f"{tmp_path}/out/s-%d.tar", on_error=on_error)
    assert content(tmp_path / "out") == {}


def test_from_bucket_to_bucket(ais_cluster, ais_bucket, tmp_path):
    for path in example_shards(tmp_path):
        ais_bucket.object(f"in/{Path(path).name}").get_writer().put_file(path)
    name = f"ais://{ais_bucket.name}"
    done = convert(f"{name}/in/", f"{name}/out/s-%03d.tar", maxcount=4, cluster=ais_cluster.endpoint)
    pipe = AISFileLoader([shard.name for shard in done.shards], cluster=ais_cluster.endpoint)
    assert [sample["__key__"] for sample in pipe.group_samples()] == ALL
    with pytest.raises(UsageError, match=r"such as out/s-000\.tar"):
        convert(f"{name}/in/", f"{name}/out/s-%03d.tar", cluster=ais_cluster.endpoint)


@pytest.mark.parametrize("source", ["folder", "list", "braces", "pattern"])
def test_shards_are_named_in_every_way(tmp_path, source):
    paths = example_shards(tmp_path)
    sources = {
        "folder": tmp_path,
        "list": paths,
        "braces": f"{tmp_path}/shard-{{000..002}}.tar",
        "pattern": f"{tmp_path}/shard-*.tar",
    }
    assert keys(convert(sources[source], f"{tmp_path}/out/s-%d.tar")) == ALL


# --- processes ---------------------------------------------------------------------------------------


def augment(sample, rng):
    if sample["__key__"].endswith("7"):
        return None
    return {**sample, "json": {"r": rng.random()}, "txt": "y" * rng.randrange(2000)}


@pytest.mark.parametrize("limit", [{"maxcount": 30}, {"maxsize": 40960}])
def test_the_shards_are_the_same_for_any_number_of_processes(tmp_path, limit):
    shards = example_shards(tmp_path, counts=[70, 1, 129])
    results = []
    for processes in (1, 2, 3):
        out = tmp_path / f"out{processes}"
        done = convert(
            shards, f"{out}/s-%03d.tar", decode="pil", map=augment, rng=True, processes=processes, **limit
        )
        assert (done.samples, done.dropped) == (180, 20)
        results.append(content(out))
    assert results[0] == results[1] == results[2]
    assert len(results[0]) > 3
    assert multiprocessing.active_children() == []


@pytest.mark.ci
def test_spawned_processes_give_the_same_too(tree, tmp_path):
    convert(tree, f"{tmp_path}/a/s-%d.tar", processes=1)
    convert(tree, f"{tmp_path}/b/s-%d.tar", processes=2, start_method="spawn")
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_functions_that_cannot_be_sent_are_named(tree, tmp_path):
    with pytest.raises(UsageError, match="start_method='fork'"):
        convert(tree, f"{tmp_path}/s-%d.tar", map=lambda sample: sample, processes=2, start_method="spawn")
    assert multiprocessing.active_children() == []


def bad_at_00003(sample):
    if sample["__key__"] == "00003":
        raise ValueError("a bad day")
    return sample


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_of_a_function_names_the_sample_and_may_be_skipped(tmp_path, processes, caplog):
    shards = example_shards(tmp_path)
    with pytest.raises(
        SampleError, match="Map failed on the sample '00003': ValueError: a bad day"
    ) as caught:
        convert(shards, f"{tmp_path}/x/s-%d.tar", map=bad_at_00003, processes=processes, maxcount=2)
    assert caught.value.key == "00003"
    assert list(content(tmp_path / "x")) == ["s-0.tar"]
    with caplog.at_level(logging.WARNING, "torchdata_ais"):
        done = convert(
            shards, f"{tmp_path}/y/s-%d.tar", map=bad_at_00003, processes=processes, on_error="warn"
        )
    assert keys(done) == [key for key in ALL if key != "00003"]
    assert done.skipped == {"SampleError": 1}
    assert "a bad day" in caplog.text


def test_warn_names_each_sample_that_is_left_out_and_skip_the_first(tmp_path, caplog):
    bad = [f"{number:03}" for number in range(5)]
    shard = write_shard(tmp_path / "in.tar", {f"{key}.json": b"{" for key in bad} | {"x.json": b"1"})
    caplog.set_level(logging.INFO, "torchdata_ais")
    for on_error, named in (("warn", bad), ("skip", bad[:1])):
        caplog.clear()
        convert(shard, f"{tmp_path}/{on_error}/s-%d.tar", decode="pil", on_error=on_error)
        said = [record.getMessage() for record in caplog.records if "skips after" in record.getMessage()]
        assert [next(key for key in bad if f"'{key}'" in text) for text in said] == named


def test_a_field_that_cannot_be_decoded_is_an_error_or_skipped(tmp_path):
    shard = write_shard(tmp_path / "in.tar", {"a.json": b"{", "b.json": b"[1]"})
    with pytest.raises(DecodeError):
        convert(shard, f"{tmp_path}/x/s-%d.tar", decode="pil")
    done = convert(shard, f"{tmp_path}/y/s-%d.tar", decode="pil", on_error="skip")
    assert (keys(done), done.skipped) == (["b"], {"DecodeError": 1})


def not_skippable(sample):
    return undefined_name  # noqa: F821


@pytest.mark.parametrize("processes", [1, 2])
def test_a_broken_program_is_never_skipped(tmp_path, processes):
    with pytest.raises(NameError, match="undefined_name"):
        convert(
            example_shards(tmp_path),
            f"{tmp_path}/x/s-%d.tar",
            map=not_skippable,
            on_error="skip",
            processes=processes,
        )


def die(sample):
    if sample["__key__"] == "00004":
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def test_a_killed_process_is_an_error_at_once_and_leaves_no_other(tmp_path):
    with pytest.raises(WorkerDiedError, match="exit code -9"):
        convert(example_shards(tmp_path), f"{tmp_path}/x/s-%d.tar", map=die, processes=2)
    assert multiprocessing.active_children() == []
    assert content(tmp_path / "x") == {}


def test_the_pool_keeps_the_order_and_moves_more_than_pipes_hold():
    big = [bytes([n]) * 3_000_000 for n in range(12)]
    with OrderedPool(lambda data: data[::-1] + b"!", 3) as pool:
        assert list(pool.map(big)) == [data + b"!" for data in big]
    assert multiprocessing.active_children() == []


def test_a_result_that_cannot_be_sent_is_an_error():
    with OrderedPool(lambda number: lambda: number, 1, "fork") as pool:
        with pytest.raises(UsageError, match="cannot be sent"):
            list(pool.map([1]))


# --- resume ------------------------------------------------------------------------------------------


class StopError(Exception):
    pass


def stopping_after(count):
    """Return a progress function that fails after so many items."""
    calls = iter(range(count))

    def progress(done, total, unit):
        if next(calls, None) is None:
            raise StopError

    return progress


@pytest.mark.quick(4)
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("after", [0, 5, 17, 60, 99])
def test_a_resumed_conversion_reads_and_writes_only_what_is_missing(tmp_path, after, processes):
    shards = example_shards(tmp_path, counts=[30, 3, 67])
    options = {"decode": "pil", "map": augment, "rng": True, "maxcount": 7, "processes": processes}
    whole = convert(shards, f"{tmp_path}/whole/s-%03d.tar", **options)
    options["manifest"] = f"{tmp_path}/m.json"
    with pytest.raises(StopError):
        convert(shards, f"{tmp_path}/parts/s-%03d.tar", progress=stopping_after(after), **options)
    finished = {path.name: path.stat().st_ino for path in (tmp_path / "parts").glob("*.tar")}
    items = []
    done = convert(
        shards,
        f"{tmp_path}/parts/s-%03d.tar",
        resume=True,
        progress=lambda *_: items.append(1),
        **options,
    )
    assert content(tmp_path / "parts") == content(tmp_path / "whole")
    assert finished.items() <= {p.name: p.stat().st_ino for p in (tmp_path / "parts").glob("*.tar")}.items()
    assert len(items) <= 100 - 7 * len(finished)
    assert (done.samples, done.dropped) == (whole.samples, whole.dropped) == (90, 10)


def test_resume_of_a_numbered_and_shuffled_folder(tree, tmp_path):
    options = {"shuffle": True, "seed": 3, "keys": "number", "maxcount": 2}
    convert(tree, f"{tmp_path}/whole/s-%d.tar", **options)
    options["manifest"] = f"{tmp_path}/m.json"
    with pytest.raises(StopError):
        convert(tree, f"{tmp_path}/parts/s-%d.tar", progress=stopping_after(6), **options)
    convert(tree, f"{tmp_path}/parts/s-%d.tar", resume=True, **options)
    assert content(tmp_path / "parts") == content(tmp_path / "whole")
    with pytest.raises(StateError, match="Another seed"):
        convert(tree, f"{tmp_path}/parts/s-%d.tar", resume=True, **{**options, "seed": 4})
    (tree / "cat" / "new.png").write_bytes(b"x")
    with pytest.raises(StateError, match="Another source"):
        convert(tree, f"{tmp_path}/parts/s-%d.tar", resume=True, **options)


# --- arguments, progress, command --------------------------------------------------------------------


def test_shards_of_another_time_are_not_mixed_with_new_ones(tmp_path, tree):
    done = convert(tree, f"{tmp_path}/out/s-%d.tar", maxcount=1)
    (tmp_path / "out" / "s-notes.tar").write_bytes(b"")
    with pytest.raises(UsageError, match="shards of this pattern already, such as s-"):
        convert(tree, f"{tmp_path}/out/s-%d.tar")
    convert(tree, f"{tmp_path}/out/t-%d.tar")
    convert(tree, f"{tmp_path}/out/s-%d.tar", overwrite=True)
    assert len(done.shards) == 9


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"processes": 0}, "processes=0"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"keys": "hash"}, "keys='hash'"),
        ({"kind": "zip"}, "kind='zip'"),
        ({"columns": {"a": "b"}}, "for tables"),
        ({"kind": "shards", "shuffle": True}, "cannot be shuffled"),
        ({"maxcounts": 3}, "maxcounts"),
        ({"map": lambda sample: 3}, "Map returned a int"),
    ],
)
def test_arguments_that_cannot_work_are_errors(tmp_path, tree, options, says):
    source = example_shards(tmp_path) if options.get("kind") == "shards" else tree
    with pytest.raises(UsageError, match=says):
        convert(source, f"{tmp_path}/out/s-%d.tar", **options)


@pytest.mark.parametrize("target", ["out/s.tar", "out", "http://h/s-%d.tar", "-"])
def test_a_target_without_number_is_an_error(tree, target):
    with pytest.raises(UsageError, match="no pattern of shards"):
        convert(tree, target)


def test_progress_reaches_the_total(tmp_path, tree):
    calls = []
    convert(tree, f"{tmp_path}/a/s-%d.tar", progress=lambda *call: calls.append(call))
    assert calls == [(n, 9, "image") for n in range(1, 10)]
    calls.clear()
    convert(example_shards(tmp_path), f"{tmp_path}/b/s-%d.tar", progress=lambda *call: calls.append(call))
    assert calls[-1] == (3, 3, "shard")


def run(*words):
    return CliRunner().invoke(app, ["convert", *map(str, words)])


def test_the_command_converts_and_says_so(tmp_path, tree):
    result = run(tree, f"{tmp_path}/s-%d.tar", "--maxcount", 4, "--shuffle", "--size", 4, "--maxsize", "1MB")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("wrote 9 samples, ")
    assert result.stdout.endswith(
        f", in 3 shards {tmp_path}/s-%d.tar\n3 classes: cat 0, dog 1, owl 2; noted in {tmp_path}/classes.json\n"
    )
    assert result.stderr == ""
    sample = next(iter(AISFileLoader([f"{tmp_path}/s-0.tar"]).group_samples()))
    assert Image.open(io.BytesIO(sample["png"])).size == (4, 4)


def test_the_command_makes_the_bucket_and_gives_json(tmp_path, tree, ais_cluster, ais_client):
    bucket = ais_client.bucket("test-cli-convert")
    try:
        result = run(tree, "ais://test-cli-convert/s-%d.tar", "--endpoint", ais_cluster.endpoint, "--json")
        assert result.exit_code == 0, result.output
        answer = json.loads(result.stdout)
        assert (answer["samples"], [shard["name"] for shard in answer["shards"]]) == (
            9,
            ["ais://test-cli-convert/s-0.tar"],
        )
        assert [entry.name for entry in bucket.list_all_objects()] == ["classes.json", "s-0.tar"]
    finally:
        bucket.delete(missing_ok=True)


@pytest.mark.ci
def test_the_command_takes_functions_by_name_and_several_sources(tmp_path, monkeypatch):
    (tmp_path / "my_functions_of_convert.py").write_text(
        "def keep(sample): return sample['cls'] != b'0'\n"
        "def ten(sample): return {**sample, 'cls': sample['cls'] + 10}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds the working folder
    shards = example_shards(tmp_path)
    result = run(
        *shards, f"{tmp_path}/out/s-%d.tar", "--map", "my_functions_of_convert:ten", "--select",
        "my_functions_of_convert:keep", "--fields", "cls", "--number-keys", "--processes", 2,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("wrote 5 samples")
    assert result.stdout.rstrip().endswith("; 1 left out")
    values = [s["cls"] for s in AISFileLoader([f"{tmp_path}/out/s-0.tar"]).group_samples()]
    assert values == [b"11", b"12", b"13", b"14", b"15"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--map", "no_such_module:f"], "no function 'no_such_module:f'"),
        (["--maxsize", "much"], "is no size"),
        (["--column", "x"], "Write COLUMN=FIELD"),
        (["--resume"], "Pass --manifest"),
        (["--on-error", "what"], "'what' is not one of"),
    ],
)
def test_wrong_options_are_one_message(tmp_path, tree, words, says):
    result = run(tree, f"{tmp_path}/s-%d.tar", *words)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr
