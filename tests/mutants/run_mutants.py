"""Runner of the mutation gate: apply one-line changes to a copy of the tree, and see that tests notice them.

    python tests/mutants/run_mutants.py                       all changes of table.toml
    python tests/mutants/run_mutants.py --fixed --changed     a fixed few, and those of files of the last commit
    python tests/mutants/run_mutants.py --only plan/order.py  those of files with this text in the name

The exit status is 1 if the tests of a change pass (it survives), 2 if the table does not fit the code.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("table.toml")
COPIED = (
    "torchdata_ais",
    "tests",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
)

IMPORTED = (
    "aistore", "hypothesis", "msgspec", "numpy", "PIL.Image", "pyarrow", "pytest", "requests", "torch",
    "torch.distributed", "torch.utils.data", "torchdata", "typer.testing", "webdataset", "xxhash",
)  # fmt: skip
"""Slow imports that no change touches: done once, before the processes of the changes are forked."""

LIMIT_S = 120.0
"""Time for the tests of one change. Past it the change counts as noticed: a hang."""

MOST_CHANGED = 20
"""How many changes of files of the last commit ``--changed`` runs at most."""

NOTICED, SURVIVED, WRONG = "noticed", "survived", "wrong"
_FAILED_ITSELF = 77


class TableError(Exception):
    """A row of the table that does not fit the code."""


class Change(NamedTuple):
    """A change of one line.

    Args:
        file: Its module, below ``torchdata_ais/``.
        old: Text that is there exactly once.
        new: Text that takes its place.
        breaks: What it breaks.
        tests: Tests that notice it: files or node ids below ``tests/``.
        fixed: Whether ``.ci/run`` always runs it.
        equivalent: Why nothing can notice it; it is not run.
    """

    file: str
    old: str
    new: str
    breaks: str
    tests: list[str]
    fixed: bool = False
    equivalent: str = ""


@dataclass
class Copy:
    """A copy of the tree, and the process that runs in it."""

    folder: Path
    change: Change | None = None
    pid: int = 0
    end: float = 0.0
    text: str = field(default="", repr=False)

    def begin(self, change: Change) -> None:
        """Apply `change`, and fork a process that runs its tests."""
        path = self.folder / "torchdata_ais" / change.file
        self.change, self.text = change, path.read_text()
        path.write_text(changed(self.text, change))
        self.end = time.monotonic() + LIMIT_S
        self.pid = os.fork()
        if not self.pid:
            code = _FAILED_ITSELF
            try:  # nothing of the parent's stack may run here
                code = tests_of(self.folder, change)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    def poll(self) -> str | None:
        """Return what became of the change, or None while its tests run; then the copy is as it was."""
        assert self.change is not None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        late = time.monotonic() > self.end
        if not pid and not late:
            return None
        if not pid:
            self.kill()
        (self.folder / "torchdata_ais" / self.change.file).write_text(self.text)
        code = os.waitstatus_to_exitcode(status) if pid else 1
        # pytest: 0 all passed, 1 some failed, 2 not collected (the module fails), 4 and 5 no such test.
        if code == _FAILED_ITSELF and "PytestUnraisableExceptionWarning" in self.output():
            return NOTICED  # a failed test left something open
        return {0: SURVIVED, 4: WRONG, 5: WRONG, _FAILED_ITSELF: WRONG}.get(code, NOTICED)

    def output(self) -> str:
        """Return the last lines of the tests."""
        path = self.folder / "output.txt"
        return path.read_text(errors="replace")[-600:] if path.exists() else ""

    def kill(self) -> None:
        """End the process, and those that it has started."""
        for end in (os.killpg, os.kill):  # it may not lead a group yet
            with suppress(ProcessLookupError):
                end(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def changed(text: str, change: Change) -> str:
    """Return `text` with the change, or raise `TableError` unless its old text is there exactly once."""
    if (count := text.count(change.old)) != 1:
        raise TableError(f"{change.file}: {change.old!r} is found {count} times, expected once: re-aim it")
    return text.replace(change.old, change.new)


def tests_of(folder: Path, change: Change) -> int:
    """Run the tests of a change in this process, a forked one, and return pytest's exit code."""
    os.setsid()
    os.chdir(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(folder / "tests")])
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # two texts of one size and second would share compiled code
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(folder), str(folder / "tests")]
    out = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    import pytest

    chosen = [f"tests/{test}" for test in change.tests]
    return int(
        pytest.main(
            [
                "-q",
                "-x",
                "-n",
                "0",
                "-m",
                "not slow",
                "-p",
                "no:cacheprovider",
                "--timeout=60",
                "-W",
                "ignore::pytest.PytestAssertRewriteWarning",
                *chosen,
            ]
        )
    )


