"""``group_samples``: the naming rule, and what becomes of samples that break it."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import AISSourceLister, TarSampleGrouper, stats
from torchdata_ais.errors import (
    DuplicateFieldError,
    MissingFieldError,
    NonAdjacentKeyError,
    SampleError,
    UsageError,
)
from torchdata_ais.reading.runs import KeySet, whole_runs
from torchdata_ais.samples import shown_fields
from torchdata_ais.tar import Link, TarReader
from torchdata_ais.testing import shard_bytes, write_shard

THROUGH = {"fused": lambda pipe: pipe, "map": lambda pipe: pipe.map(lambda item: item)}


@pytest.fixture(params=THROUGH)
def between(request: pytest.FixtureRequest) -> Any:
    """What stands between load_tar and group_samples: nothing (the short way), or a stage that keeps names."""
    return THROUGH[request.param]


def keys(pipe: Any) -> list[str]:
    return [sample["__key__"] for sample in pipe]


def test_names_become_keys_and_fields_as_webdataset_has_it(between: Any, tmp_path: Path) -> None:
    shard = write_shard(
        tmp_path / "s.tar",
        [
            ("a.JPG", b"1"), ("./b.cls", b"2"), ("d.x/c.seg.PNG", b"3"), ("e..txt", b"4"), ("f.", b"5"),
            ("noext", b"-"), ("d.x/noext", b"-"), (".hidden", b"-"), ("d/.hidden", b"6"),
            ("__m__", b"-"), ("__d__/x.txt", b"-"), ("d/__m__/x.txt", b"7"), ("__m__.txt", b"8"),
            ("img_v1.2.jpg", b"9"),
        ],
    )  # fmt: skip
    samples = list(between(AISSourceLister([shard]).load_tar()).group_samples())
    assert [(s["__key__"], *[(f, v) for f, v in s.items() if not f.startswith("__")]) for s in samples] == [
        ("a", ("jpg", b"1")),
        ("./b", ("cls", b"2")),
        ("d.x/c", ("seg.png", b"3")),
        ("e", (".txt", b"4")),
        ("f", ("", b"5")),
        ("d/", ("hidden", b"6")),
        ("d/__m__/x", ("txt", b"7")),
        ("__m__", ("txt", b"8")),
        ("img_v1", ("2.jpg", b"9")),
    ]
    assert {sample["__url__"] for sample in samples} == {shard}


def test_a_field_met_twice_is_an_error_that_names_it(between: Any, tmp_path: Path) -> None:
    shard = write_shard(
        tmp_path / "s.tar", [("a.cls", b"0"), ("b.jpg", b"1"), ("b.JPG", b"2"), ("c.cls", b"3")]
    )
    pipe = between(AISSourceLister([shard]).load_tar())
    with pytest.raises(DuplicateFieldError, match="'jpg' twice") as caught:
        list(pipe.group_samples())
    error = caught.value
    assert (error.key, error.field, error.member, error.url, error.offset) == (
        "b",
        "jpg",
        "b.JPG",
        shard,
        2048,
    )
    assert keys(pipe.group_samples(on_error="skip")) == ["a", "c"]


def test_a_key_met_again_is_an_error_or_a_sample_of_its_own(between: Any, tmp_path: Path) -> None:
    shard = write_shard(
        tmp_path / "s.tar", [("a.jpg", b"1"), ("b.cls", b"2"), ("a.cls", b"3"), ("c.cls", b"4")]
    )
    pipe = between(AISSourceLister([shard]).load_tar())
    with pytest.raises(NonAdjacentKeyError, match="stand together") as caught:
        list(pipe.group_samples())
    assert (caught.value.key, caught.value.url, caught.value.offset) == ("a", shard, 2048)
    # The first part of the torn sample has left before the second was met: it is named by the error.
    assert keys(pipe.group_samples(on_error="skip")) == ["a", "b", "c"]
    split = list(pipe.group_samples(adjacent="split"))
    assert [(s["__key__"], s.get("jpg"), s.get("cls")) for s in split] == [
        ("a", b"1", None),
        ("b", None, b"2"),
        ("a", None, b"3"),
        ("c", None, b"4"),
    ]
    # With the fields named that a sample must have, no part of it passes.
    assert keys(pipe.group_samples(require="cls", on_error="skip")) == ["b", "c"]


def test_a_required_field_that_is_missing_is_an_error_that_names_it(between: Any, tmp_path: Path) -> None:
    shard = write_shard(
        tmp_path / "s.tar", {"a.png": b"", "a.cls": b"1", "b.jpg": b"2", "c.jpeg": b"", "c.cls": b""}
    )
    pipe = between(AISSourceLister([shard]).load_tar())
    with pytest.raises(MissingFieldError, match=r"'b' has no field 'cls', only \['jpg'\]") as caught:
        list(pipe.group_samples(require="jpg;png;jpeg cls"))
    assert (caught.value.key, caught.value.field, caught.value.url, caught.value.offset) == (
        "b",
        "cls",
        shard,
        1536,
    )
    assert keys(pipe.group_samples(require=("jpg;png;jpeg", "cls"), on_error="skip")) == ["a", "c"]


def test_the_same_keys_in_other_shards_are_no_repetition(between: Any, tmp_path: Path) -> None:
    urls = [write_shard(tmp_path / f"{n}.tar", {"a.cls": b"%d" % n, "b.cls": b"%d" % n}) for n in range(3)]
    for open_shards in (1, 2, 3):
        pipe = between(AISSourceLister(urls).load_tar(open_shards=open_shards)).group_samples()
        assert sorted((s["__key__"], s["cls"]) for s in pipe) == [
            (k, b"%d" % n) for k in "ab" for n in range(3)
        ]


@pytest.mark.parametrize("open_shards", [1, 2])
def test_a_shard_listed_twice_gives_its_samples_twice(between: Any, open_shards: int, tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", {"a.jpg": b"1", "a.cls": b"2"})
    pipe = between(AISSourceLister([shard, shard]).load_tar(open_shards=open_shards))
    assert [len(sample) for sample in pipe.group_samples()] == [4, 4]


def test_a_shard_listed_twice_is_not_joined_where_the_marks_of_the_end_were_filtered_out(
    tmp_path: Path,
) -> None:
    shard = write_shard(tmp_path / "s.tar", {"a.jpg": b"1", "a.cls": b"2"})
    pipe = AISSourceLister([shard, shard]).load_tar().filter(lambda item: item[0].endswith(".jpg"))
    assert [sample["jpg"] for sample in pipe.group_samples()] == [b"1", b"1"]


def test_a_shard_that_broke_off_and_is_listed_again_begins_anew(tmp_path: Path) -> None:
    whole = Path(write_shard(tmp_path / "s.tar", {"a.cls": b"1", "b.cls": b"2", "c.cls": b"3"})).read_bytes()
    (tmp_path / "s.tar").write_bytes(whole[:2560])
    pipe = AISSourceLister([str(tmp_path / "s.tar")] * 2).load_tar(on_error="skip").group_samples()
    assert keys(pipe) == ["a", "a"]


def test_shards_that_broke_off_are_forgotten(tmp_path: Path) -> None:
    whole = Path(write_shard(tmp_path / "w.tar", {"a.cls": b"1", "b.cls": b"2"})).read_bytes()
    urls = []
    for number in range(10):
        (tmp_path / f"{number}.tar").write_bytes(whole[:2048])
        urls.append(str(tmp_path / f"{number}.tar"))
    before = key_sets()
    iterator = iter(AISSourceLister(urls).load_tar(on_error="skip").group_samples())
    for _ in range(10):
        next(iterator)
    assert 1 <= key_sets() - before <= 2


def key_sets() -> int:
    gc.collect()
    return sum(type(item) is KeySet for item in gc.get_objects())


def test_plain_tuples_of_any_source_are_grouped() -> None:
    members = [("x/s.tar/a.jpg", b"1"), ("x/s.tar/a.cls", b"2"), ("x/t.tar/a.cls", b"3"), ("README", b"")]
    assert list(TarSampleGrouper(members)) == [
        {"__key__": "a", "__url__": "x/s.tar", "jpg": b"1", "cls": b"2"},
        {"__key__": "a", "__url__": "x/t.tar", "cls": b"3"},
    ]


def test_a_sample_knows_its_place(between: Any, tmp_path: Path) -> None:
    urls = [
        write_shard(tmp_path / f"{n}.tar", {"a.jpg": b"1", "a.cls": b"2", "b.cls": b"3"}) for n in range(2)
    ]
    samples = list(between(AISSourceLister(urls).load_tar()).group_samples())
    assert [(s.shard, s.offset) for s in samples] == [(0, 0), (0, 2048), (1, 0), (1, 2048)]


def test_errors_of_samples_are_counted_by_class_and_logged_once_in_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    members = [(f"{n}.{field}", b"") for n in range(5) for field in ("jpg", "JPG")]
    shard = write_shard(tmp_path / "s.tar", [*members, ("x.cls", b"1"), ("y.jpg", b"")])
    pipe = AISSourceLister([shard]).load_tar().group_samples(require="jpg", on_error="warn")
    with caplog.at_level(logging.INFO, logger="torchdata_ais"):
        assert keys(pipe) == ["y"]
    assert stats(pipe)["group_samples"].skipped == {"DuplicateFieldError": 5, "MissingFieldError": 1}
    assert len(stats(pipe)["group_samples"].examples) == 6
    first, second = caplog.records
    assert (first.levelname, second.levelname) == ("WARNING", "WARNING")
    assert (
        "group_samples skips after DuplicateFieldError: The sample '0' has the field 'jpg' twice"
        in first.message
    )
    assert f'"url": "{shard}"' in first.message
    assert "MissingFieldError" in second.message


def test_arguments_are_checked_when_the_pipe_is_built() -> None:
    with pytest.raises(UsageError, match="adjacent='maybe'"):
        TarSampleGrouper([], adjacent="maybe")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="on_error='ignore'"):
        TarSampleGrouper([], on_error="ignore")  # type: ignore[arg-type]


def test_errors_of_samples_are_value_errors_too() -> None:
    for kind in (DuplicateFieldError, NonAdjacentKeyError, MissingFieldError):
        assert issubclass(kind, SampleError)
        assert issubclass(kind, ValueError)


def test_a_sample_begins_at_its_own_header_whatever_was_left_out_before_it() -> None:
    """macOS puts its own member in front of each file; the place of a sample is where its first one begins."""
    body = shard_bytes([("._a.jpg", b"mac"), ("a.jpg", b"1"), ("._b.jpg", b"mac"), ("b.jpg", b"2")])
    runs = list(whole_runs(TarReader([body]), url="s.tar"))
    assert [(run.key, run.offset) for run in runs] == [("a", 1024), ("b", 3072)]


def test_up_to_twenty_fields_are_named_in_a_message() -> None:
    fields = [f"f{number:02d}" for number in range(21)]
    assert shown_fields(["__key__", *fields[:20]]) == str(fields[:20])
    assert shown_fields(fields) == f"{fields[:20]} and 1 more"


def test_links_go_by_the_names_of_the_shard_where_members_are_renamed() -> None:
    """Before the first link of a sample and after it."""
    found: list[tuple[str, Any]] = [
        ("a.x", b"1"), ("a.like-x", Link("a.x")), ("a.y", b"2"), ("a.like-y", Link("a.y")),
    ]  # fmt: skip
    members = [(name, data, 512 * number, 512 * number + 512) for number, (name, data) in enumerate(found)]
    (run,) = whole_runs(members, url="s.tar", rename=lambda name: f"pre-{name}")
    assert [(member.name, member.data) for member in run.members] == [
        ("pre-a.x", b"1"), ("pre-a.like-x", b"1"), ("pre-a.y", b"2"), ("pre-a.like-y", b"2"),
    ]  # fmt: skip
