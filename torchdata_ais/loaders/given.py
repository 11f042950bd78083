"""What a loader is given."""

from __future__ import annotations

from typing import Any

from torch.utils.data import ChainDataset

from torchdata_ais.errors import UsageError
from torchdata_ais.stage.datapipes import IterDataPipe


def check_pipe(given: Any, name: str) -> None:
    """Raise `UsageError` unless a loader was given a pipe."""
    if isinstance(given, IterDataPipe):
        return
    todo = "pass the last stage of a chain that begins with AISSourceLister(...) or IterableWrapper([...])"
    if isinstance(given, list | tuple | ChainDataset):  # what + makes of two pipes
        todo = (
            "make one pipe of several: one.concat(other), one after the other; one.mix_random(other), mixed"
        )
    raise UsageError.at(f"{name} was given an item of type {type(given).__name__}, not a pipe", todo=todo)
