"""Output of commands.

On a terminal, sentences are wrapped between words and their first word has a colour; in a pipe every line is printed
as it is. Rich detects terminals, and obeys ``NO_COLOR`` and ``TERM=dumb``.

An argument is written ``name=`` or ``name=value`` in every message. A remedy with an argument that is not an option
here is left out: it cannot be typed at a shell.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, get_type_hints

import typer
from typer.models import OptionInfo

from torchdata_ais.errors import UsageError
from torchdata_ais.errors.redaction import clean, redact_text
from torchdata_ais.errors.text import Remedy, joined, sentence_case
from torchdata_ais.urls import parse_url

if TYPE_CHECKING:
    from torchdata_ais.store.jobs import Progress


READER_GONE = 141
"""Exit status in a shell after the reader, such as ``head``, has ended."""

_COLOURS = {
    "error": "bold red",
    "bad": "bold red",
    "warning": "bold yellow",
    "warn": "bold yellow",
    "note": "yellow",
    "next": "bold cyan",
    "interrupted": "bold yellow",
    "ok": "green",
}
_SENTENCES = frozenset(["error", "warning", "note"])


def echo(*lines: object, err: bool = False) -> None:
    r"""Print each argument as one line, with any characters in its names.

    A line feed in one is shown as ``\n``: split texts of several lines first.
    """
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    for line in lines:
        text = shown_line(str(line)).encode(encoding, "backslashreplace").decode(encoding)
        if stream is not None and stream.isatty():
            _show(text, err)
        else:
            _print(text, err)


def shown_line(text: str) -> str:
    r"""Return `text` as one line that a terminal only shows.

    Example:
        >>> shown_line("a\x1b[2J.jpg\nb")
        'a\\x1b[2J.jpg\\nb'
    """
    return clean(text).replace("\n", "\\n")


def echo_json(value: object, indent: int | None = None) -> None:
    """Print one JSON value; it escapes control characters by itself."""
    _print(json.dumps(_without_secrets(value), indent=indent), err=False)


@contextmanager
def bytes_out() -> Iterator[BinaryIO]:
    """Give standard output for bytes, or raise `UsageError` if it is closed."""
    if sys.stdout is None:
        raise UsageError.at("standard output is closed", todo="direct it into a file or a command")
    with _output():
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()


def _show(text: str, err: bool) -> None:
    """Print a line on a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=err, highlight=False, emoji=False)
    plain = console.no_color or console.color_system is None
    word = text.split(maxsplit=1)[0].rstrip(":") if text.strip() else ""
    if word in _SENTENCES:  # only between words: a command or a URL may be copied, and so may any other line
        text = "\n".join(wrap(text, console.width, break_long_words=False, break_on_hyphens=False))
    shown = Text(text)
    if word in _COLOURS and not plain:
        shown.stylize(_COLOURS[word], 0, len(word))
    console.print(shown, soft_wrap=True)


def _print(text: str, err: bool) -> None:
    with _output():
        typer.echo(text, err=err)


@contextmanager
def _output() -> Iterator[None]:
    """End quietly when the reader of standard output has gone.

    Other errors, such as a full disk, name standard output.
    """
    try:
        yield
    except BrokenPipeError:
        _drop_output()
        raise typer.Exit(READER_GONE) from None
    except OSError as error:
        _drop_output()
        error.filename = error.filename or "standard output"
        raise


def _drop_output() -> None:
    """Discard the rest of the buffer at the end of the process."""
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - os.devnull is text
        for stream in (sys.stdout, sys.stderr):
            _flush_or_drop(stream, nowhere.fileno())


def _flush_or_drop(stream: TextIO | None, nowhere: int) -> None:
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(nowhere, stream.fileno())


def _without_secrets(value: object) -> object:
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {name: _without_secrets(one) for name, one in value.items()}
    return [_without_secrets(one) for one in value] if isinstance(value, list | tuple) else value


