"""Typical user programs are typed: mypy (strict) and pyright pass the right ones and find the mistakes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "typing" / "user_programs.py"
EXPECTED = {
    (number, found[1])
    for number, line in enumerate(PROGRAMS.read_text().splitlines(), 1)
    if (found := re.search(r"# error: ([\w-]+)$", line))
}


def test_the_file_expects_mistakes() -> None:
    assert len(EXPECTED) >= 6


@pytest.mark.ci
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.version_info < (3, 10), reason="assert_type of unions")
def test_mypy_accepts_the_programs_and_finds_each_mistake(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--show-error-codes", "--no-error-summary"]
    command += ["--cache-dir", str(tmp_path), "--follow-imports=silent", "--ignore-missing-imports"]
    done = subprocess.run([*command, str(PROGRAMS)], cwd=ROOT, capture_output=True, text=True, timeout=280)
    found = {
        (int(line), code)
        for line, code in re.findall(
            r"user_programs\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE
        )
    }
    assert found == EXPECTED, done.stdout + done.stderr


def pyright(*arguments: str) -> list[dict[str, Any]]:
    """Return the errors that pyright finds."""
    pytest.importorskip("pyright")
    command = [sys.executable, "-m", "pyright"]
    first = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
    if first.returncode != 0:
        pytest.skip(f"pyright cannot start here: {first.stderr.strip()[-200:]}")  # it found no node.js
    command += ["--outputjson", "--pythonpath", sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    return [one for one in json.loads(done.stdout)["generalDiagnostics"] if one["severity"] == "error"]


@pytest.mark.ci
def test_pyright_agrees() -> None:
    lines = {entry["range"]["start"]["line"] + 1 for entry in pyright(str(PROGRAMS))}
    assert lines == {number for number, _ in EXPECTED}


@pytest.mark.ci
def test_pyright_passes_the_programs_of_the_guides(tmp_path: Path) -> None:
    """Libraries that are not here, names used again by the next block, and what a loop binds do not count."""
    for guide in [*(ROOT / "torchdata_ais" / "docs").glob("*.md"), ROOT / "README.md"]:
        blocks = re.findall(r"^```python\n(.*?)^```", guide.read_text(), re.MULTILINE | re.DOTALL)
        (tmp_path / f"guide_{guide.stem}.py").write_text("\n".join(blocks))
    rules = {
        f"report{name}": False
        for name in ("MissingImports", "MissingModuleSource", "Redeclaration", "PossiblyUnboundVariable")
    }
    settings = {"include": [str(tmp_path)], "extraPaths": [str(ROOT)], **rules}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    texts = [f"{Path(one['file']).name}: {one['message']}" for one in pyright("-p", str(tmp_path))]
    assert not texts, "\n".join(texts)
