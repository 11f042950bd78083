"""Run of a command: errors, exit codes, help pages."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from torchdata_ais._util.process_end import LINE, STATUS
from torchdata_ais.cli._output import (
    as_typed,
    echo,
    names_of,
    os_sentence,
    place_as_typed,
    remedy_as_typed,
    shown_line,
)
from torchdata_ais.errors import AISError, MissingLibraryError, UsageError
from torchdata_ais.urls import no_cluster, parse_url

if TYPE_CHECKING:
    from torchdata_ais.store import StoreOptions


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Endpoint = Annotated[
    str,
    typer.Option(help="The cluster, as http://host:51080. Default: AIS_ENDPOINT.", show_default=False),
]

_NEXT: ContextVar[str] = ContextVar("next", default="")


class ExitCodes:
    """Exit codes of the command."""

    FAILED = 1
    WRONG = 2
    INTERRUPTED = STATUS
    HELP = "Exit codes: 0 done, 1 failed (the message says why), 2 wrong arguments, 130 interrupted."


@contextmanager
def reported(
    debug: bool = False,
    *libraries: str,
    command: Callable[..., object] | None = None,
    also: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Run a command; report errors of this package by message and exit code.

    The exit code is 1 or 2, that of signals 130. SIGTERM is handled like Ctrl-C, so that clusters are stopped and
    buckets removed.

    Args:
        debug: Show their traceback.
        libraries: Slow imports of the command: Ctrl-C during them ends the process at once.
        command: Whose options messages name.
        also: Options for an argument of another name.
    """
    for name in libraries:
        importlib.import_module(name)
    interrupted = False
    said = _NEXT.set("")

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        # A library may have raised another error in place of the interrupt.
        if isinstance(error, KeyboardInterrupt) or (interrupted and not isinstance(error, typer.Exit)):
            echo(LINE, err=True)
            if _NEXT.get():
                echo(f"next: {_NEXT.get()}", err=True)
            raise typer.Exit(ExitCodes.INTERRUPTED) from None
        if not isinstance(error, AISError | OSError):
            raise
        options = {**(names_of(command) if command else {}), **(also or {})}
        if debug:  # here, since the library of the command line takes an EOFError for Ctrl-D
            echo(*"".join(traceback.format_exception(error)).rstrip("\n").split("\n"), err=True)
        else:
            echo(*f"error: {sentence(error, options)}".split("\n"), err=True)
        wrong = isinstance(error, UsageError) and not isinstance(error, MissingLibraryError)
        raise typer.Exit(ExitCodes.WRONG if wrong else ExitCodes.FAILED) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _NEXT.reset(said)


