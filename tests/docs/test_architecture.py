"""ARCHITECTURE.md: its packages, promises and files exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
PACKAGE = ROOT / "torchdata_ais"


def _packages() -> set[str]:
    return {path.parent.name for path in PACKAGE.glob("*/__init__.py")} | {"docs"}


def test_every_package_has_a_row_and_every_row_a_package() -> None:
    table = PAGE.partition("## Packages")[2].partition("\n## ")[0]
    named = {
        name.removesuffix("/")
        for row in table.splitlines()
        if row.startswith("|")
        for name in re.findall(r"`(\w+)/`", row.split("|")[1])
    }
    assert named == _packages()


def test_every_module_at_the_top_has_a_row() -> None:
    table = PAGE.partition("## Packages")[2].partition("\n## ")[0]
    cells = "".join(re.findall(r"^\|([^|]*)\|", table, re.MULTILINE))
    named = set(re.findall(r"`(\w+\.py)`", cells))
    assert named == {path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}


@pytest.mark.parametrize("number", range(1, 10))
def test_every_promise_stands_there_and_has_tests_of_its_name(number: int) -> None:
    assert f"\n{number}. **" in PAGE
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    names = [name for text in texts for name in re.findall(r"def (test_\w+)", text)]
    assert [name for name in names if name.startswith(f"test_promise_{number}_")]


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_files_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(r"`((?:torchdata_ais|tests|\.ci)/[\w./-]+|[a-z_]+/[\w/]+\.py|\w+\.py)`", text)
    assert named
    for name in named:
        places = [
            ROOT / name,
            ROOT / "tests" / name,
            PACKAGE / name,
            *ROOT.glob(f"tests/*/{name}"),
            *PACKAGE.glob(f"**/{name}"),
        ]
        assert "NAME" in name or any(place.exists() for place in places), name


def test_each_row_of_changes_names_code_and_tests_that_exist() -> None:
    table = PAGE.partition("## Where to change what")[2].partition("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines() if row.startswith("| ")][1:]
    assert len(rows) >= 30
    for change, code, tests in rows:
        assert re.search(r"`[\w/]+\.py|`cli/`|`writing/sources/`", code), change
        named = re.findall(r"`([\w/.]+)`", tests)
        assert named, change
        assert not [name for name in named if not (ROOT / "tests" / name).exists()], change


def test_classes_of_both_paths_are_in_the_files_that_are_named_with_them() -> None:
    paths = PAGE.partition("## The path of a shard")[2].partition("## Reading by index")[0]
    rows = [row for row in paths.splitlines() if re.match(r"\| \w[\w-]* \| `", row)]
    assert len(rows) >= 15
    for row in rows:
        groups = re.findall(r"((?:`[A-Z]\w+`(?:, )?)+)(?: \(((?:`[\w/.]+`(?:, )?)+)\))?", row)
        for names, files in groups:
            classes = re.findall(r"`(\w+)`", names)
            named = [PACKAGE / name for name in re.findall(r"`([\w/.]+)`", files)] or [PACKAGE]
            texts = [
                place.read_text()
                for name in named
                for place in ([name] if name.is_file() else name.rglob("*.py"))
            ]
            missing = [name for name in classes if not any(f"\nclass {name}" in text for text in texts)]
            assert not missing, row


def test_the_glossary_has_at_most_twenty_words() -> None:
    rows = [row for row in PAGE.partition("## Words")[2].splitlines() if row.startswith("| ")]
    assert 10 <= len(rows) - 1 <= 20
