"""Wheel and sdist build, hold what they must and nothing else, and the wheel works without this folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
pytestmark = pytest.mark.timeout(180)

ROOT = Path(__file__).parents[2]
BUILD = "import sys, hatchling.build as b; b.build_wheel(sys.argv[1]); b.build_sdist(sys.argv[1])"
PROGRAM = """
import json, sys
from importlib import metadata, resources

import torchdata_ais
from torchdata_ais import AISSourceLister, LocalCluster, ais_loader
from torchdata_ais.testing import shard_bytes

with LocalCluster(targets=1) as cluster:
    bucket = cluster.client().bucket("b").create()
    bucket.object("s.tar").get_writer().put_content(shard_bytes({"a.cls": b"1", "b.cls": b"2"}))
    pipe = AISSourceLister("ais://b", endpoint=cluster.endpoint).load_tar().group_samples().decode().to_tuple("cls")
    with ais_loader(pipe.batched(2), num_workers=1) as loader:
        got = [batch[0].tolist() for batch in loader]
guides = [path.name for path in (resources.files("torchdata_ais") / "docs").iterdir()]
print(json.dumps({"file": torchdata_ais.__file__, "version": torchdata_ais.__version__, "got": got, "guides": guides}))
"""


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
    for name in (
        "py.typed",
        "pipes/_methods.pyi",
        "local/server/__main__.py",
        "docs/errors.md",
        "CHANGELOG.md",
    ):
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
    assert "## The chain" in metadata, "the README is the description"
    assert "LICENSE" in texts


def test_the_sdist_holds_what_is_needed_to_build_and_test_and_no_data_of_others(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO", "tests/conftest.py"} <= names
    assert {name for name in names if name.startswith("torchdata_ais/")} == files_of(ROOT)
    folders = {name.partition("/")[0] for name in names if "/" in name}
    assert folders <= {"torchdata_ais", "tests", "benchmarks", "notebooks", ".ci"}
    assert sdist.stat().st_size < 5e6


def test_the_wheel_works_by_itself(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    environment.pop("AIS_ENDPOINT", None)
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "site" / "torchdata_ais") in done.stdout
    assert '"got": [[1, 2]]' in done.stdout
    assert "errors.md" in done.stdout
