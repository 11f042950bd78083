"""The command line in this process."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from torchdata_ais.cli import app


def run(*words: object) -> Any:
    """Return what `torchdata-ais` with these words makes: ``exit_code``, ``output``, ``stdout``."""
    return CliRunner().invoke(app, [str(word) for word in words])