def _bars(*columns: Any) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    console.quiet = not console.is_terminal  # older rich prints an empty line at the end of a disabled bar
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _counts(unit: str = "", size: Callable[[], int] | None = None) -> tuple[object, ...]:
    """Return the columns of counts: number, rate, bytes, time."""
    from rich.progress import MofNCompleteColumn, ProgressColumn, Task, TimeElapsedColumn, TimeRemainingColumn
    from rich.text import Text

    from torchdata_ais._util.formatting import bytes_text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.1f} {unit}/s" if unit else f"{speed:.1f}/s")

    class Bytes(ProgressColumn):
        def render(self, task: Task) -> Text:
            done = size() if size is not None else task.fields.get("size", 0)
            if size is None and not done:
                return Text("")
            rate = f" {bytes_text(int(done / task.elapsed))}/s" if task.elapsed and done else ""
            return Text(f"{bytes_text(done)}{rate}")

    if unit:
        return MofNCompleteColumn(), Rate(), *((Bytes(),) if size is not None else ()), TimeRemainingColumn()
    return MofNCompleteColumn(), Rate(), Bytes(), TimeElapsedColumn()


@contextmanager
def progress(
    title: str, unit: str, total: int, size: Callable[[], int] | None = None
) -> Iterator[Callable[[int], None]]:
    """Show a bar in the block; yield a function that advances it by units.

    `size` returns how many bytes are done.
    """
    with _bars(*_counts(f"{unit}s", size)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda steps: bar.advance(task, steps)


@contextmanager
def moved_bytes(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar of MB and MB/s in the block; yield a function of bytes."""
    from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    with _bars(DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(title, total=total or None)
        yield lambda steps: bar.advance(task, steps)


def progress_of(stack: ExitStack, title: str, size: Callable[[], int] | None = None) -> Callable[..., None]:
    """Return a function of ``(done, total, unit)`` that shows a bar.

    The bar appears at its first call, and stays until `stack` is closed.
    """
    advance: Callable[[int], None] | None = None
    shown = 0

    def show(done: int, total: int, unit: str = "shard") -> None:
        nonlocal advance, shown
        if advance is None:
            advance = stack.enter_context(progress(title, unit, total, size))
        advance(max(0, done - shown))
        shown = max(done, shown)

    return show


@contextmanager
def job_bars() -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows a job's `Progress`: a bar for each phase."""
    from torchdata_ais.store.jobs import SizedProgress

    tasks = {}
    with _bars(*_counts()) as bars:

        def show(progress: Progress) -> None:
            if progress.phase not in tasks:
                tasks[progress.phase] = bars.add_task(progress.phase, total=None, size=0)
            bars.update(
                tasks[progress.phase],
                completed=progress.done,
                total=progress.total or None,
                size=progress.size if isinstance(progress, SizedProgress) else 0,
            )

        yield show


_URL = re.compile(r"https?://[^\s/'\"]+/v1/objects/[^\s'\"<>]+")
_END = ".,;:)"
_ARGUMENT = re.compile(r"(?<![-\w?&/\"'])[a-z_]{2,}=(?=$|[\s,.;)\"'{\[]|True|False|None|\d)")
_EVERYWHERE = {"cluster": "--endpoint"}
"""Arguments that every command has as an option of another name."""


@cache
def names_of(command: Callable[..., object]) -> Mapping[str, str]:
    """Return the options of a command, by parameter name.

    Example:
        >>> from torchdata_ais.cli.convert import convert
        >>> names_of(convert)["map"], names_of(convert)["max_pixels"]
        ('--map', '--max-pixels')
    """
    found = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        for info in getattr(hint, "__metadata__", ()):
            if isinstance(info, OptionInfo):
                words = (info.default, *(info.param_decls or ()))
                declared = [word for word in words if isinstance(word, str) and word.startswith("--")]
                option = declared[0] if declared else f"--{name.replace('_', '-')}"
                found[name] = found[option[2:].replace("-", "_")] = option
    return found


def as_typed(text: str, options: Mapping[str, str]) -> str:
    """Return a sentence with options for arguments, and short object names.

    Example:
        >>> as_typed("regex='x' matches nothing; pass overwrite=True", {"regex": "--regex", "overwrite": "--overwrite"})
        '--regex=x matches nothing; pass --overwrite'
        >>> as_typed("reading http://h:51080/v1/objects/pets/a%20b.tar?provider=aws failed", {})
        'reading s3://pets/a b.tar failed'
    """
    text = _URL.sub(lambda found: _short(found[0]), text)
    for name, option in {**_EVERYWHERE, **options}.items():
        text = re.sub(rf"(?<![-\w]){name}=(['\"])([\w./:;-]+)\1", rf"{option}=\2", text)
        text = re.sub(rf"(?<![-\w]){name}=(True\b|(?![\w'\"\[{{-]))", option, text)
        text = re.sub(rf"(?<![-\w]){name}=", f"{option}=", text)
    return text


def remedy_as_typed(todo: str, options: Mapping[str, str]) -> str:
    """Return a remedy in words of the command line; "" if it has none.

    Example:
        >>> remedy_as_typed(Remedy("use on_error='skip'", "name the fields with only="), {"only": "--only"})
        'Name the fields with --only'
        >>> remedy_as_typed("Pass require_end=False", {})
        ''
    """
    ways = (as_typed(way.text, options) for way in Remedy.of(todo).ways if way.commands)
    return sentence_case(joined([way for way in ways if not _ARGUMENT.search(way)]))


def place_as_typed(value: object) -> str:
    """Return a part of an error's place: objects by their short names."""
    return _URL.sub(lambda found: _short(found[0]), str(value))


def _short(url: str) -> str:
    cut = len(url.rstrip(_END))
    try:
        return parse_url(url[:cut]).uri + url[cut:]
    except UsageError:
        return url


_SAID: dict[int, tuple[str, str]] = {
    errno.ENOSPC: ("the disk is full", "free space, or write elsewhere"),
    errno.EDQUOT: ("the quota of this user is used up", "free space, or write elsewhere"),
    errno.EFBIG: ("a file may not grow so large here", "look at ulimit -f and the file system"),
    errno.EROFS: ("the file system can only be read", "write elsewhere"),
    errno.ENOENT: ("there is no such file or folder, and none can be made", "check the path"),
    errno.EEXIST: ("there is a file of this name", "name a folder"),
    errno.EISDIR: ("this is a folder, and no file", "name a file"),
    errno.ENOTDIR: ("a part of this path is a file, and no folder", "check the path"),
    errno.EACCES: ("this user may not do that here", "look at its permissions, or name another place"),
    errno.EPERM: ("this user may not do that here", "look at its permissions, or name another place"),
    errno.EMFILE: ("too many files are open", "raise the limit: ulimit -n 65536"),
    errno.ENAMETOOLONG: ("the name is too long for the file system", "shorten it"),
    errno.EIO: ("the device failed", "look at the disk, and at the kernel's log"),
}


def os_sentence(error: OSError) -> str:
    """Return an error of the operating system as a sentence with its remedy.

    Example:
        >>> os_sentence(OSError(errno.ENOSPC, "No space left on device", "/data/a.tar"))
        '/data/a.tar: the disk is full (No space left on device). Free space, or write elsewhere'
        >>> os_sentence(OSError("gone"))
        'gone'
    """
    if error.errno is None:
        return str(error) or type(error).__name__
    what, todo = _SAID.get(error.errno, ("", ""))
    system = error.strerror or errno.errorcode.get(error.errno, str(error.errno))
    said = f"{what} ({system}). {todo[0].upper()}{todo[1:]}" if what else system
    return f"{error.filename}: {said}" if error.filename is not None else said


def check_new_file(path: Path | None) -> None:
    """Raise `UsageError` where no new file can be: a folder, or in no folder."""
    if path is None:
        return
    if path.is_dir():
        raise UsageError.at(f"{path}: this is a folder", todo="name a file in it", url=str(path))
    if not path.parent.is_dir():
        raise UsageError.at(
            f"{path}: there is no folder {path.parent}",
            todo="make it first, or write elsewhere",
            url=str(path),
        )
