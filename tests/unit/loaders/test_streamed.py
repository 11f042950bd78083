"""``epoch_steps=`` of `ais_loader`: understood once, and epochs counted once."""

from __future__ import annotations

from typing import Any

import pytest

from torchdata_ais import AISSourceLister, ais_loader
from torchdata_ais.errors import UsageError
from torchdata_ais.loaders.streamed import runner_class
from torchdata_ais.testing import example_shards


@pytest.fixture
def pipe() -> Any:
    shards = AISSourceLister(example_shards(counts=(4, 4, 4))).shuffle()
    return shards.load_tar().group_samples().decode().to_tuple("cls").batched(2)


def keys(batches: Any) -> list[Any]:
    return [batch[0].tolist() for batch in batches]


def epoch_of(pipe: Any, number: int, **how: Any) -> list[Any]:
    with ais_loader(pipe, seed=1, **how) as loader:
        loader.set_epoch(number)
        return keys(loader)


@pytest.mark.parametrize("steps", [None, "pad", "shortest"])
def test_set_epoch_within_an_epoch_is_for_the_next(pipe: Any, steps: Any) -> None:
    with ais_loader(pipe, seed=1, epoch_steps=steps) as loader:
        batches = iter(loader)
        next(batches)
        loader.set_epoch(7)
        list(batches)
        assert keys(loader) == epoch_of(pipe, 7)
        assert loader.epoch == 7
        assert keys(loader) == epoch_of(pipe, 8)


def test_a_fixed_number_of_steps_goes_on_in_the_data(pipe: Any) -> None:
    whole = epoch_of(pipe, 0) + epoch_of(pipe, 1)
    with ais_loader(pipe, seed=1, epoch_steps=4) as loader:
        assert len(loader) == 4
        assert [keys(loader) for _ in range(3)] == [whole[:4], whole[4:8], whole[8:12]]
        assert loader.epoch == 2


@pytest.mark.parametrize("steps", [None, 4])
@pytest.mark.parametrize("taken", [1, 2, 3, 5])
def test_a_state_from_any_step_goes_on_in_the_same_order(pipe: Any, steps: Any, taken: int) -> None:
    with ais_loader(pipe, seed=1, epoch_steps=steps) as loader:
        whole = [batch for _ in range(3) for batch in keys(loader)]
    with ais_loader(pipe, seed=1, epoch_steps=steps) as loader:
        batches = iter(loader)
        for _ in range(min(taken, steps or taken)):
            next(batches)
        if steps and taken > steps:  # into the next epoch
            assert next(batches, None) is None
            batches = iter(loader)
            next(batches)
        state = loader.state_dict()
    with ais_loader(pipe, seed=1, epoch_steps=steps) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert keys(loader) + keys(loader) == whole[taken : taken + 2 * (steps or 6) - taken % (steps or 6)]


@pytest.mark.parametrize("wrong", [0, -1, "longest"])
def test_what_is_no_number_of_steps_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="epoch_steps="):
        runner_class(wrong)


def test_an_unknown_name_is_a_type_error(pipe: Any) -> None:
    with pytest.raises(TypeError, match="rnak"):
        ais_loader(pipe, rnak=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("named", [{"rank": 1}, {"world_size": 2}, {"rank": 2, "world_size": 2}])
def test_half_a_rank_is_refused(pipe: Any, named: Any) -> None:
    with pytest.raises(UsageError, match="rank="):
        ais_loader(pipe, **named)
