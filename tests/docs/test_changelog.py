"""The changelog names what users can call, and the metadata of the project claims what was tried."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import torchdata_ais
from torchdata_ais.cli import app

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CHANGELOG.md").read_text()
CODE = " ".join(re.findall(r"`([^`]+)`", TEXT))
WORDS = set(re.findall(r"[\w-]+", CODE))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def missing(names: list[str]) -> list[str]:
    return [name for name in names if name not in WORDS]


def test_every_public_name_stands_in_it() -> None:
    names = []
    for name in torchdata_ais.__all__:
        value = getattr(torchdata_ais, name)
        names.append(getattr(value, "functional_name", "") or name)
    assert not missing([name for name in names if name != "__version__"])


@pytest.mark.parametrize("package", ["jobs.etl", "index.build", "testing", "pytest_plugin"])
def test_every_public_function_of_a_package_is_named(package: str) -> None:
    module = importlib.import_module(f"torchdata_ais.{package}")
    assert f"torchdata_ais.{package}" in CODE
    assert not missing([name for name in module.__all__ if name.islower()])


def test_every_command_stands_in_it() -> None:
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        assert name in WORDS, name
        for inner in getattr(command, "commands", {}):
            assert f"{name} {inner}" in CODE


def test_every_extra_of_users_stands_in_it() -> None:
    extras = set(PROJECT["optional-dependencies"]) - {"test", "bench", "notebooks", "guides", "dev"}
    assert not missing(sorted(extras))


@pytest.mark.parametrize(
    "package",
    ["observe.display", "jobs.dsort", "jobs.etl", "index", "local", "plan", "webdataset", "writing"],
)
def test_a_package_that_users_import_is_there_by_name_or_by_its_names(package: str) -> None:
    module = importlib.import_module(f"torchdata_ais.{package}")
    named = f"torchdata_ais.{package}" in CODE
    assert named or set(module.__all__) & WORDS


def test_no_place_is_named_that_does_not_exist() -> None:
    assert "urls" not in PROJECT


def test_the_classifiers_claim_the_system_and_the_pythons_that_are_tried() -> None:
    classifiers = PROJECT["classifiers"]
    systems = [entry for entry in classifiers if entry.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux"]
    pythons = set(re.findall(r":: (3\.\d+)", " ".join(classifiers)))
    tried = set(re.findall(r"\b3\.\d+", (ROOT / ".ci/versions").read_text()))
    assert pythons <= tried
