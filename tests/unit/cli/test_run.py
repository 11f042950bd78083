"""The commands ``ls``, ``put`` and ``inspect``, and how errors reach the shell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.command import Run
from typer.testing import CliRunner

from torchdata_ais._util.formatting import bytes_text
from torchdata_ais.cli import app
from torchdata_ais.cli._run import sentence
from torchdata_ais.errors import TruncatedShardError
from torchdata_ais.testing import shard_bytes, write_shard


@pytest.fixture
def shard(ais_bucket: Any) -> bytes:
    content = shard_bytes({"README": b"hi", "a.cls": b"1", "a.seg.png": b"123", "b.cls": b"22"})
    ais_bucket.object("train/s.tar").get_writer().put_content(content)
    return content


def test_ls_shows_each_object_with_its_size(run: Run, ais_bucket: Any, shard: bytes) -> None:
    result = run("ls", f"ais://{ais_bucket.name}")
    assert result.exit_code == 0
    assert result.stdout == f"   10.2 kB  ais://{ais_bucket.name}/train/s.tar\n"
    assert result.stderr == "1 object, 10.2 kB\n"


def test_ls_json_gives_size_and_checksum(run: Run, ais_bucket: Any, shard: bytes) -> None:
    (row,) = json.loads(run("ls", f"ais://{ais_bucket.name}/train/", "--json").stdout)
    assert row["url"] == f"ais://{ais_bucket.name}/train/s.tar"
    assert row["size"] == len(shard)
    assert len(row["checksum"]) == 16


@pytest.mark.parametrize(
    ("url", "says", "code"),
    [
        ("ais://no-such-bucket", "does not exist", 1),
        ("aix://x", "Unknown scheme 'aix'. Use one of ais, s3", 2),
        ("some/path", "This is no bucket. Write ais://bucket", 2),
    ],
)
def test_an_error_is_one_message_and_its_exit_code(run: Run, url: str, says: str, code: int) -> None:
    result = run("ls", url)
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert says in result.stderr
    assert url in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["ls", "info", "lint", "inspect", "convert", "index"])
def test_debug_shows_the_traceback_of_the_error(run: Run, tmp_path: Path, command: str) -> None:
    path = tmp_path / "cut.tar"
    path.write_bytes(shard_bytes({"a.txt": b"1", "b.txt": b"2"})[:1500])
    words = [command, "ais://no-such-bucket" if command in ("ls", "lint") else path]
    words += [tmp_path / "o-%d.tar"] if command == "convert" else []
    result = run(*words, "--debug")
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr
    assert "torchdata_ais.errors." in result.stderr
    assert "Aborted" not in result.output


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("mv a b", "Copy with cp, then remove"),
        ("sync a ais://b", "put, get and cp store only what is not there yet"),
        ("stat ais://b/x", "ls -l"),
        ("head ais://b/x", "ls -l"),
        ("put -r a ais://b/", "leave it out"),
        ("get --recursive ais://b/", "leave it out"),
        ("cp -rf ais://a ais://b/", "leave it out"),
        ("ls --recursive ais://a", "leave it out"),
        ("rm -rf ais://b", "Write -r --yes"),
        ("rm --dry-run ais://b/x", "ls shows what a prefix"),
        ("get --dry-run ais://b/x", "ls shows what a prefix"),
        ("lint --jobs=3 x.tar", "It is called --processes"),
        ("convert --workers 3 a b", "It is called --processes"),
    ],
)
def test_words_of_other_tools_are_answered_with_ours(run: Run, words: str, advice: str) -> None:
    result = run(*words.split())
    assert result.exit_code == 2
    assert advice in " ".join(result.stderr.replace("│", " ").split())


def test_an_object_goes_to_standard_output(run: Run, ais_bucket: Any) -> None:
    for name in ("a.bin", "b.bin"):
        ais_bucket.object(name).get_writer().put_content(bytes([0, 255, 10]))
    result = run("get", f"ais://{ais_bucket.name}/a.bin", "-")
    assert result.stdout_bytes == bytes([0, 255, 10])
    assert not Path("-").exists()
    several = run("get", f"ais://{ais_bucket.name}/", "-")
    assert several.exit_code == 2
    assert "2 objects for standard output. Name one" in several.stderr


def test_buckets_of_the_cluster_itself_are_listed_on_request(run: Run, ais_cluster: Any) -> None:
    bucket = ais_cluster.client().bucket(".sys-inventory").create()
    try:
        assert ".sys-" not in run("ls").output
        assert "ais://.sys-inventory" in run("ls", "--all").stdout
        assert "ais://.sys-inventory" in run("ls", "-a", "ais://").stdout
    finally:
        bucket.delete()


def test_without_a_cluster_the_message_names_the_variable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIS_ENDPOINT")
    result = run("ls", "ais://pets")
    assert result.exit_code == 2
    assert "set AIS_ENDPOINT (http://host:51080); torchdata-ais serve" in result.stderr


def test_put_stores_a_folder_under_the_paths_in_it(run: Run, ais_bucket: Any, tmp_path: Path) -> None:
    (tmp_path / "sub dir").mkdir()
    (tmp_path / "a.txt").write_bytes(b"cat")
    (tmp_path / "sub dir" / "b#?%.txt").write_bytes(b"dog")
    result = run("put", tmp_path, f"ais://{ais_bucket.name}/x/")
    assert result.exit_code == 0, result.output
    stored = {entry.name: entry.size for entry in ais_bucket.list_all_objects()}
    assert stored == {"x/a.txt": 3, "x/sub dir/b#?%.txt": 3}


def test_put_makes_the_bucket_and_names_a_file_as_told(run: Run, ais_client: Any, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"cat")
    bucket = ais_client.bucket("test-cli-put-made")
    try:
        assert run("put", file, "ais://test-cli-put-made").exit_code == 0
        assert run("put", file, "ais://test-cli-put-made/b/").exit_code == 0
        assert run("put", file, "ais://test-cli-put-made/c").exit_code == 0
        names = [entry.name for entry in bucket.list_all_objects_iter()]
        assert names == ["a.txt", "b/a.txt", "c"]
    finally:
        bucket.delete(missing_ok=True)


def test_put_of_nothing_is_an_error(run: Run, tmp_path: Path) -> None:
    assert "No such file or folder" in run("put", tmp_path / "no", "ais://x").stderr
    assert "holds no file" in run("put", tmp_path, "ais://x").stderr


def test_inspect_shows_samples_and_says_that_the_shard_is_whole(
    run: Run, ais_bucket: Any, shard: bytes
) -> None:
    url = f"ais://{ais_bucket.name}/train/s.tar"
    result = run("inspect", url)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "(no key)  @0           README 2 B",
        "a         @1024        cls 1 B  seg.png 3 B",
        "b         @3072        cls 2 B",
        f"{url}: whole: 2 samples, 4 members, 8 B",
    ]


def test_inspect_json_names_every_member(run: Run, ais_bucket: Any, shard: bytes) -> None:
    answer = json.loads(run("inspect", f"ais://{ais_bucket.name}/train/s.tar", "--json").stdout)
    assert answer["whole"] is True
    assert [sample["key"] for sample in answer["samples"]] == [None, "a", "b"]
    assert answer["samples"][1]["fields"][1] == {
        "field": "seg.png",
        "member": "a.seg.png",
        "offset": 2048,
        "size": 3,
    }


@pytest.mark.parametrize("as_json", [False, True])
def test_inspect_of_a_cut_shard_shows_what_could_be_read_and_fails(
    run: Run, tmp_path: Path, as_json: bool
) -> None:
    path = tmp_path / "cut.tar"
    path.write_bytes(shard_bytes({"a.cls": b"1", "b.cls": b"2", "c.cls": b"3"})[:2600])
    result = run("inspect", path, *(["--json"] if as_json else []))
    assert result.exit_code == 1
    if as_json:
        answer = json.loads(result.stdout)
        assert answer["whole"] is False
        assert "ends at byte 2600" in answer["error"]
        assert [sample["key"] for sample in answer["samples"]] == ["a"]
    else:
        assert result.stdout == "a  @0           cls 1 B\n"
        assert "not sound" in result.stderr
        assert "ends at byte 2600" in result.stderr


def test_inspect_finds_a_key_that_comes_back(run: Run, tmp_path: Path) -> None:
    members = [("a.cls", b"1"), ("b.cls", b"2"), ("a.txt", b"x")]
    result = run("inspect", write_shard(tmp_path / "s.tar", members))
    assert result.exit_code == 1
    assert "The key 'a' was met before" in result.stderr


def test_the_message_of_a_worker_loses_its_traceback() -> None:
    error = TruncatedShardError(
        "Caught TruncatedShardError in worker process 1.\nOriginal Traceback (most recent call last):\n"
        '  File "x.py", line 3, in f\n    raise ...\n'
        "torchdata_ais.errors.TruncatedShardError: the shard ends early. Write it again\n"
        '[at] {"url": "ais://b/s.tar", "offset": 512}\n'
        "This exception is thrown by __iter__ of AISFileLoader()\n"
    )
    assert sentence(error) == (
        "The shard ends early. Write it again\n  url: ais://b/s.tar\n  offset: 512\n  in: worker process 1"
    )  # fmt: skip


def test_sizes_are_readable() -> None:
    assert [bytes_text(n) for n in (0, 999, 1000, 123_456_789)] == ["0 B", "999 B", "1.0 kB", "123.5 MB"]


@pytest.mark.parametrize("command", ["demo", "serve", "ls", "put", "inspect"])
def test_help_names_the_exit_codes(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Exit codes: 0 done, 1 failed" in result.stdout
