"""What a conversion tells of its samples: fields that some lack, an order by class, rows as people count them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from helpers import command

from torchdata_ais.errors import MissingFieldError
from torchdata_ais.writing import convert
from torchdata_ais.writing.transform import Counts


def folder_of(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"...")
    return root


def told(*arguments: Any) -> str:
    done = command.run("convert", *map(str, arguments))
    assert done.exit_code == 0, done.output
    return done.stderr


@pytest.mark.parametrize("processes", [1, 2])
def test_pictures_without_their_caption_are_counted_and_the_first_is_named(
    processes: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = folder_of(tmp_path / "in", "a.jpg", "a.txt", "b.jpg", "c.jpg", "c.txt", "c.json", "d.jpg")
    with caplog.at_level(logging.WARNING, "torchdata_ais"):
        done = convert(source, tmp_path / "out-%d.tar", processes=processes)
    assert [(one.field, one.number, one.first) for one in done.lacking] == [("json", 3, "a"), ("txt", 2, "b")]
    assert "2 of 4 samples without txt, such as b" in caplog.text


def test_the_command_tells_it_and_its_json_holds_it(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "in", "a.jpg", "a.txt", "b.jpg")
    assert "note: 1 sample without txt, such as b\n" in told(source, tmp_path / "a-%d.tar")
    done = command.run("convert", "--json", str(source), str(tmp_path / "b-%d.tar"))
    assert json.loads(done.stdout)["lacking"] == [{"field": "txt", "number": 1, "first": "b"}]


def test_an_empty_cell_of_a_label_is_told_and_equal_samples_are_not(tmp_path: Path) -> None:
    folder_of(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    (tmp_path / "t.csv").write_text("file_name,cls\na.jpg,3\nb.jpg,\nc.jpg,4\n")
    assert "note: 1 sample without cls, such as 000000001\n" in told(
        tmp_path / "t.csv", tmp_path / "t-%d.tar"
    )
    (tmp_path / "t.csv").write_text("file_name,cls\na.jpg,3\nb.jpg,4\n")
    assert "note" not in told(tmp_path / "t.csv", tmp_path / "whole-%d.tar")


def test_all_splits_together_are_looked_at(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "in", *(f"{number}.jpg" for number in range(10)), "3.txt")
    done = convert(source, tmp_path / "{split}-%d.tar", split="0.5/0.5")
    ((field, number, first),) = done.lacking
    assert (field, number) == ("txt", 9)
    assert first != "3"


def test_samples_of_very_many_kinds_are_not_told_of() -> None:
    counts = Counts()
    for number in range(1000):
        counts.judged({"__key__": str(number), f"f{number}": b""}, "raise")
    assert counts.lacking() == []
    assert len(counts.kinds) < 200


def test_a_folder_of_a_class_without_pictures_is_named(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "in", "cat/a.jpg", "dog/b.jpg", "fish/notes.pdf")
    (source / "newt").mkdir()
    text = told(source, tmp_path / "out-%d.tar")
    assert "note: 2 left out (a folder without a picture, sound or video, though a class): fish/\n" in text


@pytest.mark.parametrize(
    ("number", "options", "says"),
    [(501, (), True), (501, ("--shuffle",), False), (500, (), False)],
)
def test_an_order_by_class_is_told_where_a_usual_buffer_would_not_mix_it(
    number: int, options: tuple[str, ...], says: bool, tmp_path: Path
) -> None:
    source = folder_of(
        tmp_path / "in", *(f"{name}/{at}.jpg" for name in ("cat", "dog") for at in range(number))
    )
    text = told(*options, source, tmp_path / "out-%d.tar")
    assert ("class after class, as their folders do; --shuffle mixes them" in text) == says


def test_rows_are_counted_from_one(tmp_path: Path) -> None:
    folder_of(tmp_path, "a.jpg")
    (tmp_path / "t.csv").write_text("file_name,cls\na.jpg,3\nb.jpg,4\n")
    with pytest.raises(MissingFieldError, match=r"^Row 2, column 'file_name': no such file"):
        convert(tmp_path / "t.csv", tmp_path / "t-%d.tar")
    (tmp_path / "t.csv").write_text("file_name,cls\na.jpg,3\n,4\n")
    with pytest.raises(MissingFieldError, match=r"^Row 2 names no file"):
        convert(tmp_path / "t.csv", tmp_path / "u-%d.tar")
