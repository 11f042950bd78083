"""The command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typer.testing import CliRunner

from torchdata_ais.cli import app

Run = Callable[..., Any]


def run(*words: object) -> Any:
    """Return what `torchdata-ais` with these words makes: ``exit_code``, ``output``, ``stdout``."""
    return CliRunner().invoke(app, [str(word) for word in words])
