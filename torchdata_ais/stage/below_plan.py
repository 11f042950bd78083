"""What cannot stand below ``.read_samples()``, and what to do instead."""

from __future__ import annotations

from torchdata_ais.errors import UsageError

__all__ = ["REMEDIES", "refusal"]

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


def refusal(name: str, shown: str | None = None, *, batched: bool = False) -> UsageError | None:
    """Return the error for a stage below ``.read_samples()``; None for one that may stand there.

    Args:
        name: Its functional name.
        shown: How to show it.
        batched: Whether ``.batched()`` stands in between.

    Example:
        >>> refusal("map_sample") is None, refusal("repeated") is None, refusal("repeated", batched=True) is None
        (True, False, True)
    """
    said = REMEDIES.get(name) or (None if batched else REMEDIES_ABOVE_BATCHES.get(name))
    if said is None:
        return None
    why, todo = said
    return UsageError.at(f"{shown or f'.{name}()'} below .read_samples(): {why}", todo=todo)
