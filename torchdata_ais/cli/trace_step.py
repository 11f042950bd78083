"""``torchdata-ais trace-step``: which samples a step of a run by index has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from torchdata_ais.cli._echo import echo, echo_json
from torchdata_ais.cli._run import Debug, Endpoint, options_of, reported
from torchdata_ais.shown import count_text

if TYPE_CHECKING:
    from torchdata_ais.index import IndexedSamples, Mixture


def trace_step(
    indexes: Annotated[
        list[str],
        typer.Argument(
            metavar="INDEX...",
            help="Where the index lies, or the shards that have it beside them: ais://bucket/prefix, a folder.",
        ),
    ],
    step: Annotated[int, typer.Option(help="Which step, counted over the whole run, from 0.", min=0)],
    global_batch: Annotated[int, typer.Option(help="Samples a step, over all ranks.", min=1)],
    seed: Annotated[int, typer.Option(help="Seed of the loader.")] = 0,
    shuffle: Annotated[
        Literal["samples", "runs", "none"], typer.Option(metavar="HOW", help="samples, runs or none.")
    ] = "none",
    weights: Annotated[
        str,
        typer.Option(
            metavar="W,W,...",
            help="Of a mixture, one an index: 0.7,0.3. Default: the indexes one after the other.",
            show_default=False,
        ),
    ] = "",
    stop: Annotated[
        Literal["first", "all", "never"],
        typer.Option(metavar="WHEN", help="Of a mixture, what ends an epoch: first, all or never."),
    ] = "first",
    tail: Annotated[
        Literal["short", "drop", "pad"],
        typer.Option(metavar="HOW", help="What becomes of an epoch's remainder: short, drop or pad."),
    ] = "short",
    epoch_steps: Annotated[
        int | None, typer.Option(help="Steps of an epoch, where the program says so.", min=1)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    endpoint: Endpoint = "",
    debug: Debug = False,
) -> None:
    """Show key and shard of each sample that a step of a run by index has, or had.

    It is computed from index, seed and step; no shard is read. Give what the program gives to AISSampleReader and
    ais_loader. Of a run whose batch, weights or sources were changed at a resume, the steps before the change are
    those of the program before it.

    Examples:
        torchdata-ais trace-step ais://pets/ --step 9 --global-batch 512 --seed 7
        torchdata-ais trace-step a/ b/ --weights 7,3 --step 0 --global-batch 64
        torchdata-ais trace-step --json /data/shards --step 12 --global-batch 256
    """
    with reported(debug, "torchdata_ais.loaders.loader", command=trace_step):
        from torchdata_ais.index import IndexedSamples
        from torchdata_ais.loaders import ais_loader
        from torchdata_ais.pipes import AISSampleReader

        options = options_of(indexes, endpoint)
        opened = [IndexedSamples.open(where, cluster=options) for where in indexes]
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
            echo_json(
                {"step": step, "seed": seed, "global_batch": global_batch, "samples": samples}, indent=1
            )
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
