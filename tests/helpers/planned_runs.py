"""Small sources, pipes over them, and the batches that loaders give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchdata_ais import Mixture, SampleIndex, ais_loader
from torchdata_ais.pipes import AISSampleReader
from torchdata_ais.testing import write_shard


def source_shard(folder: Path, source: int, size: int) -> str:
    members = {f"{source}-{n:03d}.cls": b"%d" % (1000 * source + n) for n in range(size)}
    return write_shard(folder / f"{source}.tar", members)


def pipe_over(source: Any, batch: int = 4, **how: Any) -> Any:
    return AISSampleReader(source, **{"shuffle": "samples", **how}).decode().to_tuple("cls").batched(batch)


def mixture(sources: list[SampleIndex], *weights: int, **how: Any) -> Mixture:
    return Mixture({index: weight for index, weight in zip(sources, weights, strict=False) if weight}, **how)


def numbers(batch: Any) -> list[int]:
    found: list[int] = batch[0].tolist()
    return found


def some(loader: Any, steps: int) -> list[list[int]]:
    """Return the next batches, over ends of epochs; what is under way is left as a program that dies leaves it."""
    got: list[list[int]] = []
    while len(got) < steps:
        for batch in loader:
            got.append(numbers(batch))
            if len(got) == steps:
                break
    return got


def of_world(make: Any, ranks: int, state: Any, steps: int, **how: Any) -> tuple[list[set[int]], Any]:
    """Return the global batches of the next steps on `ranks` ranks, and the state after them."""
    parts, states = [], []
    for rank in range(ranks):
        with ais_loader(make(), rank=rank, world_size=ranks, **how) as loader:
            if state is not None:
                loader.load_state_dict(state)
            parts.append(some(loader, steps))
            states.append(loader.state_dict())
    assert all(one == states[0] for one in states)  # the same on all ranks
    return [set().union(*map(set, batches)) for batches in zip(*parts, strict=True)], states[-1]
