"""The state of a bare pipe, iterated without any loader."""

from __future__ import annotations

from typing import Any

from torchdata_ais.loaders.instance import pack_state
from torchdata_ais.loaders.state import check_single, make_state
from torchdata_ais.stage.checkpoint import restore, stage_names
from torchdata_ais.stage.pipe import IterDataPipe
from torchdata_ais.stage.saved import read_saved

__all__ = ["load_state_dict", "state_dict"]


def state_dict(pipe: IterDataPipe[Any]) -> dict[str, Any]:
    """Return where the iteration of `pipe` stands, after the item received last.

    Args:
        pipe: The last stage of a chain that is being iterated in this process.

    Raises:
        StateError: A stage that a checkpoint cannot pass through; names it.

    Example:
        >>> from torchdata_ais import AISSourceLister
        >>> from torchdata_ais.testing import example_shards
        >>> pipe = AISSourceLister(example_shards()).load_tar().group_samples().decode()
        >>> items = iter(pipe)
        >>> next(items)["cls"], next(items)["cls"]
        (0, 1)
        >>> state = state_dict(pipe)
        >>> load_state_dict(pipe, state)
        >>> [sample["cls"] for sample in pipe]
        [2, 3, 4, 5]
    """
    packed = pack_state(pipe)
    return make_state(
        stages=stage_names(pipe),
        seed=0,
        epoch=0,
        rank=0,
        ranks=1,
        workers=1,
        instances=None if packed is None else [packed],
    )


def load_state_dict(pipe: IterDataPipe[Any], state: dict[str, Any]) -> None:
    """Make the next iteration of `pipe` go on where `state` was taken; the ones after it are whole epochs again.

    Args:
        pipe: A chain of the same stages.
        state: What `state_dict` returned.

    Raises:
        StateError: It is none, damaged, of another pipeline, or of several workers.
    """
    state = check_single(state, stage_names(pipe))
    if state["instances"] is not None:
        restore(pipe, [read_saved(state["instances"][0])])
