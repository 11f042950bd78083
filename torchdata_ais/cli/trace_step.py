"""``torchdata-ais trace-step``: which samples a step of a run by index has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from torchdata_ais.cli._echo import echo, echo_json
from torchdata_ais.cli._run import AsJson, Endpoint, command, options_of
from torchdata_ais.shown import count_text

if TYPE_CHECKING:
    from torchdata_ais.index import IndexedSamples, Mixture


@command("torchdata_ais.loaders.loader")
def trace_step(
    indexes: list[str],
    step: Annotated[int, typer.Option(min=0)],
    global_batch: Annotated[int, typer.Option(min=1)],
    seed: int = 0,
    shuffle: Literal["samples", "runs", "none"] = "none",
    weights: str = "",
    stop: Literal["first", "all", "never"] = "first",
    tail: Literal["short", "drop", "pad"] = "short",
    epoch_steps: Annotated[int | None, typer.Option(min=1)] = None,
    shards_from: Annotated[list[str] | None, typer.Option("--shards-from")] = None,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    """Show key and shard of each sample that a step of a run by index has, or had.

    It is computed from index, seed and step; no shard is read. Give what the program gives to AISSampleReader and
    ais_loader. Of a run whose batch, weights or sources were changed at a resume, the steps before the change are
    those of the program before it.

    Args:
        indexes (INDEX...): Where the index lies, or the shards that have it beside them: ais://bucket/prefix, a folder.
        step: Which step, counted over the whole run, from 0.
        global_batch: Samples a step, over all ranks.
        seed: Seed of the loader.
        shuffle (HOW): samples, runs or none.
        weights (W,W,...): Of a mixture, one an index: 0.7,0.3. Default: the indexes one after the other.
        stop (WHEN): Of a mixture, what ends an epoch: first, all or never.
        tail (HOW): What becomes of an epoch's remainder: short, drop or pad.
        epoch_steps: Steps of an epoch, where the program says so.
        shards_from (PLACE): A bucket or folder whose shards the indexes may name, too. May be repeated.

    Examples:
        torchdata-ais trace-step ais://pets/ --step 9 --global-batch 512 --seed 7
        torchdata-ais trace-step a/ b/ --weights 7,3 --step 0 --global-batch 64
        torchdata-ais trace-step --json /data/shards --step 12 --global-batch 256
    """
    from torchdata_ais.index import IndexedSamples
    from torchdata_ais.loaders import ais_loader
    from torchdata_ais.pipes import AISSampleReader

    options = options_of(indexes, endpoint)
    opened = [IndexedSamples.open(where, shards_from=shards_from, cluster=options) for where in indexes]
    source = _mixed(opened, weights, stop) if weights else IndexedSamples.concat(opened)
    reader = AISSampleReader(source, shuffle=None if shuffle == "none" else shuffle)
    with ais_loader(
        reader,
        seed=seed,
        global_batch=global_batch,
        tail=tail,
        epoch_steps=epoch_steps,
        rank=0,
        world_size=1,
    ) as loader:
        found = loader.samples_of(step)
    if as_json:
        samples = [{"key": key, "shard": shard} for key, shard in found]
        echo_json({"step": step, "seed": seed, "global_batch": global_batch, "samples": samples}, indent=1)
        return
    for key, shard in found:
        echo(f"{key}\t{shard}")
    shards = len({shard for _, shard in found})
    echo(f"step {step}: {count_text(len(found), 'sample')} of {count_text(shards, 'shard')}", err=True)


def _mixed(opened: list[IndexedSamples], weights: str, stop: Literal["first", "all", "never"]) -> Mixture:
    from torchdata_ais.errors import UsageError
    from torchdata_ais.index import Mixture

    try:
        numbers = [int(word) if word.strip().isdecimal() else float(word) for word in weights.split(",")]
    except ValueError:
        raise UsageError.at(f"--weights {weights}", todo="pass numbers such as 0.7,0.3") from None
    if len(numbers) != len(opened):
        raise UsageError.at(f"--weights {weights} for {len(opened)} indexes", todo="pass one weight an index")
    return Mixture(dict(zip(opened, numbers, strict=True)), stop)
