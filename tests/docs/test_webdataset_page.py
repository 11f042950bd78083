"""The page for those who come from webdataset is true: its blocks run, its names and arguments exist."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from pathlib import Path
from typing import Any

import pytest

import torchdata_ais.webdataset as wds
from torchdata_ais import errors
from torchdata_ais.codecs import Decoder
from torchdata_ais.pipes import AISFileLoader
from torchdata_ais.pipes.base.pipe import IterDataPipe
from torchdata_ais.webdataset.left_out import REASONS

PAGE = Path(wds.__file__).parent / "README.md"
TEXT = PAGE.read_text()
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:```text\n(?P<output>.*?)```\n)?", re.DOTALL)


@pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:Lambda function is not supported")
def test_the_blocks_print_what_stands_under_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, Any] = {"__name__": "page"}
    blocks = list(BLOCK.finditer(TEXT))
    assert len(blocks) >= 5
    for block in blocks:
        code = compile("\n" * TEXT.count("\n", 0, block.start("code")) + block["code"], PAGE, "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        assert printed.getvalue() == (block["output"] or "")


def cells(column: int) -> str:
    """Return the text of one column of the tables."""
    rows = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if line.startswith("| ")]
    return "\n".join(row[column] for row in rows if len(row) > column)


def test_every_name_of_webdataset_on_the_page_exists_or_says_why_not() -> None:
    names = set(re.findall(r"\bwds\.(\w+)", TEXT))
    assert len(names) > 10
    for name in names:
        assert hasattr(wds, name), name
    missing = TEXT.partition("## Not there")[2]
    assert all(f"`{name}`" in missing for name in REASONS[""])
    for name in re.findall(r"\b[a-z_]+\b", cells(0).partition("`map map_dict")[2].partition("`")[0]):
        assert hasattr(wds.WebDataset, name), name


def test_every_error_on_the_page_is_one_that_is_raised() -> None:
    names = set(re.findall(r"`(\w+Error)`", TEXT)) - {"ValueError", "KeyError", "FileNotFoundError"}
    assert len(names) >= 6
    assert all(issubclass(getattr(errors, name), errors.AISError) for name in names)


def test_every_argument_on_the_page_is_one() -> None:
    owners = [wds.WebDataset, wds.tarfile_samples, AISFileLoader, Decoder, wds.TarWriter.__mro__[1]]
    owners += [
        wds.ShardWriter,
        wds.Command,
        wds.DataPipeline.repeat,
        wds.shuffle,
        wds.listed.f,
        wds.SimpleShardList,
    ]
    known = {name for owner in owners for name in inspect.signature(owner).parameters}
    for name in re.findall(r"`([a-z_]+)=[^`]*`", TEXT):
        assert name in known, name


def test_the_stages_of_pipes_have_the_names_on_the_page() -> None:
    for name in (
        "map_sample",
        "shuffled",
        "batched",
        "slice_samples",
        "repeated",
        "pipe_through",
        "listed",
        "unlisted",
    ):
        assert name in IterDataPipe.functions
        assert f"`{name}" in TEXT or f"`.{name}(" in TEXT
