"""What version 0.1 saved, and its code made, is refused in words: its checkpoints, and its pickled pipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import AISSourceLister, ais_loader, merge_states, state_from_json
from torchdata_ais.errors import StateError

SAVED: dict[str, Any] = json.loads((Path(__file__).parent / "saved_by_0_1.json").read_text())


def test_a_checkpoint_of_0_1_is_refused() -> None:
    pipe = AISSourceLister("s.tar").load_tar().group_samples().decode().to_tuple("cls").batched(2)
    old = SAVED["state"]
    with ais_loader(pipe) as loader:
        for way in (loader.load_state_dict, lambda state: merge_states([state]), state_from_json):
            with pytest.raises(StateError, match=r"saved by torchdata_ais 0\.1, without the checksum"):
                way(old)
