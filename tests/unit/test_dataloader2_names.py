"""``torchdata_ais.dataloader2``: the one place to import DataLoader2 and its services from, whatever torchdata has."""

from __future__ import annotations

import subprocess
import sys
from multiprocessing import active_children
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_ais.dataloader2
from torchdata_ais import ais_loader
from torchdata_ais.workers.hooks import EnvelopeSender, EpochListener

THEIRS = ["DataLoader2", "DistributedReadingService", "InProcessReadingService", "SequentialReadingService"]

PROGRAM = """
import sys
import torchdata_ais.dataloader2 as room
assert "torchdata" not in sys.modules
assert dir(room) == room.__all__, dir(room)
for name in room.__all__:
    print(name, getattr(room, name).__module__.partition(".")[0])
"""


@pytest.fixture
def no_dataloader2(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under torchdata 0.10, which has none."""
    for name in THEIRS:
        monkeypatch.delattr(torchdata_ais.dataloader2, name)
    for name in ("loader", "torchdata_names"):
        monkeypatch.setitem(sys.modules, f"torchdata_ais.dataloader2.{name}", None)


def test_the_names_are_there_when_asked_for_and_no_banner_is_shown() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    homes = dict(line.split() for line in done.stdout.splitlines())
    assert done.stderr == ""
    ours = dict.fromkeys(["DataLoader2", "MultiProcessingReadingService"], "torchdata_ais")
    assert homes == {**dict.fromkeys(THEIRS, "torchdata"), **ours}


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="attribute Prefetcher"):
        _ = torchdata_ais.dataloader2.Prefetcher  # type: ignore[attr-defined]


def test_without_dataloader2_its_names_are_import_errors(no_dataloader2: None) -> None:
    with pytest.raises(ImportError):
        from torchdata_ais.dataloader2 import DataLoader2  # noqa: F401


@pytest.mark.parametrize("missing", [False, True])
def test_auto_is_dataloader2_where_there_is_one_and_torchs_loader_elsewhere(
    missing: bool, request: pytest.FixtureRequest
) -> None:
    if missing:
        request.getfixturevalue("no_dataloader2")
    with ais_loader(IterableWrapper(range(6)).sharding_filter(), num_workers=2) as loader:
        items = iter(loader)
        assert next(items) == 0
        ours = {"worker process 0", "worker process 1"} <= {child.name for child in active_children()}
        assert ours is not missing  # torch's loader leaves its workers the names that multiprocessing gives
        assert sorted(items) == [1, 2, 3, 4, 5]


def test_hooks_are_found_by_their_methods() -> None:
    class Listens:
        def _ais_reset(self, *, epoch: int, extras: Any) -> None: ...

    class Sends:
        def _ais_envelope(self) -> Any: ...

    pipe = IterableWrapper([])
    assert [isinstance(one, EpochListener) for one in (Listens(), Sends(), pipe)] == [True, False, False]
    assert [isinstance(one, EnvelopeSender) for one in (Listens(), Sends(), pipe)] == [False, True, False]
