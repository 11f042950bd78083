"""Names that there are none of: which one may be meant, and what other libraries call an option by them."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_PART = 4  # letters of a name that may be a part of the one that is meant


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a question that offers what of `known` looks like `name`, whatever the case; "" if nothing does.

    Args:
        name: What was written.
        known: What could have been.
        otherwise: What to say where nothing looks like it, but it is a part of some.

    Example:
        >>> did_you_mean("sise", ["size", "threads"]), did_you_mean("PIL", ["l", "pil"]), did_you_mean("x", ["size"])
        ('Did you mean size?', 'Did you mean pil?', '')
        >>> did_you_mean("timeout", ["rank_timeout_s"]), did_you_mean("timeout", ["rank_timeout_s"], "see stall_after")
        ('Did you mean rank_timeout_s?', 'see stall_after')
    """
    lower = {one.lower(): one for one in known}
    exact = name.lower() in lower
    near = [name.lower()] if exact else get_close_matches(name.lower(), lower, n=3, cutoff=0.7)
    if not near and not otherwise and len(name) >= _PART:  # "size" for "batchsize"
        near = [one for one in lower if name.lower() in one][:3]
    return f"Did you mean {' or '.join(lower[one] for one in near)}?" if near else otherwise


ELSEWHERE = {
    "batch_size": "batches are made in the pipe: end it with .batched(32)",
    "shuffle": "shuffle in the pipe: .shuffle() before .load_tar() for shards, .shuffled(1000) behind .group_samples()",
    "collate_fn": "batches are made in the pipe: .batched(32, collation_fn=...)",
    "drop_last": ".batched(32, partial=False) drops a last batch that is smaller",
    "droplast": ".batched(32, partial=False) drops a last batch that is smaller",
    "sampler": "the pipe says which samples come: split shards, or .select(...)",
    "prefetch_factor": "it is called prefetch",
    "timeout": "it is called stall_after",
    "persistent_workers": "workers live on between epochs by themselves",
    "engine": "the workers are of this package; for torch's use DataLoader(as_dataset(pipe), batch_size=None)",
    "worker_init_fn": "put what a worker needs into a stage, or use MultiProcessingReadingService(worker_init_fn=)",
    "handler": "it is called on_error",
    "num_workers": "workers are the loader's: ais_loader(pipe, num_workers=4), or those of its reading service: "
    "DataLoader2(pipe, reading_service=MultiProcessingReadingService(4))",
    "transform": "write it behind decode: .map_dict(jpg=transform), or .map_tuple(transform, None) behind to_tuple",
    "start": "write .slice_samples(start, stop)",
    "stop": "write .slice_samples(start, stop)",
    "weights": "they are called probs",
    "device": "workers make batches on the CPU; ais_loader(device='cuda') copies each to the GPU",
}
"""What to write instead of options that torch's and webdataset's loaders have."""
