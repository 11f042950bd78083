import gc
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby

import pytest
import torch.utils.data
import typer.testing
from hypothesis import settings

pytest_plugins = ["torchdata_ais.pytest_plugin", "helpers.leftovers"]

# Programs that tests run in interpreters of their own: importing them for their doctests would run them here.
collect_ignore_glob = ["*/*_program.py", "upstream/own/*"]

# A shell turns Ctrl-C off for what it starts in the background, and all that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# torch's store asks for the name of each peer: a resolver that is slow to say that there is none would cost seconds.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

# So long torch's DataLoader waits for a worker that has sent it an exception, and only then ends it; of itself, 5 s.
torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.5

# typer builds all commands again for each call of one; built once, they serve all calls of a process.
typer.testing._get_command = cache(typer.main.get_command)

# The same examples in every run, so that a change that breaks nothing fails nothing; `.ci/run` asks for "fresh" ones,
# and for a "few" where it looks at the order of tests; `.ci/stress` for "all".
settings.register_profile("few", derandomize=True, deadline=None, max_examples=5)
settings.register_profile("fresh", derandomize=False, deadline=None, print_blob=True, max_examples=50)
settings.register_profile("all", derandomize=False, deadline=None, print_blob=True, max_examples=100)
settings.register_profile("same", derandomize=True, deadline=None, max_examples=30)
settings.load_profile("same")


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is marked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all cases of a test `ci` but the few, spread evenly, that its mark `quick` asks for."""
    for _, group in groupby(items, lambda item: item.nodeid.partition("[")[0]):
        cases = [item for item in group if item.get_closest_marker("ci") is None]
        if not cases or (mark := cases[0].get_closest_marker("quick")) is None:
            continue
        (few,) = mark.args
        kept = {place * len(cases) // few for place in range(few)}
        for place, case in enumerate(cases):
            if place not in kept:
                case.add_marker("ci")


@pytest.fixture(scope="module", autouse=True)
def _quick_collections() -> None:
    """Leave what earlier files keep in memory out of collections, which would take most of a second each.

    Tests that look for leaks ask for many, and workers that are forked share with us the pages that none has touched.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let libraries clean up at the end: some report what was left out of collections as leaks."""
    gc.unfreeze()


@pytest.fixture
def no_known_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test hides stays hidden in this test only."""
    from torchdata_ais.errors import redaction

    monkeypatch.setattr(redaction, "_known", {})
    monkeypatch.setattr(redaction, "_known_forms", None)


@pytest.fixture(scope="module")
def files_left_open() -> Iterator[None]:
    """For tests of webdataset, which closes no shard: the collector does so here, where nobody is blamed for it."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture
def threads_left() -> Callable[[], list[str]]:
    """Returns the names of threads that the test has started and that do not end within a minute."""
    gc.collect()  # an iterator that an earlier test did not finish ends its threads now
    before = set(threading.enumerate())

    def left() -> list[str]:
        deadline = time.monotonic() + 60
        while (new := set(threading.enumerate()) - before) and time.monotonic() < deadline:
            time.sleep(0.02)
        return sorted(thread.name for thread in new)

    return left
