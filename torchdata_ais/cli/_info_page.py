"""What a data set holds, as one page of HTML with plots: no script, nothing from elsewhere, all names escaped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchdata_ais.cli._echo import shown_line
from torchdata_ais.shown import bytes_text, count_text
from torchdata_ais.tables import html_page, html_table, html_text

if TYPE_CHECKING:
    from torchdata_ais.cli._summary import Summary

_WIDTH, _ROW, _LABEL = 760, 22, 220
_BARS = 50
_LONGEST = 26
_SIDE = 360


def page_of(url: str, source: str, summary: Summary) -> str:
    """Return the page.

    Args:
        url: The data set, as the user named it.
        source: Where the counts come from.
        summary: What is known.
    """
    some = "" if summary.looked == summary.samples else f", of {count_text(summary.looked, 'sample')}"
    held = f"{count_text(summary.samples, 'sample')} in {count_text(summary.shards, 'shard')}"
    total = f"{held}, {bytes_text(summary.bytes)} ({source})"
    parts = [f"<h1>{_text(url)}</h1><p>{_text(total)}</p>", _fields(summary)]
    if summary.classes:
        named = [(summary.named(number), count) for number, count in summary.by_class()]
        parts.append(f"<h2>Samples of {len(named)} classes{some}</h2>{_bars(named)}")
    if summary.pictures:
        parts.append(
            f"<h2>Sizes of {count_text(sum(summary.pictures.values()), 'picture')}{some}</h2>{_sizes(summary)}"
        )
    if summary.broken:
        parts.append(f"<p>{summary.broken} of them cannot be opened: torchdata-ais lint names them.</p>")
    return html_page(url, parts)


def _fields(summary: Summary) -> str:
    rows = []
    for name, one in sorted(summary.fields.items()):
        sizes = (one.bytes, one.bytes // max(1, one.samples), one.least, one.most)
        rows.append([shown_line(name), str(one.samples), *map(bytes_text, sizes)])
    table = html_table(("field", "samples", "bytes", "mean", "least", "most"), rows)
    largest = sorted(((name, one.bytes) for name, one in summary.fields.items()), key=lambda one: -one[1])
    bars = _bars(largest, is_size=True)
    return f'<h2>Fields</h2><div class="wide">{table}</div><h2>Bytes of each field</h2>{bars}'


def _bars(values: Sequence[tuple[str, int]], *, is_size: bool = False) -> str:
    """Return horizontal bars, each with its name and its number."""
    shown = values[:_BARS]
    most = max((value for _, value in shown), default=0) or 1
    room = _WIDTH - _LABEL - 90
    rows = []
    for number, (name, value) in enumerate(shown):
        y = number * _ROW
        width = room * value / most
        told = bytes_text(value) if is_size else str(value)
        short = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
        rows.append(
            f'<text x="{_LABEL - 8}" y="{y + 15}" text-anchor="end">{_text(short)}<title>{_text(name)}</title></text>'
            f'<rect class="bar" x="{_LABEL}" y="{y + 3}" width="{width:.1f}" height="{_ROW - 7}"/>'
            f'<text x="{_LABEL + width + 6:.1f}" y="{y + 15}">{told}</text>'
        )
    more = f"<p>and {len(values) - _BARS} more</p>" if len(values) > _BARS else ""
    plot = f'<svg viewBox="0 0 {_WIDTH} {len(shown) * _ROW + 4}" role="img">{"".join(rows)}</svg>'
    return f'<div class="wide">{plot}</div>{more}'


def _sizes(summary: Summary) -> str:
    """Return width against height, a circle for each size, as large as many have it."""
    most = max(max(size) for size in summary.pictures)
    common = max(summary.pictures.values())
    left, span = 50, _SIDE - 70
    circles = "".join(
        f'<circle class="dot" cx="{left + span * width / most:.1f}" cy="{_SIDE - 40 - span * height / most:.1f}"'
        f' r="{3 + 9 * (count / common) ** 0.5:.1f}"><title>{width} x {height}: {count}</title></circle>'
        for (width, height), count in summary.pictures.most_common(2000)
    )
    bottom = _SIDE - 40
    return (
        f'<svg viewBox="0 0 {_SIDE} {_SIDE}" width="{_SIDE}" class="small" role="img">'
        f'<path class="axis" fill="none" d="M{left} {bottom - span} V{bottom} H{left + span}"/>{circles}'
        f'<text x="{left + span}" y="{bottom + 16}" text-anchor="end">{most} pixels wide</text>'
        f'<text x="{left + 6}" y="{bottom - span + 4}" text-anchor="start">{most} pixels high</text>'
        "</svg>"
    )


def _text(text: str) -> str:
    return html_text(shown_line(text))
