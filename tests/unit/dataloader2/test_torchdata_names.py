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
from torchdata_ais.dataloader2 import torchdata_names
from torchdata_ais.workers.producer import EnvelopeSender, EpochListener

MODULES = ["adapter", "communication", "graph", "random"]

PROGRAM = """
import sys
import torchdata_ais.dataloader2 as room
assert "torchdata" not in sys.modules
assert dir(room) == room.__all__, dir(room)
for name in room.__all__:
    member = getattr(room, name)
    print(name, getattr(member, "__module__", "module").partition(".")[0])
"""


@pytest.mark.ci
def test_the_names_are_there_when_asked_for_and_no_banner_is_shown() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    homes = dict(line.split() for line in done.stdout.splitlines())
    assert done.stderr == ""
    assert [homes.pop(name) for name in MODULES] == ["module"] * 4
    assert homes.pop("MultiProcessingReadingService") == homes["DataLoader2"] == "torchdata_ais"
    homes["DataLoader2"] = homes["Prefetcher"]  # a class of ours over theirs
    # Either all are torchdata's or none is.
    assert set(homes.values()) == {"torchdata_ais" if torchdata_names.OWN else "torchdata"}
    assert {
        "DataLoader2",
        "ReadingServiceInterface",
        "DistributedReadingService",
        "Prefetcher",
    } < homes.keys()


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="attribute Cycler"):
        _ = torchdata_ais.dataloader2.Cycler  # type: ignore[attr-defined]


def test_ais_loader_runs_the_workers_of_this_package() -> None:
    with ais_loader(IterableWrapper(range(6)).sharding_filter(), num_workers=2) as loader:
        items = iter(loader)
        assert next(items) == 0
        # torch's loader leaves its workers the names that multiprocessing gives.
        assert {"worker process 0", "worker process 1"} <= {child.name for child in active_children()}
        assert sorted(items) == [1, 2, 3, 4, 5]


def test_hooks_are_found_by_their_methods() -> None:
    class Listens:
        def _ais_reset(self, *, epoch: int, extras: Any) -> None: ...

    class Sends:
        def _ais_envelope(self) -> Any: ...

    pipe = IterableWrapper([])
    assert [isinstance(one, EpochListener) for one in (Listens(), Sends(), pipe)] == [True, False, False]
    assert [isinstance(one, EnvelopeSender) for one in (Listens(), Sends(), pipe)] == [False, True, False]
