"""The mutation gate itself: its table fits the code, and each outcome of a change has its own message."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import run_mutants


def test_the_table_fits_the_code() -> None:
    table = run_mutants.read_table()
    assert len(table) >= 150
    assert len({(change.file, change.old, change.new) for change in table}) == len(table)
    for change in table:
        assert change.old != change.new
        assert change.breaks
        assert change.tests
        missing = [
            test
            for test in change.tests
            if not (run_mutants.ROOT / "tests" / test.partition("::")[0]).exists()
        ]
        assert not missing, change


def test_a_text_that_is_not_there_once_is_an_error() -> None:
    change = run_mutants.Change("plan/steps.py", "no such text", "", "nothing", [])
    with pytest.raises(
        run_mutants.TableError, match=r"plan/steps\.py: 'no such text' is found 0 times, .*re-aim it"
    ):
        run_mutants.changed("text", change)
    with pytest.raises(run_mutants.TableError, match="found 2 times"):
        run_mutants.changed("a a", change._replace(old="a"))


ROW = '[[change]]\nfile = "plan/steps.py"\nold = "{}"\nnew = "{}"\nbreaks = "it"\ntests = ["unit/plan/test_steps.py"]\n'


@pytest.mark.ci
@pytest.mark.parametrize(
    ("old", "new", "status", "text"),
    [
        ("if not 1 <= self.ranks", "if not 0 <= self.ranks", 0, "1 of 1 changes noticed"),
        (
            "from __future__ import annotations",
            "from __future__ import  annotations",
            1,
            "survived: plan/steps.py",
        ),
        ("Tail = Literal", "raise SystemExit(3)  # ", 0, "1 of 1 changes noticed"),
        ("no such text", "", 2, "re-aim it"),
    ],
    ids=["noticed", "survived", "ends the process", "not there"],
)
def test_outcomes(tmp_path: Path, old: str, new: str, status: int, text: str) -> None:
    table = tmp_path / "table.toml"
    table.write_text(ROW.format(old, new))
    command = [sys.executable, run_mutants.__file__, "--jobs", "1", "--table", str(table)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, text in done.stdout) == (status, True), done.stdout + done.stderr
    assert "annotations" in (run_mutants.ROOT / "torchdata_ais/plan/steps.py").read_text(), (
        "the tree is not touched"
    )
