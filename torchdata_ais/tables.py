"""Tables as terminals, notebooks and pages show them: what stands in them is only text, whatever characters it has."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from torchdata_ais.redaction import clean

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 820px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.4em; overflow-wrap: anywhere; } h2 { font-size: 1.1em; margin-top: 1.8em; }
.wide { overflow-x: auto; } table { border-collapse: collapse; }
td, th { padding: .15em .9em .15em 0; vertical-align: top; }
td:first-child { min-width: 6em; }
svg { max-width: 100%; min-width: 34em; height: auto; } svg.small { min-width: 0; }
svg text { font-size: 12px; fill: currentColor; }
.bar { fill: #4c8bf5; } .dot { fill: #4c8bf5; fill-opacity: .45; } .axis { stroke: currentColor; stroke-opacity: .4; }
"""
_LEFT = ' style="text-align:left;overflow-wrap:anywhere"'
_RIGHT = ' style="text-align:right;white-space:nowrap"'


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table of texts, the first of them its head: names to the left, all else to the right.

    Example:
        >>> text_table([["stage", "items"], ["load", "12"]])
        ['stage  items', 'load      12']
    """
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *rest in rows:
        cells = (cell.rjust(width) for cell, width in zip(rest, others, strict=True))
        lines.append("  ".join([name.ljust(first), *cells]).rstrip())
    return lines


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Return a table of texts; spaces at the beginning of a cell stay.

    Args:
        head: What the columns are called; empty for none.
        rows: Their cells.
        left: How many columns begin at the left; the others, numbers, end at the right.

    Example:
        >>> html_table(["stage"], [["a < b"]])
        '<table><thead><tr><th style="text-align:left;overflow-wrap:anywhere">stage</th></tr></thead><tbody><tr><td \
style="text-align:left;overflow-wrap:anywhere">a &lt; b</td></tr></tbody></table>'
    """
    titles = f"<thead><tr>{_cells('th', head, left)}</tr></thead>" if head else ""
    body = "".join(f"<tr>{_cells('td', row, left)}</tr>" for row in rows)
    return f"<table>{titles}<tbody>{body}</tbody></table>"


def html_text(text: str) -> str:
    r"""Return a text for a page or a notebook: escaped, without secrets, control characters spelled out.

    Example:
        >>> html_text("<b>\x1b[2J")
        '&lt;b&gt;\\x1b[2J'
    """
    return html.escape(clean(text))


def with_lines(table: str, lines: Iterable[str]) -> str:
    """Return a table with lines of text below it.

    Example:
        >>> with_lines("<table></table>", ["1 process"])
        '<table></table><div>1 process</div>'
    """
    return table + "".join(f"<div>{html_text(line)}</div>" for line in lines if line)


def html_page(title: str, body: Iterable[str]) -> str:
    """Return a page of these parts, light or dark as the reader's system is. It runs no script and fetches nothing.

    Example:
        >>> html_page("a & b", ["<p>c</p>"]).startswith("<!DOCTYPE html>")
        True
    """
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html_text(title)}</title><style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _cells(tag: str, row: Sequence[str], left: int) -> str:
    return "".join(
        f"<{tag}{_LEFT if column < left else _RIGHT}>{_text(text)}</{tag}>" for column, text in enumerate(row)
    )


def _text(text: str) -> str:
    blanks = len(text) - len(text.lstrip(" "))
    return f"{'&nbsp;' * blanks}{html_text(text[blanks:])}"
