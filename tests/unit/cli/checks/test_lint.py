"""``lint``: every fault is one problem with its place; ``--fix`` writes what is good; the exit codes are as stated."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.command import run
from PIL import Image

from torchdata_ais import AISSourceLister
from torchdata_ais.cli.checks import lint_shards, reshard
from torchdata_ais.cli.checks.lint import ShardReport, compared
from torchdata_ais.errors import ConnectError, MissingLibraryError, NotFoundError, UsageError
from torchdata_ais.store import Retry, StoreOptions
from torchdata_ais.testing import shard_bytes, write_shard

Members = list[tuple[str, bytes]]


def picture(color: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (40, 30), (color, 0, 0)).save(out, "JPEG")
    return out.getvalue()


def members(start: int, count: int) -> Members:
    return [
        pair
        for index in range(start, start + count)
        for pair in ((f"{index:03d}.cls", b"%d" % index), (f"{index:03d}.jpg", picture(index)))
    ]


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """Six shards: 1 is cut, the first key of 2 is scattered, an image of 3 is no image, a sample of 4 lacks cls."""
    shards = [members(10 * number, 10) for number in range(6)]
    shards[2].append(shards[2].pop(0))
    shards[3][9] = (shards[3][9][0], b"no image")
    del shards[4][4]
    for number, content in enumerate(shards):
        write_shard(tmp_path / f"s-{number}.tar", content)
    data = (tmp_path / "s-1.tar").read_bytes()
    (tmp_path / "s-1.tar").write_bytes(data[: 512 * 17])
    return tmp_path


def found(report: Any) -> list[tuple[str, str | None, str | None, int | None]]:
    return [
        (problem.kind, (problem.url or "")[-7:], problem.key, problem.offset) for problem in report.problems()
    ]


def test_the_first_of_the_samples_that_lack_a_field_is_named_whatever_else_they_have(tmp_path: Path) -> None:
    content = members(0, 10)
    content[5] = ("002.txt", b"instead of 002.jpg")
    del content[15]  # 007.jpg
    write_shard(tmp_path / "s-0.tar", content)
    report = lint_shards(f"{tmp_path}/s-0.tar")
    (problem,) = [problem for problem in report.problems() if problem.kind == "FieldsDiffer"]
    assert "2 of 10 samples have no field 'jpg'" in problem.text
    assert problem.key == "002"


@pytest.mark.parametrize("jobs", [1, 3])
def test_each_fault_is_one_problem_that_names_shard_key_and_byte(bad: Path, jobs: int) -> None:
    report = lint_shards(f"{bad}/s-*.tar", jobs=jobs)
    assert not report.ok
    assert found(report) == [
        ("TruncatedShardError", "s-1.tar", None, 512 * 17),
        ("NonAdjacentKeyError", "s-2.tar", "020", found(report)[1][3]),
        ("DecodeError", "s-3.tar", "034", found(report)[2][3]),
        ("FieldsDiffer", "s-4.tar", "042", found(report)[3][3]),
    ]
    assert all(offset is not None and offset % 512 == 0 for *_, offset in found(report))
    assert report.required == ("cls", "jpg")
    assert [shard.whole for shard in report.shards] == [True, False, True, True, True, True]


def test_sound_shards_have_no_problem(tmp_path: Path) -> None:
    for number in range(3):
        write_shard(tmp_path / f"s-{number}.tar", members(10 * number, 10))
    report = lint_shards(f"{tmp_path}/s-{{0..2}}.tar")
    assert report.ok
    assert list(report.problems()) == []
    assert sum(shard.good for shard in report.shards) == 30


def test_required_fields_are_checked_sample_by_sample(bad: Path) -> None:
    report = lint_shards(f"{bad}/s-4.tar", require="jpg;png cls")
    assert [(problem.kind, problem.key) for problem in report.problems()] == [("MissingFieldError", "042")]


def test_rare_fields_repeated_keys_and_uneven_shards_are_notes(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", [("a.cls", b"1"), ("b.cls", b"2"), ("b.txt", b"x")])
    write_shard(tmp_path / "b.tar", [("a.cls", b"1")])
    write_shard(tmp_path / "c.tar", [(f"{index}.cls", b"1") for index in range(50)])
    report = lint_shards(f"{tmp_path}/*.tar")
    assert report.ok
    notes = [(problem.kind, problem.severity) for problem in report.problems()]
    assert notes == [("KeysRepeated", "note"), ("RareField", "note"), ("UnevenShards", "note")]
    assert run("lint", f"{tmp_path}/*.tar").exit_code == 0
    assert run("lint", f"{tmp_path}/*.tar", "--strict").exit_code == 1


def test_a_shard_without_samples_and_one_that_is_no_tar_are_errors(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", [("README", b"1")])
    (tmp_path / "b.tar").write_bytes(b"this is text, not a tar archive" * 40)
    kinds = [problem.kind for problem in lint_shards(f"{tmp_path}/*.tar").problems()]
    assert kinds == ["NoSamples", "NotATarError"]


def test_of_many_problems_of_a_shard_twenty_are_kept_and_all_counted(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.tar", [(f"{index}.jpg", b"no") for index in range(50)])
    (shard,) = lint_shards(path).shards
    assert (shard.errors, len(shard.problems), shard.good) == (50, 20, 0)
    assert "47 more errors of this shard" in run("lint", path).stdout


def test_a_cluster_that_is_gone_ends_the_check_at_once() -> None:
    options = StoreOptions(endpoint="http://127.0.0.1:9", retry=Retry(attempts=1))
    with pytest.raises(ConnectError):
        lint_shards("ais://pets/s-{000..999}.tar", cluster=options)


def test_no_shard_is_an_error_not_a_clean_bill(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no file matches\. Check the path"):
        lint_shards(f"{tmp_path}/*.tar")
    assert run("lint", f"{tmp_path}/*.tar").exit_code == 1


def test_a_missing_library_is_told_once_with_the_way_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise MissingLibraryError.at("cbor needs cbor2", todo="pip install it")

    monkeypatch.setattr("torchdata_ais.cli.checks.lint.Decoder", lambda *_, **__: gone)
    path = write_shard(tmp_path / "a.tar", [("a.cbor", b"1")])
    with pytest.raises(UsageError, match="--no-decode"):
        lint_shards(path)
    assert run("lint", path, "--no-decode").exit_code == 0


def test_a_sound_and_a_video_that_are_cut_are_errors(tmp_path: Path) -> None:
    wave = b"RIFF" + (2036).to_bytes(4, "little") + b"WAVEfmt " + (16).to_bytes(4, "little")
    wave += (
        bytes([1, 0, 1, 0, 0x40, 0x1F, 0, 0, 0x80, 0x3E, 0, 0, 2, 0, 16, 0])
        + b"data"
        + (2000).to_bytes(4, "little")
    )
    boxes = b"\0\0\0\x10ftypisom" + bytes(4) + b"\0\0\0\x08moov" + b"\0\0\1\0mdat"
    whole = [("a.wav", wave + bytes(2000)), ("a.mp4", boxes + bytes(248))]
    cut = [("b.wav", wave + bytes(1000)), ("b.mp4", boxes + bytes(100))]
    assert lint_shards(write_shard(tmp_path / "whole.tar", whole)).ok
    report = lint_shards(write_shard(tmp_path / "cut.tar", cut))
    assert [(one.kind, one.field) for one in report.errors()] == [("DecodeError", "wav")]
    assert not lint_shards(write_shard(tmp_path / "video.tar", cut[1:]), only="mp4").ok
    assert lint_shards(str(tmp_path / "cut.tar"), decode=False).ok


def test_reshard_writes_every_good_sample_once_and_says_what_is_missing(bad: Path) -> None:
    report = lint_shards(f"{bad}/s-*.tar")
    done = reshard(report, f"{bad}/out/n-%03d.tar", maxcount=20)
    assert (done.joined, dict(done.left_out)) == (1, {"DecodeError": 1, "MissingFieldError": 1})
    samples = list(AISSourceLister(f"{bad}/out/*.tar").load_tar().group_samples(require="cls jpg"))
    keys = [sample["__key__"] for sample in samples]
    assert len(keys) == len(set(keys)) == done.samples
    cut = report.shards[1].samples
    expected = {f"{index:03d}" for index in range(60) if not 10 + cut <= index < 20} - {"034", "042"}
    assert set(keys) == expected
    for sample in samples:
        assert sample["jpg"] == picture(int(sample["__key__"]))
        assert int(sample["cls"]) == int(sample["__key__"])
    assert lint_shards(f"{bad}/out/*.tar").ok


def test_reshard_joins_no_sample_of_a_shard_that_breaks_off(tmp_path: Path) -> None:
    content = [("a.cls", b"1"), ("b.cls", b"2"), ("a.jpg", picture(1)), ("c.cls", b"3"), ("d.cls", b"4")]
    path = tmp_path / "s.tar"
    data = shard_bytes(content)
    path.write_bytes(data[: data.index(b"d.cls") + 512])
    report = lint_shards(str(path))
    assert {problem.kind for problem in report.errors()} >= {"NonAdjacentKeyError", "TruncatedShardError"}
    done = reshard(report, f"{tmp_path}/n-%d.tar")
    assert done.left_out["NonAdjacentKeyError"] == 1
    keys = [sample["__key__"] for sample in AISSourceLister(done.shards).load_tar().group_samples()]
    assert "a" not in keys
    assert "b" in keys


def test_reshard_gives_a_key_that_comes_twice_another_name(tmp_path: Path) -> None:
    for name in "xy":
        write_shard(tmp_path / f"{name}.tar", members(0, 2))
    done = reshard(lint_shards(f"{tmp_path}/*.tar"), f"{tmp_path}/out/n-%d.tar")
    assert (done.samples, done.renamed) == (4, 2)


def test_the_command_prints_a_line_for_each_problem_and_a_summary_and_fails(bad: Path) -> None:
    result = run("lint", f"{bad}/s-*.tar")
    lines = result.stdout.splitlines()
    assert result.exit_code == 1
    assert [line.partition(":")[0] for line in lines[:-1]] == ["error"] * 4
    assert lines[0].startswith(f"error: {bad}/s-1.tar, byte 8704, TruncatedShardError: ")
    assert "key '020', byte" in lines[1]
    assert lines[-1].startswith("6 shards, ")
    assert "4 errors in" in lines[-1]


def test_the_command_fixes_into_a_bucket_it_makes(bad: Path, ais_cluster: Any, ais_client: Any) -> None:
    bucket = ais_client.bucket("test-lint-fixed")
    target = "ais://test-lint-fixed/n-%03d.tar"
    try:
        result = run("lint", f"{bad}/s-*.tar", "--fix", target, "--json", "--endpoint", ais_cluster.endpoint)
        assert result.exit_code == 1, "the old shards are as bad as before"
        answer = json.loads(result.stdout)
        assert answer["fixed"]["joined"] == 1
        assert [shard["whole"] for shard in answer["shards"]][:2] == [True, False]
        again = run("lint", "ais://test-lint-fixed/n-", "--json", "--endpoint", ais_cluster.endpoint)
        assert json.loads(again.stdout)["ok"] is True
        assert again.exit_code == 0
        twice = run("lint", f"{bad}/s-*.tar", "--fix", target, "--endpoint", ais_cluster.endpoint)
        assert "shards of this pattern already" in twice.stderr
    finally:
        bucket.delete(missing_ok=True)


@pytest.mark.parametrize(
    ("sizes", "noted"),
    [
        ([10, 10, 1], False),  # the last of a series is short as a rule
        ([10, 10, 2, 1], True),
        ([10, 10, 3, 1], False),
        ([10, 10, 40], False),
        ([10, 10, 41], True),
    ],
)
def test_shards_of_very_different_sizes_are_noted_but_for_one_short_one(
    sizes: list[int], noted: bool
) -> None:
    shards = [ShardReport(f"{number}.tar", "", samples=size) for number, size in enumerate(sizes)]
    problems, _ = compared(shards, ("cls",))
    assert [problem.kind for problem in problems] == ["UnevenShards"] * noted
