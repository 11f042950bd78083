"""Upstream pipes of a stage: found, checked, inserted in a graph.

A stage may need a sharding filter or a shared seed higher up. The stages from there down to it are copied; the ones
above the new pipe stay what they were, as does the chain that the stage was given. Only a fork is changed in place:
its branches are one pipe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.base.contract import Stage
from torchdata_ais.pipes.base.registry import name_of
from torchdata_ais.pipes.base.torch_pipes import (
    Filter,
    IterDataPipe,
    Mapper,
    ShardingFilter,
    copy_pipe,
    is_fork,
)

_COLLECTIONS = (list, tuple, set, dict)


def _is_pipe(value: object) -> bool:
    """Return whether `value` is a pipe."""
    # The check of abstract classes, which isinstance() makes, takes half a microsecond, a thousand times an epoch.
    return type.__instancecheck__(IterDataPipe, value)


def parents(pipe: object) -> list[IterDataPipe[object]]:
    """Return the pipes that are attributes of `pipe`, or in collections there."""
    if not hasattr(pipe, "__dict__"):
        raise UsageError.at(
            f"a {type(pipe).__name__} is no pipe and no loader: {pipe!r:.60}",
            todo="pass the last stage of a chain, or what ais_loader returned",
        )
    found: list[IterDataPipe[object]] = []
    for value in list(vars(pipe).values()):  # another thread may be at work in it
        if _is_pipe(value):
            found.append(value)
        elif isinstance(value, _COLLECTIONS):
            found.extend(item for item in members(value) if _is_pipe(item))
    return found


def members(value: object) -> Iterable[Any]:
    """Return what a collection holds; what is none, alone."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, _COLLECTIONS) else [value]


def upstream(pipe: IterDataPipe[object]) -> Iterator[IterDataPipe[object]]:
    """Yield `pipe` and every pipe it depends on, nearest first, each once."""
    seen: set[int] = set()
    queue = [pipe]
    while queue:
        current = queue.pop(0)
        if id(current) not in seen:
            seen.add(id(current))
            yield current
            queue.extend(parents(current))


def is_sharding(pipe: IterDataPipe[object]) -> bool:
    """Return whether `pipe` splits its items over ranks and workers."""
    return (
        hasattr(pipe, "apply_sharding")
        or type(pipe).__name__.startswith("_DummySharding")
        or ("ShardingRoundRobinDispatcher" in type(pipe).__name__)
    )


def at_work(source: IterDataPipe[object]) -> dict[str, Any]:
    """Return ``url`` and ``key`` of the current sample at or above `source`.

    ``{}`` where that is not known, or where a stage on the way holds others, too.
    """
    while True:
        if isinstance(source, Stage):
            place = source.busy_with() or source.left_at or {}
            if place.get("key") is not None:
                return place
            effect = source.effect()
            if not source.hidden and (effect.holds or effect.gives not in ("each", "fewer", "batches")):
                return {}
        elif not isinstance(source, (Mapper, Filter)):
            return {}
        above = parents(source)
        if len(above) != 1:
            return {}
        source = above[0]


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


def with_above(
    pipe: IterDataPipe[object], change: Callable[[IterDataPipe[object]], IterDataPipe[object]]
) -> IterDataPipe[object]:
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
                other = pipe if is_fork(pipe) else copy_pipe(pipe)
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


_MIXED = (
    "it would mix the batches that the plan has laid down",
    'leave it out: .read_samples(shuffle="samples") has mixed all samples already',
)
_COUNTED = ("it counts items off, and does not know where a batch ends", "use .batched(n)")
_SPLIT = ("the plan deals batches over ranks and workers by itself", "leave it out")
_SAMPLES = ("samples come here, no names of shards", "leave it out: .read_samples() reads whole samples")
_SEVERAL = (
    "the plan of one pipe does not hold for several",
    "mix indexes: .read_samples() of a Mixture({index: weight, ...})",
)
_AHEAD = (
    "it holds items back, so that batches would not be those planned",
    "put it below .batched(n), or leave it out: workers and .read_samples() read ahead by themselves",
)

REMEDIES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("shuffle", "shuffled", "in_batch_shuffle"), _MIXED),
    **dict.fromkeys(("batch", "listed", "bucketbatch", "max_token_bucketize"), _COUNTED),
    **dict.fromkeys(
        ("sharding_filter", "sharding_round_robin_dispatch", "split_by_node", "split_by_worker"), _SPLIT
    ),
    **dict.fromkeys(("load_tar", "group_samples", "load_objects", "list_ais", "read_samples"), _SAMPLES),
    **dict.fromkeys(("mix_random", "mix_round_robin", "concat", "mux", "zip", "sample_multiplex"), _SEVERAL),
    "resampled": ("it draws by itself", 'leave it out: Mixture(..., stop="never") and epoch_steps= go on without end'),
    "slice_samples": ("each worker would count its own", "choose from the index: index.select(range(n))"),
    "with_epoch": ("the plan knows how long an epoch is", "say epoch_steps= to .read_samples() or ais_loader"),
    "cycle": ("it would begin the plan anew", "say epoch_steps=, or iterate the loader again"),
}  # fmt: skip
"""By functional name: why, and what to do."""

REMEDIES_ABOVE_BATCHES = {
    "prefetch": _AHEAD,
    "repeated": (
        "the next pass would begin in the middle of a batch",
        "put it below .batched(n), iterate the loader again, or say epoch_steps=",
    ),
}
"""What can stand below ``.batched()`` only."""


def below_plan(pipe: IterDataPipe[object]) -> bool:
    """Return whether `pipe` is, or reads from, a stage that reads by a plan."""
    return any(isinstance(above, Stage) and above.planned for above in upstream(pipe))


def check_below_plan(tail: IterDataPipe[object]) -> None:
    """Raise `UsageError` if a stage of `tail` cannot follow a planned reader."""
    for pipe in upstream(tail):
        for source in parents(pipe):
            if (error := refused_behind(source, name_of(pipe))) is not None:
                raise error
        if len(parents(pipe)) > 1 and below_plan(pipe):
            raise UsageError.at(
                f"{name_of(pipe)} joins several pipes below .read_samples(): the plan of one does not hold for several",
                todo="mix indexes: .read_samples() of a Mixture({index: weight, ...})",
            )


def refused_behind(source: IterDataPipe[object], name: str) -> UsageError | None:
    """Return the error for a stage of that name after `source`, or None.

    Example:
        >>> from torchdata_ais.pipes.base.torch_pipes import IterableWrapper
        >>> refused_behind(IterableWrapper([1]), "shuffled") is None
        True
    """
    said = REMEDIES.get(name) or REMEDIES_ABOVE_BATCHES.get(name)
    if said is None or not below_plan(source):
        return None
    stages = (above for above in upstream(source) if isinstance(above, Stage))
    if name in REMEDIES_ABOVE_BATCHES and any(above.effect().gives == "batches" for above in stages):
        return None
    why, todo = said
    return UsageError.at(f".{name}() below .read_samples(): {why}", todo=todo)
