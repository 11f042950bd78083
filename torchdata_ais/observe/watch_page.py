"""A page with plots of a run, rank by rank: one file, without scripts or anything from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchdata_ais.observe.across import HEAD, Readiness, row_of
from torchdata_ais.observe.chrome_trace import write_whole
from torchdata_ais.observe.sketch import Sketch
from torchdata_ais.observe.time_text import time_text
from torchdata_ais.tables import html_page, html_table, html_text

_WIDTH, _HEIGHT = 720, 180
_LEFT, _TOP = 70, 30  # for the times, and for the legend
_WIDEST, _LABEL = 60, 26  # a bar with the space around it; a rank's number
_SHARES = (0.5, 0.9, 0.99)
_NAMES = ("half of the batches", "90 of 100", "99 of 100")
_COLOURS = ("#4c78a8", "#f58518", "#e45756")


def write_page(found: Readiness, path: Path) -> None:
    """Write the page.

    Raises:
        LoaderError: The file cannot be written.
    """
    ranks = [one.rank for one in found.ranks]
    table = html_table(HEAD, [row_of(one) for one in found.ranks], left=2)
    body = [
        f"<h1>{html_text(found.sentence)}</h1>",
        *(f"<p>{html_text(note)}</p>" for note in found.notes),
        "<h2>How long the loop waited for a batch</h2>",
        _bars(ranks, [one.wait for one in found.ranks]),
        "<h2>How long the loop worked on one</h2>",
        _bars(ranks, [one.loop for one in found.ranks]),
        f'<h2>The ranks</h2><div class="wide">{table}</div>',
    ]
    write_whole(path, html_page("torchdata-ais watch", body).encode())


def _bars(ranks: Sequence[int], sketches: Sequence[Sketch]) -> str:
    """Return a plot of quantiles, rank by rank, as SVG."""
    values = [[sketch.quantile(share) for share in _SHARES] for sketch in sketches]
    most = max((value for row in values for value in row), default=0.0) or 1.0
    each = min(_WIDEST, _WIDTH / max(1, len(ranks)))
    labelled = max(1, math.ceil(_LABEL / each))  # every so many ranks
    foot = _TOP + _HEIGHT
    parts = [
        f'<div class="wide"><svg viewBox="0 0 {_WIDTH + _LEFT} {foot + 24}" role="img">',
        *_legend(),
        f'<path class="axis" fill="none" d="M{_LEFT} {_TOP} V{foot} H{_WIDTH + _LEFT}"/>',
        *(_height(most * part, foot - _HEIGHT * part) for part in (0.5, 1)),
    ]
    for place, (rank, row) in enumerate(zip(ranks, values, strict=True)):
        left = _LEFT + place * each
        for number in reversed(range(len(_SHARES))):
            height = _HEIGHT * row[number] / most
            text = f"rank {rank}: {_NAMES[number]} within {time_text(row[number])}"
            parts.append(
                f'<rect x="{left + each * 0.1:.1f}" y="{foot - height:.1f}" width="{each * 0.8:.1f}" '
                f'height="{height:.1f}" fill="{_COLOURS[number]}"><title>{text}</title></rect>'
            )
        if place % labelled == 0:
            parts.append(
                f'<text x="{left + each / 2:.1f}" y="{foot + 16}" text-anchor="middle">{rank}</text>'
            )
    return "".join([*parts, "</svg></div>"])


def _height(seconds: float, y: float) -> str:
    return f'<text x="{_LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{time_text(seconds)}</text>'


def _legend() -> Iterator[str]:
    """Yield what the colours are."""
    for number, (name, colour) in enumerate(zip(_NAMES, _COLOURS, strict=True)):
        left = _LEFT + 190 * number
        yield f'<rect x="{left}" y="4" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{left + 18}" y="14">{name}</text>'
