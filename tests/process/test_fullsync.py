"""Our own `fullsync` and `DistributedReadingService`, over ranks forked from the test."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import run_forked
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_ais.dataloader2.own.distributed import DistributedReadingService, FullSync
from torchdata_ais.dataloader2.own.loader import DataLoader2
from torchdata_ais.errors import LoaderError, StallError


def uneven(rank: int, job: dict[str, Any]) -> Any:
    """Iterate twice, pause between, and break off once in between at the same place."""
    pipe = FullSync(IterableWrapper(range(rank * 100, rank * 100 + 4 + 2 * rank)), timeout=30)
    epochs = [list(pipe)]
    items = iter(pipe)
    begun = [next(items), next(items)]
    pipe.pause()
    pipe.resume()
    begun.append(next(items))
    return [*epochs, begun, list(pipe), list(pipe)]


def test_ranks_end_together_and_begin_again_together(tmp_path: Path) -> None:
    for rank, answer in enumerate(run_forked(uneven, 2, tmp_path / "ranks")):
        whole = [rank * 100 + item for item in range(4)]
        assert answer["value"] == [whole, whole[:3], whole, whole], answer


def failing(rank: int, job: dict[str, Any]) -> Any:
    def check(item: int) -> int:
        if rank == 1 and item == 3:
            raise ZeroDivisionError("of rank 1")
        return item

    pipe = FullSync(IterableWrapper(range(6)).map(check), timeout=30)
    given = []
    try:
        for item in pipe:
            given.append(item)
    except (LoaderError, ZeroDivisionError) as error:
        return given, type(error).__name__, str(error)
    return given, "", ""


def test_promise_1_a_rank_that_fails_ends_the_others_with_an_error(tmp_path: Path) -> None:
    first, second = (answer["value"] for answer in run_forked(failing, 2, tmp_path / "ranks"))
    assert first[:2] == ([0, 1, 2], "LoaderError")
    assert "Another rank could not make an item" in first[2]
    assert second[:2] == ([0, 1, 2], "ZeroDivisionError")


def standing_still(rank: int, job: dict[str, Any]) -> Any:
    def wait(item: int) -> int:
        if rank == 1 and item == 2:
            time.sleep(3)
        return item

    pipe = FullSync(IterableWrapper(range(6)).map(wait), timeout=0.5 if rank == 0 else 30)
    items = iter(pipe)
    try:
        return list(items)
    except (StallError, LoaderError) as error:
        return type(error).__name__


@pytest.mark.ci
def test_promise_6_a_rank_that_stands_still_is_named_in_time(tmp_path: Path) -> None:
    answers = [answer["value"] for answer in run_forked(standing_still, 2, tmp_path / "ranks")]
    assert answers[0] == "StallError"


def shared(rank: int, job: dict[str, Any]) -> Any:
    pipe = IterableWrapper(range(23)).shuffle().sharding_filter()
    with DataLoader2(pipe, reading_service=DistributedReadingService(timeout=30)) as loader:
        loader.seed(rank)  # rank 0's is taken
        return [list(loader), list(loader)]


def test_ranks_share_the_seed_of_rank_0(tmp_path: Path) -> None:
    one, two = (answer["value"] for answer in run_forked(shared, 2, tmp_path / "ranks"))
    for first, second in zip(one, two, strict=True):
        assert len(first) == len(second) == 11
        assert len({*first, *second}) == 22
    assert one[0] != one[1]


def test_without_a_group_it_says_what_to_call() -> None:
    with pytest.raises(LoaderError, match="init_process_group"):
        list(FullSync(IterableWrapper([1])))
    with pytest.raises(LoaderError, match="init_process_group"):
        iter(DataLoader2(IterableWrapper([1]), reading_service=DistributedReadingService()))
