"""The page for those who come from torchdata or AIStore names every class that AIStore has for PyTorch."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import torchdata_ais

PAGE = Path(torchdata_ais.__file__).parent / "docs" / "from_torchdata.md"


def test_every_class_of_aistore_for_pytorch_has_its_row() -> None:
    found = importlib.util.find_spec("aistore")
    assert found is not None
    assert found.submodule_search_locations
    folder = Path(found.submodule_search_locations[0], "pytorch")
    text = "\n".join(path.read_text() for path in folder.glob("*.py"))
    classes = {name for name in re.findall(r"^class (\w+)", text, re.MULTILINE) if "Base" not in name}
    section = PAGE.read_text().partition("## AIStore's own classes")[2].partition("\n## ")[0]
    named = {
        name
        for row in re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
        for name in re.findall(r"`(\w+)[(=`]", row)
    } - {"etl", "etl_name", "prefix_map"}
    data_sets = {name for name in classes if name.startswith("AIS") or name.endswith("Sampler")}
    assert named >= data_sets
    assert {name for name in named if name[0].isupper()} <= classes


def test_what_stands_on_the_right_of_the_tables_exists() -> None:
    for name in ("AISSourceLister", "AISFileLoader", "AISSampleReader", "SampleDataset"):
        assert f"`{name}" in PAGE.read_text()
        assert hasattr(torchdata_ais, name)
    assert not hasattr(torchdata_ais, "AISFileLister")


def test_torchdatas_pipes_of_aistore_have_their_rows() -> None:
    section = PAGE.read_text().partition("## torchdata's pipes of AIStore")[2].partition("\n## ")[0]
    for then, now in {"AISFileLister(": "`AISSourceLister(", "AISFileLoader(": "`AISObjectLoader("}.items():
        (row,) = [line for line in section.splitlines() if line.startswith(f"| `{then}")]
        assert now in row
    assert hasattr(torchdata_ais, "AISObjectLoader")
