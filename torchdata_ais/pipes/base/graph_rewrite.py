"""Insertion of an upstream pipe into a copy of the graph.

A stage may need a sharding filter or a shared seed higher up. The stages from there down to it are copied; the ones
above the new pipe stay what they were, as does the chain that the stage was given. Only a fork is changed in place:
its branches are one pipe.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from torchdata_ais.pipes.base.pipe import IterDataPipe, ShardingFilter
from torchdata_ais.pipes.base.torch_pipes import is_fork
from torchdata_ais.pipes.base.upstream import is_sharding, parents

_Change = Callable[[IterDataPipe[object]], IterDataPipe[object]]


def ensure_sharded(source: IterDataPipe[object]) -> IterDataPipe[object]:
    """Return `source` with one sharding filter on every path above it.

    A path that has none gets torch's own `ShardingFilter` after it: it is the only class for which loaders give
    everything before it one shared seed. A branch of a ``concat`` or ``mux`` that lacks one gets its own, since
    the filter of another branch does not cover it.
    """
    covered = _covered(source)
    if covered is None:
        return with_above(source, ensure_sharded)
    return source if covered else ShardingFilter(source)


def with_above(pipe: IterDataPipe[object], change: _Change) -> IterDataPipe[object]:
    """Return a copy of `pipe` with changed sources, or itself if none changes."""
    other = None
    for name, value in list(vars(pipe).items()):
        if isinstance(value, IterDataPipe):
            new: object = change(value)
            same = new is value
        elif isinstance(value, (list, tuple)) and any(isinstance(item, IterDataPipe) for item in value):
            new = type(value)(change(item) if isinstance(item, IterDataPipe) else item for item in value)
            same = all(one is another for one, another in zip(new, value, strict=True))
        else:
            continue
        if not same:
            if other is None:
                other = pipe if is_fork(pipe) else copy.copy(pipe)
            setattr(other, name, new)
    return pipe if other is None else other


def _covered(pipe: IterDataPipe[object]) -> bool | None:
    """Return True if all upstream paths are sharded, False if none, else None."""
    if is_sharding(pipe):
        return True
    above = {_covered(parent) for parent in parents(pipe)}
    if not above:
        return False
    return above.pop() if len(above) == 1 else None
