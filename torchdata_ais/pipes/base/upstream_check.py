"""Stages that cannot precede .read_samples()."""

from __future__ import annotations

from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.base.contract import Stage
from torchdata_ais.pipes.base.registry import name_of
from torchdata_ais.pipes.base.torch_pipes import IterDataPipe
from torchdata_ais.pipes.base.upstream import parents, upstream

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
