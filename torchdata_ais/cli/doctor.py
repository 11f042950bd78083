"""``torchdata-ais doctor``: is everything in place?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from torchdata_ais.cli._echo import echo, echo_json
from torchdata_ais.cli._run import Endpoint, ExitCodes, reported
from torchdata_ais.errors import AISError


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
    endpoint: Endpoint = "",
) -> None:
    """Look at versions, torch, loaders, codecs, machine, cluster and clock; say what to do.

    The exit code is 1 if something will not work. Put the output into a bug report; it holds no token.

    Examples:
        torchdata-ais doctor
        torchdata-ais doctor --json --endpoint http://host:51080
    """
    with reported(False, "torchdata_ais.checking.doctor", command=doctor):
        from torchdata_ais.checking.doctor import Check, diagnose
        from torchdata_ais.versions import versions

        try:
            checks = diagnose(endpoint or None)
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
