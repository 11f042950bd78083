"""Epochs without a batch, and stages that return none of what they took."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from torchdata_ais import AISSourceLister, ais_loader
from torchdata_ais.errors import LoaderError
from torchdata_ais.pipes import Selector
from torchdata_ais.pipes.mapped import SampleMapper
from torchdata_ais.testing import example_shards

COUNTS = (150, 150)


def forgot(sample: dict[str, Any]) -> None:
    sample["x"] = 1


def never(sample: dict[str, Any]) -> bool:
    return bool(sample["cls"] == b"3")


def samples() -> Any:
    return AISSourceLister(example_shards(counts=COUNTS)).load_tar().group_samples().decode()


CASES = {
    "map_sample": (
        lambda: samples().map_sample(forgot).batched(4),
        r"map_sample\(forgot\) took 300 items and returned none\. Check that",
    ),
    "select": (
        lambda: samples().select(never).to_tuple("cls").batched(4),
        r"select\(never\) took 300 items and returned none\. Check that",
    ),
    "batched": (
        lambda: samples().to_tuple("cls").batched(5000, partial=False),
        r"batched\(5000.*\) took 300 items and returned none",
    ),
    "on_error": (
        lambda: samples().to_tuple("nothing", on_error="skip").batched(4),
        r"to_tuple\('nothing'.*\) took 300 items and returned none",
    ),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", CASES)
def test_promise_1_an_epoch_without_a_batch_is_an_error_that_names_the_stage(name: str, workers: int) -> None:
    make, says = CASES[name]
    with ais_loader(make(), num_workers=workers) as loader:
        for epoch in range(2):
            with pytest.raises(LoaderError, match=rf"Epoch {epoch} has no batch: {says}.*allow_empty=True"):
                list(loader)
    with ais_loader(make(), num_workers=workers, allow_empty=True) as loader:
        assert [list(loader), list(loader)] == [[], []]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_share_of_nothing_is_an_error(workers: int) -> None:
    with ais_loader(samples().rsample(0.0).to_tuple("cls").batched(4), num_workers=workers) as loader:
        with pytest.raises(LoaderError, match=r"rsample\(0\.0\) took 300 items and returned none"):
            list(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_at_the_end_of_an_epoch_is_not_empty(workers: int) -> None:
    paths = example_shards(counts=COUNTS)

    def pipe() -> Any:
        return AISSourceLister(paths).load_tar().group_samples().to_tuple("cls").batched(4)

    with ais_loader(pipe(), num_workers=workers) as first:
        count = sum(1 for _ in first)
        batches = iter(first)
        for _ in range(count):
            next(batches)
        state = first.state_dict()
    with ais_loader(pipe(), num_workers=workers) as second:
        second.load_state_dict(state)
        assert list(second) == []
        assert len(list(second)) == count


def test_a_function_without_return_is_logged_early_and_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "torchdata_ais"):
        assert list(samples().map_sample(forgot)) == []
    texts = [record.getMessage() for record in caplog.records]
    assert texts == ["map_sample(forgot) took 100 items and returned none: is a return missing?"]


def test_a_stage_that_kept_nothing_is_logged_at_the_end_of_a_bare_pipe(
    caplog: pytest.LogCaptureFixture,
) -> None:
    items = [{"__key__": "a", "cls": b"1"}] * 5
    assert list(Selector(items, never)) == []
    assert list(SampleMapper(items, forgot)) == []
    assert list(Selector(items, bool)) != []
    texts = [record.getMessage() for record in caplog.records]
    assert texts == [
        "select(never) took 5 items and returned none",
        "map_sample(forgot) took 5 items and returned none",
    ]


def test_workers_of_torchs_loader_log_a_stage_that_kept_nothing(tmp_path: Path) -> None:
    pipe = samples().select(never).to_tuple("cls").batched(4)
    handler = logging.FileHandler(tmp_path / "log")  # the workers inherit it
    logging.getLogger("torchdata_ais").addHandler(handler)
    try:
        assert list(DataLoader(pipe, batch_size=None, num_workers=2, timeout=60)) == []
    finally:
        logging.getLogger("torchdata_ais").removeHandler(handler)
        handler.close()
    said = (tmp_path / "log").read_text().splitlines()
    assert said == ["select(never) took 150 items and returned none"] * 2
