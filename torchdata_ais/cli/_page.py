"""The help page of a command, out of its docstring: what it does, its arguments, its examples, the exit codes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from copy import copy
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import typer
from typer.models import ArgumentInfo

from torchdata_ais.cli._run import ExitCodes

_SECTION = re.compile(r"\n\n(Args|Examples):\n")
_ARGUMENT = re.compile(r"^ {4}(\w+)(?: \((.+?)\))?: (.*(?:\n {8}.*)*)", re.MULTILINE)
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

    Parameters with a default are options, those without are arguments. A `bool` that is False is an option that turns
    it on.

    Args:
        app: Where to add it.
        function: Its docstring is the help: what each of its ``Args:`` is, the lines under ``Examples:`` last. What
            stands for a value, if it is no common word, stands in brackets behind the name: ``source (URL): ...``.
        name: That of the command; default: the function's.
        panel: The heading above it in the list of commands.
    """
    page = _Page.of(inspect.getdoc(function) or "")
    signature = inspect.signature(function, eval_str=True)
    parameters = [
        _told(one, *page.arguments.get(one.name, ("", ""))) for one in signature.parameters.values()
    ]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {one.name: one.annotation for one in parameters}
    # An empty line between them: versions of Typer before 0.29 join lines that stand together.
    epilog = "\n\n".join(["Examples:", *(f"  {line}" for line in page.examples), ExitCodes.HELP])
    app.command(name, help=page.text, epilog=epilog, rich_help_panel=panel)(function)


class _Page(NamedTuple):
    """What a docstring says.

    Attributes:
        text: The prose, one line a paragraph.
        arguments: By name, what stands for each in the help, or "", and what it is.
        examples: Commands.
    """

    text: str
    arguments: dict[str, tuple[str, str]]
    examples: list[str]

    @classmethod
    def of(cls, docstring: str) -> _Page:
        r"""Return the parts of a docstring.

        Example:
            >>> _Page.of("Do it.\n\nSlowly, and\nwell.\n\nArgs:\n    n (N): How\n        often.\n\nExamples:\n    it 1")
            _Page(text='Do it.\n\nSlowly, and well.', arguments={'n': ('N', 'How often.')}, examples=['it 1'])
        """
        prose, *rest = _SECTION.split(docstring)
        sections = dict(zip(rest[::2], rest[1::2], strict=True))
        arguments = {
            name: (metavar, " ".join(text.split()))
            for name, metavar, text in _ARGUMENT.findall(sections.get("Args", ""))
        }
        examples = [line.strip() for line in sections.get("Examples", "").splitlines()]
        return cls(re.sub(r"(?<!\n)\n(?!\n)", " ", prose), arguments, examples)


def _told(parameter: inspect.Parameter, metavar: str, text: str) -> inspect.Parameter:
    """Return a parameter of a command as Typer shows it."""
    name, hint = parameter.name, parameter.annotation
    kind, info = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, _declared(parameter))
    info = copy(info)  # several commands may have it
    kinds = set(get_args(kind) or [kind])
    word = next((word for kind, word in _METAVARS.items() if kind in kinds), "TEXT")
    info.metavar = metavar or info.metavar or (name.upper() if isinstance(info, ArgumentInfo) else word)
    info.help = text or info.help
    info.show_default = info.show_default and parameter.default != ""
    return parameter.replace(annotation=Annotated[kind, info])


def _declared(parameter: inspect.Parameter) -> Any:
    if parameter.default is parameter.empty:
        return typer.Argument()
    is_flag = parameter.default is False  # of which there is no --no-...
    return typer.Option(f"--{parameter.name.replace('_', '-')}") if is_flag else typer.Option()
