"""doctor and bench."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from torchdata_ais._util.formatting import bytes_text
from torchdata_ais.cli._output import echo, echo_json
from torchdata_ais.cli._run import AsJson, Endpoint, ExitCodes, command, options_of, reported
from torchdata_ais.errors import AISError, SampleError, ShardError, UsageError


def doctor(
    subject: Annotated[str, typer.Argument()] = "",
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    """Check versions, torch, codecs, machine, cluster and clock.

    Each problem has its remedy. The exit code is 1 if something will not work. Put the output into a bug report; it
    holds no token.

    With a prefix of shards, read the last byte of each, too: a shard that a job of the cluster has damaged ends before.

    With a file that a loader wrote after an error (ais_loader(run_dir=)), show the activity of each process of that
    rank, and where to look first.

    Args:
        subject ([SUBJECT]): ais://bucket/prefix of shards; or a flight-*.json of a run_dir=, explained instead.
        as_json: Print one JSON array.

    Examples:
        torchdata-ais doctor
        torchdata-ais doctor ais://pets/train-
        torchdata-ais doctor runs/7/flight-00002-4711-1.json
        torchdata-ais doctor --json --endpoint http://host:51080
    """
    if subject and "://" not in subject:
        _explain(subject, as_json)
        return
    with reported(False, "torchdata_ais.cli.checks.doctor", command=doctor):
        from torchdata_ais._util.versions import versions
        from torchdata_ais.cli.checks.doctor import Check, diagnose

        try:
            checks = diagnose(endpoint or None, shards=subject)
        except AISError as error:
            checks = [Check("cluster", "bad", error.sentences)]
    if as_json:
        echo_json({"versions": versions(), "checks": [asdict(check) for check in checks]}, indent=1)
    else:
        for check in checks:
            echo(f"{check.state:<4}  {check.name:<8}  {check.text}")
            if check.todo:
                echo(f"{'':<16}-> {check.todo}")
    if any(check.state == "bad" for check in checks):
        raise typer.Exit(ExitCodes.FAILED)


def _explain(path: str, as_json: bool) -> None:
    with reported(False, "torchdata_ais.observe.diagnosis.flight_record", command=doctor):
        from torchdata_ais.observe.diagnosis.flight_record import explain_flight, read_flight

        flight = read_flight(path)
        lines = explain_flight(flight)
    if as_json:
        echo_json({"sentences": lines, "why": flight.why, "rank": flight.rank.rank}, indent=1)
        return
    echo(*lines)
    echo("", "the stacks of all its threads:")
    for part in flight.processes:
        echo("", f"{part.name} (pid {part.pid})", *part.stacks.splitlines())


@command("torchdata_ais.cli.checks.speed")
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
    from torchdata_ais.cli.checks import measure

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
    """Show the running check, on terminals only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{stage:<12}\r")
        sys.stderr.flush()
