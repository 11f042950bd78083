"""The commit-msg hook accepts imperative subjects of at most 72 characters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[2] / ".ci" / "commit_message"


def run(tmp_path: Path, message: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "message"
    file.write_text(message)
    return subprocess.run(
        [sys.executable, str(HOOK), str(file)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "message",
    [
        "Add dsort.spec\n",
        "Seed workers from the loader\n\nThe reason.\n",
        "Merge branch 'x' into main of a repository whose name is longer than all that is allowed here\n",
        "# a comment of git\nMove tables to _util\n",
        "A" + "d" * 71,
    ],
)
def test_imperative_subjects_pass(tmp_path: Path, message: str) -> None:
    done = run(tmp_path, message)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("", "is empty"),
        ("A" + "d" * 72, "73 characters"),
        ("The listing is made once\n", "begins with 'The'"),
        ("Added a test\n", "begins with 'Added'"),
        ("Moving files\n", "begins with 'Moving'"),
        ("add a test\n", "begins with 'add'"),
        ("Add a test; move another\n", "two parts"),
        ("Add a test.\n", "period"),
        ("Add a test\nof the loader\n", "second line"),
    ],
)
def test_other_subjects_fail_with_the_reason(tmp_path: Path, message: str, why: str) -> None:
    done = run(tmp_path, message)
    assert done.returncode == 1
    assert why in done.stderr
