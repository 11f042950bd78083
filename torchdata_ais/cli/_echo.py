"""All that the commands print goes through here: no secret, and nothing a terminal would obey.

On a terminal, sentences are wrapped between words and their first word has a colour; in a pipe every line is printed as
it is. Rich decides what a terminal is, and obeys ``NO_COLOR`` and ``TERM=dumb``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import wrap
from typing import Any, BinaryIO, TextIO

import typer

from torchdata_ais.errors import UsageError
from torchdata_ais.redaction import clean, redact_text

READER_GONE = 141
"""What a shell reports of a command whose reader, such as ``head``, had enough."""

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
    r"""Print each argument as one line, whatever characters the names in it have.

    Args:
        lines: What to print. A line feed in one is shown as ``\n``: split texts of several lines first.
        err: Whether to print to the error stream.
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


def echo_json(value: Any, indent: int | None = None) -> None:
    """Print one JSON value; it escapes control characters by itself."""
    _print(json.dumps(_without_secrets(value), indent=indent), err=False)


@contextmanager
def bytes_out() -> Iterator[BinaryIO]:
    """Give standard output for bytes.

    Raises:
        UsageError: It was closed before the command began.
    """
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
    """End quietly when the reader of standard output has gone; name it in other errors, such as a full disk."""
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
    """Have what is left in the buffer go nowhere when the process ends."""
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


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {name: _without_secrets(one) for name, one in value.items()}
    return [_without_secrets(one) for one in value] if isinstance(value, list | tuple) else value
