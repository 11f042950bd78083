"""The command ``torchdata-ais``.

Commands import their modules when they run, so that ``--help`` is quick.
"""

from __future__ import annotations

import itertools
import os
import sys

import typer

from torchdata_ais._util.process_end import quit_at_once
from torchdata_ais.cli._output import echo, os_sentence
from torchdata_ais.cli._run import ExitCodes, add_command, command_line
from torchdata_ais.cli.convert import convert
from torchdata_ais.cli.demo import demo, serve
from torchdata_ais.cli.doctor import bench, doctor
from torchdata_ais.cli.index import index
from torchdata_ais.cli.info import info
from torchdata_ais.cli.inspect import inspect
from torchdata_ais.cli.jobs import dsort, etl
from torchdata_ais.cli.lint import lint
from torchdata_ais.cli.objects import cat, cp, get, ls, put, rm
from torchdata_ais.cli.runs import simulate, trace_step, watch

__all__ = ["app", "main"]

_PANELS = {
    "Try it": (demo, serve, doctor),
    "Buckets and objects": (ls, put, get, cat, cp, rm),
    "Shards": (info, inspect, lint, index, bench, convert, dsort),
    "Runs": (simulate, trace_step, watch),
}

app = command_line(name="torchdata-ais")


def _version(wanted: bool) -> None:
    if wanted:
        from torchdata_ais import __version__

        echo(__version__)
        raise typer.Exit


@app.callback(epilog=ExitCodes.HELP)
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version.", metavar=""
    ),
) -> None:
    """Stream WebDataset shards from AIStore into PyTorch: try, check, store."""


for _panel, _commands in _PANELS.items():
    for _command in _commands:
        add_command(app, _command, panel=_panel)
app.add_typer(etl, rich_help_panel="Shards")


def main() -> None:
    """Run the command line."""
    quit_at_once()
    if os.environ.get("NO_COLOR"):  # rich would leave bold letters in the help
        os.environ.setdefault("_TYPER_FORCE_DISABLE_TERMINAL", "1")
    _refuse_empty(sys.argv[1:])
    try:
        app()
    except OSError as error:  # of the pages of the help: commands report their own
        echo(f"error: {os_sentence(error)}", err=True)
        sys.exit(ExitCodes.FAILED)


def _refuse_empty(words: list[str]) -> None:
    """Refuse an empty word, which a shell makes of an unset variable.

    "" as a path is the current folder. An empty --endpoint counts as none, as an empty AIS_ENDPOINT does.
    """
    for before, word in itertools.pairwise(["", *words]):
        option = word.removesuffix("=") if word[:2] == "--" and word[-1] == "=" else "" if word else before
        if (word and not option) or option == "--endpoint":
            continue
        behind = f" behind {option}" if option else ""
        echo(f"error: An argument is empty{behind}. Was a variable of the shell not set?", err=True)
        sys.exit(ExitCodes.WRONG)
