"""pip finds versions of everything for this package next to others. Nothing is installed.

``.ci/stress`` runs them: what they ask changes with the index of packages, not with the code.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PIP, *arguments], capture_output=True, text=True, timeout=350)


@pytest.fixture(scope="module", autouse=True)
def _an_index() -> None:
    if run("index", "versions", "aistore").returncode:
        pytest.skip("pip reaches no index of packages")


@pytest.mark.parametrize(
    "others",
    [["megatron-energon", "multi-storage-client"], ["megatron-energon", "aistore<2"], ["torchdata>=0.11"]],
    ids=" ".join,
)
def test_it_installs_beside(others: list[str], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ["--dry-run", "--quiet", "--ignore-installed", "--no-build-isolation"]  # hatchling is here
    done = run("install", *options, "--report", str(report), str(ROOT), *others)
    assert done.returncode == 0, done.stderr
    chosen: dict[str, Any] = {
        one["metadata"]["name"].lower(): one["metadata"]["version"]
        for one in json.loads(report.read_text())["install"]
    }
    assert {"torchdata-ais", "torchdata", "aistore"} <= chosen.keys()