def command(
    *libraries: str, also: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command, see `reported`.

    ``--debug`` is its last option, unless it has one itself.
    """

    def made(function: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(function, eval_str=True)

        @wraps(function)
        def run(*, debug: bool = False, **values: object) -> None:
            passed = {"debug": debug} if "debug" in own.parameters else {}
            with reported(debug, *libraries, command=run, also=also):
                function(**values, **passed)

        last = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
        parameters = {**own.parameters, "debug": last}
        run.__signature__ = own.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]
        return run

    return made


def goes_on(*more: str, after: str = "") -> None:
    """Name this command as the one that resumes the work after an interrupt.

    `more` options are needed then, and steps before it (`after`, with connecting words).
    """
    words = sys.argv[1:] + [word for word in more if word not in sys.argv]
    _NEXT.set(f"{after}torchdata-ais {shlex.join(words)}")


def sentence(error: BaseException, options: Mapping[str, str] | None = None) -> str:
    """Return an error's text with options of this command, and its place.

    Example:
        >>> from torchdata_ais.errors import NotFoundError
        >>> print(sentence(NotFoundError.at("no bucket 'x'", todo="Create it", url="ais://x", attempt=None)))
        No bucket 'x'. Create it
          url: ais://x
    """
    names = options or {}
    if isinstance(error, OSError) and not isinstance(error, AISError):
        return as_typed(os_sentence(error), names)
    if not isinstance(error, AISError):
        return as_typed(str(error) or type(error).__name__, names)
    todo = remedy_as_typed(error.todo, names)
    text = as_typed(error.what, names)
    place = (f"  {name}: {shown_line(place_as_typed(value))}" for name, value in error.place.items())
    return "\n".join([f"{text}. {todo}" if todo else text, *place])


def options_for(endpoint: str = "", host: str = "") -> StoreOptions:
    """Return how to reach the cluster: by `endpoint`, else ``AIS_ENDPOINT``.

    A `host` in a URL is reached instead: without the token if it is not the same.
    """
    from torchdata_ais.store import resolve_options
    from torchdata_ais.store.transport.tokens import origin

    options = resolve_options(endpoint=endpoint or None)
    if host:
        named = options.endpoint and origin(options.endpoint) == origin(host)
        return replace(options, endpoint=host, token=options.token if named else None)
    if not options.endpoint:
        raise no_cluster().noting("torchdata-ais serve starts one here")
    return options


def options_of(urls: Iterable[str], endpoint: str) -> StoreOptions | None:
    """Return how to reach the cluster, if a URL is an object that names none."""
    needed = any(place.kind == "object" and not place.endpoint for place in map(parse_url, urls))
    return options_for(endpoint) if needed else None


_SECTION = re.compile(r"\n\n(Args|Examples):\n")
_ARGUMENT = re.compile(r"^ {4}(\w+)(?: \((.+?)\))?: (.*(?:\n {8}.*)*)", re.MULTILINE)
_METAVARS = {bool: "", int: "N", float: "SECONDS"}


_OTHER_COMMANDS = {
    "mv": "Copy with cp, then remove the old one with rm",
    "sync": "put, get and cp store only what is not there yet: run them again",
    "stat": "ls -l ais://bucket/object shows bytes, checksum and version",
    "head": "ls -l ais://bucket/object shows bytes, checksum and version; cat writes an object",
    "du": "info counts the bytes of a data set; ls those of a prefix",
    "mb": "put and cp make a bucket that is missing",
    "rb": "rm -r ais://bucket removes a bucket",
    "upload": "It is called put",
    "download": "It is called get",
    "delete": "It is called rm",
    "list": "It is called ls",
    "version": "It is --version",
    "help": "It is --help, also behind the name of a command",
}
_WHOLE = "A folder, a prefix or a template is taken as a whole: leave it out"
_OTHER_OPTIONS = {
    option: advice
    for options, advice in (
        ("-r -R --recursive", _WHOLE),
        ("-rf -fr", "Write -r --yes"),
        ("-f --force", "rm has --yes; get, put and cp have --overwrite"),
        ("--dry-run --dryrun -n", "ls shows what a prefix or a template names; nothing is changed by it"),
        ("--jobs --workers --num-workers", "It is called --processes"),
    )
    for option in options.split()
}


class _Group(TyperGroup):
    """Commands; one that others have is answered with ours."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _OTHER_COMMANDS and args[0] not in self.commands:
            ctx.fail(f"No such command {args[0]!r}. {_OTHER_COMMANDS[args[0]]}.")
        return super().resolve_command(ctx, args)


class _Command(TyperCommand):
    """A command; an option that others have is answered with ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {name for one in self.params for name in (*one.opts, *one.secondary_opts)}
        before = args[: args.index("--")] if "--" in args else args
        for name in (word.partition("=")[0] for word in before):
            advice = _OTHER_OPTIONS.get(name, "")
            if name in own or not advice or (advice.endswith("--processes") and "--processes" not in own):
                continue
            ctx.fail(
                f"No such option: {name}. {advice if advice[-5:] != '--yes' or '-r' in own else _WHOLE}."
            )
        return super().parse_args(ctx, args)


def command_line(**named: Any) -> typer.Typer:
    """Return an empty command line, with help laid out and coloured by rich."""
    return typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        cls=_Group,
        **named,
    )


def add_command(
    app: typer.Typer, function: Callable[..., object], *, name: str | None = None, panel: str | None = None
) -> None:
    """Make `function` a command of `app`, under the heading `panel`.

    Parameters with a default are options, those without are arguments. A `bool` that is False is an option that turns
    it on. The docstring is the help: text, ``Args:``, and the lines under ``Examples:`` last. The placeholder of a
    value, if it is not a common word, is in brackets after the name: ``source (URL): ...``.
    """
    text, arguments, examples = _page(inspect.getdoc(function) or "")
    signature = inspect.signature(function, eval_str=True)
    parameters = [_told(one, *arguments.get(one.name, ("", ""))) for one in signature.parameters.values()]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {one.name: one.annotation for one in parameters}
    # An empty line between them: versions of Typer before 0.29 join consecutive lines.
    epilog = "\n\n".join(["Examples:", *(f"  {line}" for line in examples), ExitCodes.HELP])
    app.command(name, cls=_Command, help=text, epilog=epilog, rich_help_panel=panel)(function)


def _page(docstring: str) -> tuple[str, dict[str, tuple[str, str]], list[str]]:
    r"""Return a docstring's prose, placeholders and texts by name, examples.

    Example:
        >>> _page("Do it.\n\nSlowly, and\nwell.\n\nArgs:\n    n (N): How\n        often.\n\nExamples:\n    it 1")
        ('Do it.\n\nSlowly, and well.', {'n': ('N', 'How often.')}, ['it 1'])
    """
    prose, *rest = _SECTION.split(docstring)
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    arguments = {
        name: (metavar, " ".join(text.split()))
        for name, metavar, text in _ARGUMENT.findall(sections.get("Args", ""))
    }
    examples = [line.strip() for line in sections.get("Examples", "").splitlines()]
    return re.sub(r"(?<!\n)\n(?!\n)", " ", prose), arguments, examples


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


def _declared(parameter: inspect.Parameter) -> object:
    if parameter.default is parameter.empty:
        return typer.Argument()
    is_flag = parameter.default is False  # which has no --no-...
    return typer.Option(f"--{parameter.name.replace('_', '-')}") if is_flag else typer.Option()


def function_named(name: str | None) -> Callable[..., Any] | None:
    """Import what MODULE:FUNCTION names, also from the current folder."""
    if not name:
        return None
    module, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        shown = name.replace(".py", "") if ":" in name and ".py" in name else "augment:flip"
        raise UsageError.at(
            f"there is no function {name!r}: {error}", todo=f"write MODULE:FUNCTION, such as {shown}"
        ) from error
    if not callable(function):
        raise UsageError.at(f"{name} is no function", todo="write MODULE:FUNCTION, such as augment:flip")
    made: Callable[..., object] = function
    return made
