"""The help page of a command, out of its docstring: what it does, its examples, the exit codes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import typer
from typer.models import ParameterInfo

from torchdata_ais.cli._run import ExitCodes

_EXAMPLES = re.compile(r"\n\nExamples:\n(?P<lines>(?: {4}.*\n?)+)")
_METAVARS = {bool: "", int: "N", float: "SECONDS"}


def command_line(**named: Any) -> typer.Typer:
    """Return an empty command line, with help that rich lays out and colours on a terminal."""
    return typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        **named,
    )


def add_command(
    app: typer.Typer, function: Callable[..., Any], *, name: str | None = None, panel: str | None = None
) -> None:
    """Make `function` a command of `app`.

    Args:
        app: Where to add it.
        function: Its docstring is the help; the lines under ``Examples:`` come last.
        name: That of the command; default: the function's.
        panel: The heading above it in the list of commands.
    """
    text, examples = _parts(inspect.getdoc(function) or "")
    hints = get_type_hints(function, include_extras=True)
    for hint in hints.values():
        for info in getattr(hint, "__metadata__", ()):
            if isinstance(info, ParameterInfo) and info.metavar is None:
                kinds = set(get_args(hint.__origin__) or [hint.__origin__])
                info.metavar = next((word for kind, word in _METAVARS.items() if kind in kinds), "TEXT")
    function.__annotations__ = hints  # with the words above, which Typer would read anew from the source
    # An empty line between them: versions of Typer before 0.29 join lines that stand together.
    epilog = "\n\n".join(["Examples:", *(f"  {line}" for line in examples), ExitCodes.HELP])
    app.command(name, help=text, epilog=epilog, rich_help_panel=panel)(function)


def _parts(docstring: str) -> tuple[str, list[str]]:
    r"""Return the prose of a docstring, one line a paragraph, and its examples.

    Example:
        >>> _parts("Do it.\n\nSlowly, and\nwell.\n\nExamples:\n    do it\n")
        ('Do it.\n\nSlowly, and well.', ['do it'])
    """
    found = _EXAMPLES.search(docstring + "\n")
    examples = [line.strip() for line in found["lines"].splitlines()] if found else []
    prose = docstring[: found.start()] if found else docstring
    return re.sub(r"(?<!\n)\n(?!\n)", " ", prose), examples
