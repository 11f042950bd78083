"""Tables as notebooks show them."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

__all__ = ["html_table", "with_lines"]


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts; spaces at the beginning of a cell stay.

    Example:
        >>> html_table(["stage"], [["a < b"]])
        '<table><thead><tr><th>stage</th></tr></thead><tbody><tr><td>a &lt; b</td></tr></tbody></table>'
    """
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    titles = "".join(f"<th>{html.escape(title)}</th>" for title in head)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def with_lines(table: str, lines: Iterable[str]) -> str:
    """Return a table with lines of text below it.

    Example:
        >>> with_lines("<table></table>", ["1 process"])
        '<table></table><div>1 process</div>'
    """
    return table + "".join(f"<div>{html.escape(line)}</div>" for line in lines if line)


def _cell(text: str) -> str:
    blanks = len(text) - len(text.lstrip(" "))
    return f"<td>{'&nbsp;' * blanks}{html.escape(text[blanks:])}</td>"
