"""What the tests leave behind, found when all of them are over: processes, temporary files, shared memory.

The processes that run the tests get a temporary folder of the session, by ``TMPDIR``. So whatever they leave in it is
theirs, and a process with that folder in its environment was started by one of them, even if its parent is gone.
Shared memory in ``/dev/shm`` bears no such mark: there it is what is new and in nobody's address space.

Runs in the process that runs no tests itself: with ``-n 0`` there is none, and nothing is looked at.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest

PATIENCE_S = 30
"""How long processes that were told to end may take to do so, on a machine that is busy."""

NOT_OURS = ("torchinductor_", "torchelastic_", "pytest-of-", "pymp-")
"""torch's own: its cache of compiled code and the logs of torchrun, which it keeps on purpose; pytest's, of a run
within a run; and multiprocessing's folder of a process, which one that is killed cannot remove."""

PROC, SHARED = Path("/proc"), Path("/dev/shm")


class LeftBehind:
    """One session's folder, and what is in the way when it is over."""

    def __init__(self) -> None:
        tempfile.gettempdir()  # known before it changes: pytest's own folders, which are kept, stay there
        self.folder = tempfile.mkdtemp(prefix="ais-")
        self.shared = set(names(SHARED))
        self.found: list[str] = []
        os.environ["TMPDIR"] = self.folder

    @pytest.hookimpl(trylast=True)  # the processes that ran tests have ended by then
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        end = time.monotonic() + PATIENCE_S
        while (alive := started_with(f"TMPDIR={self.folder}")) and time.monotonic() < end:
            time.sleep(0.1)
        mapped = "".join(text(process / "maps") for process in processes())
        new = [name for name in names(SHARED) if name not in self.shared]
        self.found = [
            *(f"process {line}" for line in alive),
            *(
                f"file {self.folder}/{name}"
                for name in names(Path(self.folder))
                if not name.startswith(NOT_OURS)
            ),
            *(f"shared memory {name}" for name in new if f"{SHARED / name}\n" not in mapped),
        ]
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.found and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.found:
            terminalreporter.section("the tests left something behind", red=True, bold=True)
            for line in self.found:
                terminalreporter.line(line)


@pytest.fixture(autouse=True)
def _folder_of_a_doctest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an example that makes a temporary folder make it among pytest's own: it would not remove it."""
    if isinstance(request.node, pytest.DoctestItem):
        folder = request.getfixturevalue("tmp_path_factory").mktemp("doctest")
        monkeypatch.setattr(tempfile, "tempdir", str(folder))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def processes() -> list[Path]:
    return [PROC / name for name in names(PROC) if name.isdecimal()]


def text(path: Path) -> str:
    """Return what a file of /proc says, or "" where its process is gone or another user's."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def started_with(setting: str) -> list[str]:
    """Return number and command of each process that has `setting` in the environment it began with."""
    return [
        f"{process.name}: {text(process / 'cmdline').replace(chr(0), ' ')[:200]}"
        for process in processes()
        if f"{setting}\0" in text(process / "environ")
    ]


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("tx", None) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(LeftBehind(), "left_behind_session")