def read_table(path: Path = TABLE) -> list[Change]:
    """Return the changes of a table. Each must fit the code."""
    rows = [Change(**row) for row in tomllib.loads(path.read_text())["change"]]
    for row in rows:
        changed((ROOT / "torchdata_ais" / row.file).read_text(), row)
    return rows


def changed_files() -> set[str]:
    """Return the modules that the last commit changed, or the branch that it merged; none without git."""
    done = subprocess.run(
        ["git", "diff", "--name-only", "HEAD^1", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        name.removeprefix("torchdata_ais/")
        for name in done.stdout.split()
        if name.startswith("torchdata_ais/")
    }


def copy_tree(folder: Path) -> Copy:
    """Copy what tests read to `folder`."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis")
            )
        else:
            shutil.copy2(ROOT / name, folder / name)
    return Copy(folder)


def outcomes(changes: list[Change], copies: list[Copy]) -> Iterator[tuple[Change, str, str]]:
    """Yield each change with what became of it, and the last lines of its tests."""
    waiting = list(reversed(changes))
    running: list[Copy] = []
    try:
        while waiting or running:
            while waiting and len(running) < len(copies):
                free = next(copy for copy in copies if copy not in running)
                free.begin(waiting.pop())
                running.append(free)
            time.sleep(0.02)
            for copy in list(running):
                if (outcome := copy.poll()) is not None:
                    running.remove(copy)
                    assert copy.change is not None
                    yield (
                        copy.change,
                        outcome,
                        (copy.folder / "output.txt").read_text(errors="replace")[-600:],
                    )
    finally:
        for copy in running:
            copy.kill()


def main() -> int:
    """Run the chosen changes, and print the survivors."""
    parser = argparse.ArgumentParser(description="Mutation gate.")
    parser.add_argument("--fixed", action="store_true", help="the fixed few")
    parser.add_argument("--changed", action="store_true", help="those of files that the last commit changed")
    parser.add_argument("--only", default="", help="those of files with this text in the name")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    parser.add_argument("--table", type=Path, default=TABLE, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    try:
        table = [one for one in read_table(chosen.table) if chosen.only in one.file]
    except TableError as error:
        print(error)
        return 2
    changes = [one for one in table if not one.equivalent]
    if chosen.fixed or chosen.changed:
        files = changed_files() if chosen.changed else set()
        more = [one for one in changes if one.file in files and not one.fixed][:MOST_CHANGED]
        changes = [one for one in changes if one.fixed and chosen.fixed] + more
    for name in IMPORTED:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    started, failed = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [copy_tree(Path(folder, str(number))) for number in range(min(chosen.jobs, len(changes)))]
        for number, (change, outcome, output) in enumerate(outcomes(changes, copies), 1):
            if outcome != NOTICED:
                failed += 1
                print(
                    f"{outcome}: {change.file}: {change.old!r} -> {change.new!r} ({change.breaks})\n{output}"
                )
            elif sys.stdout.isatty():
                print(f"\r{number}/{len(changes)}", end="", flush=True)
    print(
        f"{len(changes) - failed} of {len(changes)} changes noticed, {len(table) - len(changes)} not run,",
        end=" ",
    )
    print(f"in {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
