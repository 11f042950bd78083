"""What the tests leave behind, found when all of them are over: processes, temporary files, shared memory.

The processes that run the tests get a temporary folder of the session, by ``TMPDIR``, and each test one in that. So
whatever is left in it is the test's, and a process with that folder in its environment was started by one of them, even
if its parent is gone. Of a test that kills programs (``@pytest.mark.kills``) files may be left, not processes: who is
killed removes nothing. Shared memory in ``/dev/shm`` bears no such mark: there it is what is new and in nobody's
address space.

Runs in the process that runs no tests itself: with ``-n 0`` there is none, and nothing is looked at.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing.util
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from xdist.workermanage import NodeManager

from torchdata_ais.local import LocalCluster

PATIENCE_S = 30
"""How long processes that were told to end may take to do so, on a machine that is busy."""

SEMAPHORE = re.compile(r"sem\.([A-Za-z0-9]{6}|mp-\w{8})")
"""One that is not whole yet, and one of multiprocessing, which removes its name at once, or has its tracker do so: only
who is killed in between leaves it, and of others that tracker itself tells."""

TORCH_MEMORY = re.compile(r"torch_(\d+)_\d+_\d+")
"""Shared memory of torch, by process: it is unlinked right after it is made, so a process killed in between leaves one
name, at most."""

NOT_OURS = ("torchinductor_", "torchelastic_", "pytest-of-", "pymp-")
"""torch's own: its cache of compiled code and the logs of torchrun, which it keeps on purpose; pytest's, of a run
within a run; and multiprocessing's folder of a process, which one that is killed cannot remove."""

OF_A_TEST = ".test"
"""How the name of a test's folder ends."""

ENDS_WITH_US = ("from multiprocessing.resource_tracker import", "from multiprocessing.forkserver import")
"""Helpers of multiprocessing, which live as long as the process that runs the tests (with `-n 0`)."""

PROC, SHARED = Path("/proc"), Path("/dev/shm")


class LeftBehind:
    """One session's folder, and what is in the way when it is over."""

    def __init__(self, *, in_this_process: bool) -> None:
        # A process removes its folder of sockets when it ends: the one that ran tests itself has not ended yet.
        self.exempt = (*NOT_OURS, "torchdata_ais-") if in_this_process else NOT_OURS
        tempfile.gettempdir()  # known before it changes: pytest's own folders, which are kept, stay there
        self.folder = tempfile.mkdtemp(prefix="ais-")
        self.shared = set(names(SHARED))
        self.found: list[str] = []
        os.environ["TMPDIR"] = self.folder

    @pytest.hookimpl(trylast=True)  # the processes that ran tests have ended by then
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        end = time.monotonic() + PATIENCE_S
        while (alive := started_with("TMPDIR", self.folder)) and time.monotonic() < end:
            time.sleep(0.1)
        self.found = [
            *(f"process {line}" for line in alive),
            *(
                f"file {folder / name}"
                for folder in (Path(self.folder), *Path(self.folder).glob(f"*{OF_A_TEST}"))
                for name in names(folder)
                if not name.startswith(self.exempt) and not name.endswith(OF_A_TEST)
            ),
            *(f"shared memory {name}" for name in shared_memory_left(self.shared)),
        ]
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.found and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.found:
            terminalreporter.section("the tests left something behind", red=True, bold=True)
            for line in self.found:
                terminalreporter.line(line)


