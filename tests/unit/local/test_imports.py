"""The embedded cluster stands apart: it needs the errors only, nobody needs it, and no import pays for it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import torchdata_ais

ROOT = Path(__file__).parents[3]
PACKAGE = Path(torchdata_ais.__file__).parent

LOADED = """
import sys
import torchdata_ais.cli.checks, torchdata_ais.loaders, torchdata_ais.writing, torchdata_ais.webdataset
print(*(name for name in sys.modules if name.startswith("torchdata_ais.local")))
"""
SERVER = """
import runpy, sys
runpy.run_path(sys.argv[1], run_name="program")["load"]()
print(*(name for name in sys.modules if name.split(".")[0] in ("torchdata_ais", "torch", "aistore", "numpy")))
"""


def printed(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.ci
def test_no_import_loads_it() -> None:
    assert printed("import sys, torchdata_ais" + LOADED) == ""


def test_its_process_loads_nothing_of_the_package_and_no_torch() -> None:
    assert printed(SERVER, str(PACKAGE / "local" / "server" / "__main__.py")) == ""


def test_it_imports_nothing_of_the_package_but_the_errors() -> None:
    texts = [path.read_text() for path in (PACKAGE / "local").rglob("*.py")]
    code = [re.sub(r'""".*?"""', "", text, flags=re.DOTALL) for text in texts]
    packages = {
        package for text in code for package in re.findall(r"(?:from|import) torchdata_ais\.(\w+)", text)
    }
    assert packages == {"errors"}


def test_no_file_of_it_imports_itself_through_others() -> None:
    files = {path.stem: ast.parse(path.read_text()) for path in (PACKAGE / "local" / "server").glob("*.py")}
    graph = {}
    for name, tree in files.items():
        found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1]
        named = {(node.module or alias.name).split(".")[0] for node in found for alias in node.names}
        graph[name] = named & files.keys()
    assert "state" in graph["routes"]
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_it_has_a_section_of_its_own_in_the_readmes() -> None:
    assert "](torchdata_ais/local/README.md)" in (ROOT / "README.md").read_text()
    assert "](../local/README.md)" in (PACKAGE / "docs" / "README.md").read_text()
