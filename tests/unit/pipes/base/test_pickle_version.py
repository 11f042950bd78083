"""Pickles of pipes: those without the mark of this version are refused."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from torchdata_ais.errors import StateError
from torchdata_ais.pipes import Shuffler
from torchdata_ais.pipes.base.pipe import MARK


def test_a_pipe_pickled_without_a_mark_or_with_another_is_refused() -> None:
    pipe = Shuffler([1, 2, 3], 2)
    state = pipe.__getstate__()
    assert state[MARK[0]] == MARK[1]
    unmarked = {name: value for name, value in state.items() if name != MARK[0]}
    for other in (unmarked, {**state, MARK[0]: MARK[1] + 1}):
        with pytest.raises(StateError, match="pickled by another version of torchdata_ais") as caught:
            copy.copy(pipe).__setstate__(other)
        assert "Create it again with the code that created it" in str(caught.value)


def test_a_pipe_of_this_version_pickles_without_a_trace_of_the_mark() -> None:
    pipe: Any = Shuffler([1, 2, 3], 2).batched(2)
    for other in (pickle.loads(pickle.dumps(pipe)), copy.copy(pipe), copy.deepcopy(pipe)):
        assert MARK[0] not in vars(other)
        assert sorted(n for batch in other for n in batch.tolist()) == [1, 2, 3]
