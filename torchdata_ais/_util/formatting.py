"""Values, sizes, durations and tables as text."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from torchdata_ais.errors.redaction import clean

_MOST = 4
_TEXT = 40


def bytes_text(count: float) -> str:
    """Return a number of bytes as people read it.

    Example:
        >>> bytes_text(812), bytes_text(36_500), bytes_text(2.5e9), bytes_text(7.2e15)
        ('812 B', '36.5 kB', '2.5 GB', '7200.0 TB')
    """
    if count < 1000:
        return f"{count:.0f} B"
    units = ["kB", "MB", "GB", "TB"]
    while (count := count / 1000) >= 1000 and len(units) > 1:
        del units[0]
    return f"{count:.1f} {units[0]}"


def count_text(count: int, what: str) -> str:
    """Return how many of something.

    Example:
        >>> count_text(1, "shard"), count_text(2, "shard")
        ('1 shard', '2 shards')
    """
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def span_text(numbers: tuple[int, int]) -> str:
    """Return the fewest and the most of something.

    Example:
        >>> span_text((3, 3)), span_text((3, 4))
        ('3', '3 to 4')
    """
    fewest, most = numbers
    return f"{most}" if fewest == most else f"{fewest} to {most}"


def value_text(value: Any) -> str:
    r"""Return type and size of a value; short values as they are.

    Example:
        >>> import numpy as np
        >>> value_text(np.zeros((3, 8, 8), np.uint8)), value_text((1, "cat")), value_text(b"\xff\xd8" + bytes(36_498))
        ('ndarray uint8 3 x 8 x 8', "(1, 'cat')", "36.5 kB b'\\xff\\xd8\\x00\\x00'...")
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        head = bytes(value[:4])
        return repr(bytes(value)) if len(value) <= 16 else f"{bytes_text(len(value))} {head!r}..."
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and hasattr(value, "dtype"):
        size = " x ".join(map(str, shape)) or "scalar"
        return f"{type(value).__name__} {str(value.dtype).removeprefix('torch.')} {size}"
    if hasattr(value, "mode") and isinstance(getattr(value, "size", None), tuple):
        return f"PIL image {value.mode} {' x '.join(map(str, value.size))}"
    if type(value) in (tuple, list):
        shown = [value_text(one) for one in value[:_MOST]]
        more = [f"... {len(value)}"] if len(value) > _MOST else []
        text = ", ".join(shown + more)
        return f"[{text}]" if isinstance(value, list) else f"({text})"
    if type(value) is dict:
        shown = [f"{name!r}: {value_text(one)}" for name, one in list(value.items())[:_MOST]]
        more = [f"... {len(value)}"] if len(value) > _MOST else []
        return f"{{{', '.join(shown + more)}}}"
    if isinstance(value, (int, float, str)) or value is None:
        text = repr(value)
        return text if len(text) <= _TEXT else f"{text[: _TEXT - 3]}...{text[0]}"
    return f"a {type(value).__name__}"


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
    """Return the lines of a table of texts, the first of them its head.

    Names are aligned to the left, all other columns to the right.

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
        head: The names of the columns; empty for none.
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
    r"""Return a text for a page or a notebook: escaped and without secrets.

    Control characters are spelled out.

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
    """Return a page of these parts, light or dark as the reader's system is.

    It runs no script and fetches nothing.

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


def time_text(seconds: float) -> str:
    """Return a duration for reading.

    Example:
        >>> time_text(0.0123), time_text(12.3), time_text(0.00002)
        ('12 ms', '12.3 s', '0.02 ms')
    """
    if seconds >= 1e9:
        return f"{seconds:.1g} s"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    milliseconds = 1000 * seconds
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"
