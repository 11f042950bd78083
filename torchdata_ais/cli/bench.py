"""``torchdata-ais bench``: what this machine and this cluster deliver."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from torchdata_ais.cli._echo import echo, echo_json
from torchdata_ais.cli._run import AsJson, Endpoint, command, options_of
from torchdata_ais.errors import SampleError, ShardError, UsageError
from torchdata_ais.shown import bytes_text


@command("torchdata_ais.checking.speed")
def bench(
    urls: list[str],
    seconds: Annotated[float, typer.Option(min=0.01)] = 3.0,
    workers: str = "0,1,2",
    spec: str = "torchrgb8",
    size: Annotated[int, typer.Option(min=1)] = 224,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    """Time the stages of a training chain one by one, and suggest settings.

    raw: bytes from the cluster. members: tar parsed. samples: grouped. decoded: images as training gets them, in this
    process. loader(n): the whole chain in n worker processes. Shards are read again and again, so the figures are those
    of a warm cluster; the first read is shown by itself. Take a few shards, on a machine that does nothing else.

    Args:
        urls (URL...): Shards: a prefix, a template, local paths.
        seconds: How long to run each stage.
        workers: Numbers of worker processes to try.
        spec: How images are decoded.
        size: Pixels square of decoded images.

    Examples:
        torchdata-ais bench ais://pets/train-
        torchdata-ais bench --workers 0,4,8 --size 160 /data/train-00000*.tar
    """
    from torchdata_ais.checking import measure

    try:
        counts = [int(part) for part in workers.split(",") if part.strip()]
    except ValueError:
        raise UsageError.at(f"--workers {workers!r} are no numbers", todo="write 0,1,2,4") from None
    try:
        speed = measure(
            list(urls),
            seconds=seconds,
            workers=counts,
            spec=spec,
            size=size,
            progress=_say,
            cluster=options_of(urls, endpoint),
        )
    except (ShardError, SampleError) as error:
        raise error.noting("bench needs sound shards: torchdata-ais lint finds all that are bad") from error
    if as_json:
        echo_json(speed.as_dict(), indent=1)
        return
    for rate in speed.rates:
        figures = [f"{rate.mb_s:9.1f} MB/s" if rate.bytes else " " * 14]
        figures += [f"{rate.samples_s:9.0f} samples/s"] if rate.samples else []
        echo(f"{rate.stage:<11}{'  '.join(figures)}")
    echo(f"{speed.cores} cores, samples of {bytes_text(round(speed.sample_bytes))} on average")
    for sentence in speed.advice:
        echo(f"suggested: {sentence}")


def _say(stage: str) -> None:
    """Show what runs, to people only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{stage:<12}\r")
        sys.stderr.flush()