@pytest.fixture(scope="session", autouse=True)
def _folder_of_pytest(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have pytest choose its folder before the first test, which changes where temporary files are made."""
    tmp_path_factory.getbasetemp()


@pytest.fixture(autouse=True)
def _folder_of_the_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have each test and the programs it starts make their temporary files in a folder with the test's name."""
    if isinstance(request.node, pytest.DoctestItem):  # an example does not remove its folder: pytest keeps it
        folder = request.getfixturevalue("tmp_path_factory").mktemp("doctest")
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        yield
        return
    # Sockets are made in there, and their names have 107 bytes at most.
    made = tempfile.mkdtemp(
        prefix=f"{request.node.name.removeprefix('test_')[:24].replace('/', '_')}-",
        suffix=OF_A_TEST,
        dir=os.environ.get("TMPDIR"),  # the session's, also in the process that has asked `tempfile` before
    )
    monkeypatch.setenv("TMPDIR", made)
    monkeypatch.setattr(tempfile, "tempdir", made)
    yield
    if request.node.get_closest_marker("kills"):
        shutil.rmtree(made, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):  # not empty: the session tells
            Path(made).rmdir()


@pytest.fixture(scope="session")
def ais_local_cluster(ais_local_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The session's embedded cluster, whose buckets `_state_of_the_module` watches."""
    _watched.append(ais_local_cluster)
    yield ais_local_cluster
    _watched.clear()


_watched: list[LocalCluster] = []


def _buckets() -> set[str]:
    found = [one.name for cluster in _watched for one in cluster.client().cluster().list_buckets()]
    return {name for name in found if not name.startswith(".")}  # the cluster makes those itself


def _settings() -> dict[str, Any]:
    """Return what a test may set for its process, and must set back."""
    return {
        "working folder": Path.cwd(),
        "environment": {name: value for name, value in os.environ.items() if name.startswith(_READ_BY_US)},
        "import path": [entry for entry in sys.path if "pytest-of-" in entry],
        "signal handlers": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)},
        "threads of torch": torch.get_num_threads(),
        "default type of torch": torch.get_default_dtype(),
        "process group": torch.distributed.is_initialized(),
        "levels of loggers": {
            name: logger.level
            for name, logger in logging.root.manager.loggerDict.items()
            if name.startswith("torchdata_ais") and isinstance(logger, logging.Logger) and logger.level
        },
    }


_READ_BY_US = ("AIS_", "GOPEN", "WDS_", "RANK", "WORLD_SIZE", "LOCAL_", "TORCHDATA", "SSL_", "REQUESTS_")
"""Beginnings of variables that this package and the SDK read; other libraries set theirs when they are imported."""


@pytest.fixture(scope="module", autouse=True)
def _state_of_the_module() -> Iterator[None]:
    """Fail where the tests of a file leave buckets or settings to those of the next one."""
    buckets, settings = _buckets(), _settings()
    yield
    left = _buckets() - buckets
    for cluster in _watched:
        for name in left:
            cluster.client().bucket(name).delete(missing_ok=True)
    changed = {
        name: (value, settings[name]) for name, value in _settings().items() if value != settings[name]
    }
    assert not left, f"buckets were left in the cluster of the session: {sorted(left)}"
    assert not changed, f"settings were left: {changed}"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def shared_memory_left(before: set[str]) -> list[str]:
    """Return the names of shared memory that came since, is in no address space, and of no killed process."""
    mapped = "".join(text(process / "maps") for process in processes())
    new = [name for name in names(SHARED) if name not in before]
    return [
        name
        for name in new
        if f"{SHARED / name}\n" not in mapped
        and not SEMAPHORE.fullmatch(name)
        and not of_a_killed_process(name, new)
    ]


def of_a_killed_process(name: str, new: list[str]) -> bool:
    """Return whether `name` is the only shared memory of torch that a process which has ended left in `new`."""
    found = TORCH_MEMORY.match(name)
    if not found or (PROC / found[1]).exists():
        return False
    return sum(other.startswith(f"torch_{found[1]}_") for other in new) == 1


def processes() -> list[Path]:
    return [PROC / name for name in names(PROC) if name.isdecimal()]


def text(path: Path) -> str:
    """Return what a file of /proc says, or "" where its process is gone or another user's."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def started_with(variable: str, folder: str) -> list[str]:
    """Return number and command of each process that began with `folder`, or one in it, in an environment variable."""
    mine = re.compile(rf"(^|\0){variable}={re.escape(folder)}[/\0]")
    return [
        f"{process.name}: {text(process / 'cmdline').replace(chr(0), ' ')[:200]}"
        for process in processes()
        if mine.search(text(process / "environ"))
        and not any(helper in text(process / "cmdline") for helper in ENDS_WITH_US)
    ]


def pytest_configure(config: pytest.Config) -> None:
    runs_tests = hasattr(config, "workerinput") or not config.getoption("tx", None)
    if runs_tests:
        multiprocessing.util.get_temp_dir()  # not one test's, and in its folder names of sockets are too long
    if not runs_tests:  # after 10 s it kills those that run them, which then remove no folder
        NodeManager.EXIT_TIMEOUT = PATIENCE_S
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(LeftBehind(in_this_process=runs_tests), "left_behind_session")


def descriptors(folder: Path) -> int:
    """Return how many files below a folder this process has open."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # another thread may close it meanwhile
            links.append(str(path.readlink()))
    return sum(link.startswith(str(folder)) for link in links)
