"""The command ``torchdata-ais``. Commands import what they need when they run, so that ``--help`` is quick."""

from __future__ import annotations

import typer

from torchdata_ais.cli._echo import echo
from torchdata_ais.cli._run import ExitCodes
from torchdata_ais.cli.bench import bench
from torchdata_ais.cli.convert import convert
from torchdata_ais.cli.demo import demo
from torchdata_ais.cli.doctor import doctor
from torchdata_ais.cli.dsort import dsort
from torchdata_ais.cli.etl import etl
from torchdata_ais.cli.index import index
from torchdata_ais.cli.inspect import inspect
from torchdata_ais.cli.lint import lint
from torchdata_ais.cli.ls import ls
from torchdata_ais.cli.put import put
from torchdata_ais.cli.serve import serve
from torchdata_ais.interrupt import quit_at_once

__all__ = ["app", "main"]

app = typer.Typer(
    name="torchdata-ais",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from torchdata_ais import __version__

        echo(__version__)
        raise typer.Exit


@app.callback(epilog=ExitCodes.HELP)
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Stream WebDataset shards from AIStore into PyTorch: try it, look at shards, store them."""


for _command in (demo, serve, ls, put, inspect, lint, index, bench, doctor, convert, dsort):
    app.command(epilog=ExitCodes.HELP)(_command)
app.add_typer(etl)


def main() -> None:
    """Run the command line."""
    quit_at_once()
    app()
