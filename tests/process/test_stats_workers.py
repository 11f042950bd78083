"""Counts of worker processes, and stalls in them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import AISSourceLister, MultiProcessingReadingService, ais_loader, stats
from torchdata_ais.dataloader2 import DataLoader2
from torchdata_ais.errors import AISError, StallError
from torchdata_ais.testing import example_shards


def chain() -> Any:
    return AISSourceLister(example_shards()).shuffle().load_tar().group_samples().decode()


def hang_at_the_fourth(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["__key__"].endswith("3"):
        time.sleep(50)
    return sample


def fail_once(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["__key__"].endswith("3"):
        raise ZeroDivisionError("bad sample")
    return sample


@pytest.mark.quick(2)
@pytest.mark.parametrize("tail", ["batched", "batch"])
def test_counts_of_all_workers_and_epochs_are_added(tail: str) -> None:
    pipe = getattr(chain(), tail)(2)
    with ais_loader(pipe, num_workers=2) as loader:
        batches = 0
        for epochs in (1, 2):
            batches += len(list(loader))
            report = stats(loader)
            assert (report["decode"].items, report[tail].items) == (6 * epochs, batches)
            assert report.processes == 2
    assert loader.stats()["decode"].items == 12
    assert loader.stats().processes == 2
    assert "worker time" in loader.stats().advice


@pytest.mark.parametrize("tail", ["batched", "batch"])
def test_dataloader2_with_this_packages_service_has_stats(tail: str) -> None:
    service = MultiProcessingReadingService(2)
    with DataLoader2(getattr(chain(), tail)(2), reading_service=service) as loader:
        list(loader)
        assert stats(loader)["decode"].items == 6
        assert stats(loader).sending_s > 0


def test_dataloader2_without_workers_has_stats() -> None:
    with DataLoader2(chain(), reading_service=MultiProcessingReadingService(0)) as loader:
        list(loader)
        assert stats(loader)["decode"].items == 6


def test_skips_in_workers_are_named_after_an_error_too() -> None:
    pipe = chain().map_sample(fail_once, on_error="skip").batched(1)
    with ais_loader(pipe, num_workers=2) as loader:
        assert len(list(loader)) == 5
        report = loader.stats()
    assert report.skipped == {"ZeroDivisionError": 1}
    assert "00003" in report["map_sample"].examples[0]


def test_a_loader_that_failed_can_be_iterated_again() -> None:
    with ais_loader(chain().map_sample(fail_once).batched(1), num_workers=2) as loader:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="bad sample"):
                list(loader)
        assert loader.stats()["decode"].items > 0


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """A file that this process and its forked workers log to."""
    handler = logging.FileHandler(tmp_path / "log")
    logging.getLogger("torchdata_ais").addHandler(handler)
    yield tmp_path / "log"
    logging.getLogger("torchdata_ais").removeHandler(handler)
    handler.close()


@pytest.mark.ci
def test_a_stall_names_worker_stage_and_sample(log: Path) -> None:
    pipe = chain().map_sample(hang_at_the_fourth).batched(1)
    with ais_loader(pipe, num_workers=2, stall_after=1.2) as loader:
        with pytest.raises(StallError, match=r"map_sample\(hang_at_the_fourth\)") as caught:
            list(loader)
    assert caught.value.key == "00003"
    assert caught.value.place["worker"] in (0, 1)
    assert "in hang_at_the_fourth" in log.read_text()  # the stacks


@pytest.mark.ci
def test_no_stall_while_the_training_loop_takes_its_time() -> None:
    with ais_loader(chain().batched(1), num_workers=1, prefetch=0, stall_after=1.0) as loader:
        for index, _ in enumerate(loader):
            if index == 1:
                time.sleep(1.5)


def test_a_stall_limit_of_nothing_is_refused() -> None:
    with pytest.raises(AISError, match="stall_after=0"):
        ais_loader(chain(), stall_after=0)
