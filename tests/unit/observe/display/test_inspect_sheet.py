"""``torchdata-ais inspect --sheet``."""

from __future__ import annotations

from pathlib import Path

from PIL import Image
from typer.testing import CliRunner

from torchdata_ais.cli import app
from torchdata_ais.examples.pets import make_pets, make_shards
from torchdata_ais.observe.display import contact_sheet
from torchdata_ais.testing import write_shard


def test_the_sheet_is_written_beside_the_table(tmp_path: Path) -> None:
    (tmp_path / "s.tar").write_bytes(next(make_shards([5])))
    result = CliRunner().invoke(
        app, ["inspect", str(tmp_path / "s.tar"), "--sheet", str(tmp_path / "out.png")]
    )
    assert result.exit_code == 0, result.output
    assert "5 samples" in result.output
    with Image.open(tmp_path / "out.png") as sheet:
        assert sheet.tobytes() == contact_sheet(list(make_pets(5))).tobytes()


def test_a_cut_shard_still_gives_a_sheet_of_what_was_read(tmp_path: Path) -> None:
    body = next(make_shards([5]))
    (tmp_path / "s.tar").write_bytes(body[: len(body) // 2])
    result = CliRunner().invoke(
        app, ["inspect", str(tmp_path / "s.tar"), "--sheet", str(tmp_path / "out.png")]
    )
    assert result.exit_code == 1
    assert "not sound" in result.output
    with Image.open(tmp_path / "out.png") as sheet:
        assert sheet.width < 5 * 166


def test_a_shard_without_images_and_a_name_that_is_none_say_so(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", {"a.cls": b"1"})
    result = CliRunner().invoke(app, ["inspect", shard, "--sheet", str(tmp_path / "out.png")])
    assert result.exit_code == 2
    assert "No image in the sample" in result.output
    (tmp_path / "p.tar").write_bytes(next(make_shards([1])))
    result = CliRunner().invoke(
        app, ["inspect", str(tmp_path / "p.tar"), "--sheet", str(tmp_path / "out.nonsense")]
    )
    assert result.exit_code == 2
    assert "Name it out.png" in result.output
