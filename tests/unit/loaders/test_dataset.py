"""A dataset and its copies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import AISSourceLister, as_dataset
from torchdata_ais.testing import example_shards


def labels(items: Any) -> list[int]:
    return [label for (batch,) in items for label in batch.tolist()]


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["deepcopy", "pickle"]
)
def test_promise_5_a_copy_made_after_a_state_has_states_of_its_own(
    copied: Callable[[Any], Any], tmp_path: Path
) -> None:
    shards = example_shards(tmp_path, (6, 6))

    def dataset() -> Any:
        pipe: Any = AISSourceLister(shards).load_tar().group_samples().decode().to_tuple("cls").batched(2)
        return as_dataset(pipe)

    first = dataset()
    items = iter(first)
    came = labels([next(items)])
    states = [first.state_dict()]
    second = copied(first)
    others = iter(second)
    own = labels([next(others), next(others), next(others)])
    states.append(second.state_dict())
    for state, before in zip(states, (came, own), strict=True):
        resumed = dataset()
        resumed.load_state_dict(state)
        assert before + labels(resumed) == labels(dataset())
    assert came + labels(items) == own + labels(others)
