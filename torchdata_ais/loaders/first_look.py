"""What the first item of a loader tells about a pipe that is not finished: said once, and nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from torchdata_ais.stage.core import stage_of
from torchdata_ais.stage.pipe import IterDataPipe
from torchdata_ais.stage.upstream import upstream


def oddities(item: Any, pipe: IterDataPipe[Any]) -> Iterator[str]:
    """Yield a sentence for each thing that is hardly meant.

    Example:
        >>> from torchdata_ais.pipes import Batcher
        >>> pipe = Batcher([(b"a", 1), (b"b", 2)], 2)
        >>> list(oddities(next(iter(pipe)), pipe))
        ['column 0 of the batches holds bytes: put .decode("torchrgb8", size=224) behind .group_samples()']
    """
    stages = [stage_of(stage) for stage in upstream(pipe)]
    columns = (
        item if isinstance(item, Mapping) else dict(enumerate(item if isinstance(item, tuple) else [item]))
    )
    known = all(stage.effect().gives != "unknown" or stage.ready or stage.hidden for stage in stages)
    batches = any(stage.effect().gives == "batches" for stage in stages)
    if batches and isinstance(item, list) and item and isinstance(item[0], (tuple, dict)):
        yield "the batches are lists of samples, as torch's .batch(n) makes them: .batched(n) makes columns"
        return
    if not batches:
        tensors = any(isinstance(value, torch.Tensor) and value.ndim for value in columns.values())
        if known and tensors:
            yield "the items are single samples, not batches: end the pipe with .batched(32)"
        return
    for name, column in columns.items():
        if not isinstance(column, list) or not column or str(name).startswith("__"):
            continue
        what, todo = _kind(column[0], {stage.functional_name for stage in stages})
        if what:
            yield f"column {name!r} of the batches holds {what}: {todo}"


def _kind(value: Any, names: set[str]) -> tuple[str, str]:
    """Return what a value is that no model takes, and what makes another of it; "" for all else."""
    if isinstance(value, bytes) and "decode" not in names:
        if names & {"load_tar"} and "group_samples" not in names:
            return "bytes", "put .group_samples().decode().to_tuple(...) behind .load_tar()"
        return "bytes", 'put .decode("torchrgb8", size=224) behind .group_samples()'
    if value is None:
        return "None", "a function of the pipe returned nothing: let it return the value"
    if type(value).__module__.startswith("PIL."):
        todo = 'decode to tensors with .decode("torchrgb8", size=224), or transform them before .batched()'
        return "PIL images", todo
    return "", ""
