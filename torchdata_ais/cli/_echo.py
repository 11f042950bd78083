"""All that the commands print goes through here: no secret, and nothing a terminal would obey."""

from __future__ import annotations

import json
import sys
from typing import Any

import typer

from torchdata_ais.redaction import clean, redact_text


def echo(*lines: object, err: bool = False) -> None:
    r"""Print each argument as one line, whatever characters the names in it have.

    Args:
        lines: What to print. A line feed in one is shown as ``\n``: split texts of several lines first.
        err: Whether to print to the error stream.
    """
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    for line in lines:
        typer.echo(shown_line(str(line)).encode(encoding, "backslashreplace").decode(encoding), err=err)


def shown_line(text: str) -> str:
    r"""Return `text` as one line that a terminal only shows.

    Example:
        >>> shown_line("a\x1b[2J.jpg\nb")
        'a\\x1b[2J.jpg\\nb'
    """
    return clean(text).replace("\n", "\\n")


def echo_json(value: Any, indent: int | None = None) -> None:
    """Print one JSON value; it escapes control characters by itself."""
    typer.echo(json.dumps(_without_secrets(value), indent=indent))


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {name: _without_secrets(one) for name, one in value.items()}
    return [_without_secrets(one) for one in value] if isinstance(value, list | tuple) else value
