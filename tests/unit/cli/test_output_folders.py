"""Files and folders that commands are given: told before anything long begins, in words and not by number."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.command import Run

from torchdata_ais.cli import _refuse_empty
from torchdata_ais.testing import write_shard


@pytest.fixture
def run(run: Run) -> Run:
    write_shard("s.tar", {"a.txt": b"cat"})
    Path("file").write_text("x")
    Path("folder").mkdir()
    Path("folder", "a.txt").write_text("x")
    return run


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["info", "s.tar", "--html", "no/x.html"], "no/x.html: there is no folder no. Make it first"),
        (["info", "s.tar", "--html", "folder"], "folder: this is a folder. Name a file in it"),
        (["info", "absent.tar", "--html", "no/x.html"], "no/x.html: there is no folder no"),
        (["inspect", "absent.tar", "--sheet", "no/x.png"], "no/x.png: there is no folder no"),
        (["inspect", "absent.tar", "--sheet", "x.txt"], "x.txt: no kind of picture is called .txt"),
        (["watch", "no"], "No rank has told anything in no. Name the folder|no: this cannot be read"),
        (["watch", "folder", "--page", "no/x.html"], "there is no folder no"),
        (["doctor", "folder"], "folder: this cannot be read (Is a directory). Check the path"),
        (["put", "folder", "ais://cli-places/photos"], "End|Write ais://cli-places/photos/ for names below it"),
        (["put", "/dev/null", "ais://cli-places/x"], "This is no file but a device"),
        (["put", "file", "ais://cli places/x"], "No bucket can be called 'cli places'"),
        (["cp", "ais://cli-places/x", "x"], "torchdata-ais get fetches into files"),
        (["cp", "x", "ais://cli-places/x"], "put stores files"),
        (["convert", "s.tar", "file/a-%d.tar"], "file: this is a file, and no folder"),
        (["convert", "s.tar", "out/a-%d.tar", "--manifest", "no/m.json"], "no folder"),
        (["convert", "s.tar", "out/a-%d.tar", "--manifest", "file"], "This is no manifest of shards"),
        (["convert", "s.tar", "out/a-%d.tar", "--manifest", "folder"], "This is a folder. Name a file in it"),
        (["convert", "s.tar", "out/a-%d.tar", "--split", "0.9/0.2"], "Write fractions that make 1"),
        (["convert", "s.tar", "out/a-%d.tar", "--fields", "jpg"], "none of the fields jpg, only txt. Correct --fields"),
        (["convert", "s.tar", "/proc/none/a-%d.tar"], "/proc/none: there is no such file or folder, and none"),
    ],
)  # fmt: skip
def test_each_is_told_and_nothing_is_made(run: Run, words: list[str], says: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    done = run(*words)
    assert done.exit_code in (1, 2), done.output
    assert any(part in done.stderr for part in says.split("|")), done.stderr
    assert "Errno" not in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["put", "", "ais://b"], "behind put"),
        (["info", "ais://b", "--html", ""], "behind --html"),
        (["info", "ais://b", "--html="], "behind --html"),
        (["lint", "--fix", "", "ais://b"], "behind --fix"),
    ],
)
def test_an_empty_word_is_a_variable_that_was_not_set(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _refuse_empty(words)
    assert ended.value.code == 2
    assert f"error: An argument is empty {says}. Was a variable" in capsys.readouterr().err


def test_an_empty_endpoint_is_none() -> None:
    for words in (
        [],
        ["ls"],
        ["ls", "--endpoint", ""],
        ["ls", "--endpoint="],
        ["ls", "--endpoint=http://h:1"],
    ):
        _refuse_empty(words)
    assert sys.argv


def test_get_names_the_file_and_not_its_part(run: Run, ais_client: Any) -> None:
    bucket = ais_client.bucket("cli-places-get").create()
    try:
        bucket.object("a.txt").get_writer().put_content(b"x")
        failed = run("get", "ais://cli-places-get/a.txt", "/proc/x")
        assert failed.stderr.startswith("error: /proc/x: there is no such file or folder"), failed.stderr
        failed = run("get", "ais://cli-places-get/a.txt", "file/x")
        assert failed.stderr.startswith("error: file: this is a file, and no folder"), failed.stderr
    finally:
        bucket.delete(missing_ok=True)
