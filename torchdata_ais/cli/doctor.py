"""``torchdata-ais doctor``: is everything in place?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from torchdata_ais.cli._echo import echo, echo_json
from torchdata_ais.cli._run import AsJson, Endpoint, ExitCodes, reported
from torchdata_ais.errors import AISError


def doctor(
    subject: Annotated[str, typer.Argument()] = "",
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    """Look at versions, torch, loaders, codecs, machine, cluster and clock; say what to do.

    The exit code is 1 if something will not work. Put the output into a bug report; it holds no token.

    With a prefix of shards, read the last byte of each, too: a shard that a job of the cluster has damaged ends before.

    With a file that a loader wrote when something went wrong (ais_loader(run_dir=)), say what each process of that rank
    was doing, and where to look first.

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
    with reported(False, "torchdata_ais.checking.doctor", command=doctor):
        from torchdata_ais.checking.doctor import Check, diagnose
        from torchdata_ais.versions import versions

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
    with reported(False, "torchdata_ais.observe.flight", command=doctor):
        from torchdata_ais.observe.flight import explain_flight, read_flight

        flight = read_flight(path)
        lines = explain_flight(flight)
    if as_json:
        echo_json({"sentences": lines, "why": flight.why, "rank": flight.rank.rank}, indent=1)
        return
    echo(*lines)
    echo("", "the stacks of all its threads:")
    for part in flight.processes:
        echo("", f"{part.name} (pid {part.pid})", *part.stacks.splitlines())
