"""Packages: all in the contract that `lint-imports` checks, and private modules used in their own package only."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "torchdata_ais"


@pytest.fixture(scope="module")
def imports() -> list[tuple[str, str]]:
    """Every import of the package: the module that imports, and the dotted name that it imports."""
    return list(_imports())


def _imports() -> Iterator[tuple[str, str]]:
    for path in PACKAGE.rglob("*.py"):
        here = path.relative_to(ROOT).with_suffix("").parts
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((".".join(here), alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = here[: len(here) - node.level] if node.level else ()
                start = [*above, *([node.module] if node.module else [])]
                yield from ((".".join(here), ".".join([*start, alias.name])) for alias in node.names)


def test_every_room_and_file_is_in_the_contract_once() -> None:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (contract["layers"] for contract in linter["contracts"] if contract["type"] == "layers")
    named = [name for layer in layers for name in re.findall(r"\w+", layer)]
    there = [
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    ]
    assert sorted(set(named)) == sorted(set(there) - {"__init__"})
    assert len(named) == len(set(named))


def test_no_room_imports_a_private_module_of_another(imports: list[tuple[str, str]]) -> None:
    """``_name`` is for the modules of its own folder."""
    assert imports
    entered = [
        (module, name)
        for module, name in imports
        for folder, private in re.findall(r"^(torchdata_ais(?:\.\w+?)*?)\.(_[a-z]\w*)", name)
        if (PACKAGE.parent / folder.replace(".", "/") / f"{private}.py").exists()
        and module.rpartition(".")[0] != folder
    ]
    assert not entered


def test_only_the_home_of_torchdata_imports_it(imports: list[tuple[str, str]]) -> None:
    importers = {module for module, name in imports if name.partition(".")[0] == "torchdata"}
    assert importers == {"torchdata_ais.dataloader2.torchdata_names"}


def test_worker_processes_know_nothing_of_the_loader_that_starts_them(imports: list[tuple[str, str]]) -> None:
    names = {
        name
        for module, name in imports
        if module.startswith("torchdata_ais.workers.") and name.startswith("torchdata_ais.")
    }
    packages = {name.split(".")[1] for name in names if not name.startswith("torchdata_ais.pipes.base.")}
    assert packages & {"dataloader2", "loaders", "pipes", "writing"} == set()
