"""Wheel and sdist build, hold what they must and nothing else, and the wheel works without this folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
pytestmark = [pytest.mark.ci, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
BUILD = "import sys, hatchling.build as b; b.build_wheel(sys.argv[1]); b.build_sdist(sys.argv[1])"
PROGRAM = """
import json
from importlib import metadata, resources

import torchdata_ais

guides = [path.name for path in (resources.files("torchdata_ais") / "docs").iterdir()]
version = metadata.version("torchdata-ais") == torchdata_ais.__version__
print(json.dumps({"file": torchdata_ais.__file__, "version": version, "guides": guides}))
"""
MODULE = "tests/unit/pipes/test_group_samples.py"
README = "tests/docs/test_readme.py::test_the_python_blocks_print_what_stands_under_them"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, check=True, timeout=120)
    return folder


def files_of(folder: Path) -> set[str]:
    """Return the files of the package as they stand in the working tree."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (folder / "torchdata_ais").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {name for name in names if ".dist-info/" not in name}
    assert package == files_of(ROOT)
    for name in ("py.typed", "pipes/base/methods.pyi", "local/server/__main__.py", "docs/errors.md"):
        assert f"torchdata_ais/{name}" in package


def test_the_metadata_names_commands_licence_and_readme(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        texts = {name.rpartition("/")[2]: name for name in archive.namelist() if ".dist-info/" in name}
        metadata = archive.read(texts["METADATA"]).decode()
        commands = archive.read(texts["entry_points.txt"]).decode()
    assert "torchdata-ais = torchdata_ais.cli:main" in commands
    for line in ("Name: torchdata-ais", "License-Expression: MIT", "Requires-Python: >=3.10"):
        assert line in metadata.splitlines()
    assert "Classifier: Typing :: Typed" in metadata
    assert "## From a folder" in metadata, "the README is the description"
    assert "](torchdata_ais/" not in metadata, "relative links lead nowhere on a package index"
    assert "LICENSE" in texts


def test_the_sdist_holds_what_is_needed_to_build_and_test_and_no_data_of_others(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "PKG-INFO",
        "tests/conftest.py",
    } <= names
    assert {name for name in names if name.startswith("torchdata_ais/")} == files_of(ROOT)
    folders = {name.partition("/")[0] for name in names if "/" in name}
    assert folders <= {"torchdata_ais", "tests", "benchmarks", "docs", "notebooks", ".ci", ".github"}
    assert sdist.stat().st_size < 5e6


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment with the wheel: its own package, the libraries of the one that runs this."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    # A line of a .pth file adds that folder only, not what its own .pth files name: an editable install stays out.
    libraries = sysconfig.get_path("purelib")
    (site_packages(folder) / "libraries.pth").write_text(f"{libraries}\n")
    (wheel,) = built.glob("*.whl")
    command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*command, "--ignore-installed", wheel], check=True, timeout=60)
    return folder


def site_packages(venv: Path) -> Path:
    (found,) = venv.glob("lib/python*/site-packages")
    return found


def run(command: list[Path | str], cwd: Path) -> str:
    """Run a command outside of the source tree, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment.pop("AIS_ENDPOINT", None)
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_installed_wheel_is_what_is_imported_with_its_guides(installed: Path, tmp_path: Path) -> None:
    answer = json.loads(run([installed / "bin" / "python", "-c", PROGRAM], tmp_path))
    assert Path(answer["file"]).is_relative_to(site_packages(installed))
    assert answer["version"]
    assert "errors.md" in answer["guides"]
    assert run([installed / "bin" / "torchdata-ais", "--version"], tmp_path).strip()


def test_readme_and_tests_pass_with_the_installed_wheel(built: Path, installed: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    shutil.rmtree(folder / "torchdata_ais")  # so that nothing but the wheel can be meant
    python = installed / "bin" / "python"
    said = run([python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", README, MODULE], folder)
    assert re.search(r"\d\d passed", said), said
