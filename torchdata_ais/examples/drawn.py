"""Shards of drawn samples for the programs that train, where no others are named."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torchdata_ais import ShardWriter


def named_or_drawn(
    arguments: argparse.Namespace, folder: Path, make: Callable[[int, int], Iterable[dict[str, Any]]]
) -> tuple[Any, Any]:
    """Return the shards to train and to evaluate on: those that the arguments name, or drawn ones.

    Args:
        arguments: With ``source``, ``held_out`` and ``samples``; for evaluation a fifth as many are drawn.
        folder: Where drawn ones are written.
        make: ``make(count, seed)`` draws samples.
    """
    if arguments.source:
        return arguments.source, arguments.held_out or arguments.source
    counts = {"train": arguments.samples, "valid": max(1, arguments.samples // 5)}
    for seed, (name, count) in enumerate(counts.items()):
        with ShardWriter(f"{folder}/{name}-%03d.tar", maxcount=50) as writer:
            for sample in make(count, seed):
                writer.write(sample)
    return f"{folder}/train-*.tar", f"{folder}/valid-*.tar"
