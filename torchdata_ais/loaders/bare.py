"""The state of a bare pipe, iterated without any loader."""

from __future__ import annotations

from typing import Any

from torchdata_ais.loaders.state import check_single
from torchdata_ais.stage.checkpoint import restore, save, stage_names
from torchdata_ais.stage.pipe import IterDataPipe
from torchdata_ais.state import StreamState, to_plain


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
    state = StreamState(stages=stage_names(pipe))
    stands = save(pipe)
    if stands is not None:
        state.instances = [stands]
    return to_plain(state)


def load_state_dict(pipe: IterDataPipe[Any], state: dict[str, Any]) -> None:
    """Make the next iteration of `pipe` go on where `state` was taken; the ones after it are whole epochs again.

    Args:
        pipe: A chain of the same stages.
        state: What `state_dict` returned.

    Raises:
        StateError: It is none, damaged, of another pipeline, or of several workers.
    """
    instances = check_single(state, stage_names(pipe)).instances
    if instances is not None:
        restore(pipe, instances[0])
