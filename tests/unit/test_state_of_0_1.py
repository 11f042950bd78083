"""What version 0.1 saved, and its code made, is refused in words: its checkpoints, and its pickled pipes."""

from __future__ import annotations

import base64
import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import AISSourceLister, ais_loader, merge_states, state_from_json
from torchdata_ais.errors import StateError
from torchdata_ais.pipes import Shuffler
from torchdata_ais.stage.pickled import MARK

SAVED: dict[str, Any] = json.loads((Path(__file__).parent / "saved_by_0_1.json").read_text())


@pytest.mark.parametrize("name", SAVED["pickles"])
def test_a_pipe_pickled_by_0_1_is_refused(name: str) -> None:
    """They name modules that are gone, each another one first; of `listed` all are still there."""
    with pytest.raises(StateError, match=r"pickled by another version of torchdata_ais \(0\.1") as caught:
        pickle.loads(base64.b64decode(SAVED["pickles"][name]))
    assert "Make it anew" in str(caught.value)


def test_a_pipe_pickled_without_a_mark_or_with_another_is_refused() -> None:
    pipe = Shuffler([1, 2, 3], 2)
    state = pipe.__getstate__()
    assert state[MARK[0]] == MARK[1]
    unmarked = {name: value for name, value in state.items() if name != MARK[0]}
    for other in (unmarked, {**state, MARK[0]: MARK[1] + 1}):
        with pytest.raises(StateError, match="pickled by another version"):
            copy.copy(pipe).__setstate__(other)


def test_a_pipe_of_this_version_pickles_without_a_trace_of_the_mark() -> None:
    pipe: Any = Shuffler([1, 2, 3], 2).batched(2)
    for other in (pickle.loads(pickle.dumps(pipe)), copy.copy(pipe), copy.deepcopy(pipe)):
        assert MARK[0] not in vars(other)
        assert sorted(n for batch in other for n in batch.tolist()) == [1, 2, 3]


def test_a_checkpoint_of_0_1_is_refused() -> None:
    pipe = AISSourceLister("s.tar").load_tar().group_samples().decode().to_tuple("cls").batched(2)
    old = SAVED["state"]
    with ais_loader(pipe) as loader:
        for way in (loader.load_state_dict, lambda state: merge_states([state]), state_from_json):
            with pytest.raises(StateError, match=r"saved by torchdata_ais 0\.1, without the checksum"):
                way(old)
