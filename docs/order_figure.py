"""Draws the orders of a stream and of an index as SVG: the figure of the guide that compares them.

``python docs/order_figure.py OUT.svg``
"""

from __future__ import annotations

import sys
from pathlib import Path

from torchdata_ais import AISSampleReader, AISSourceLister, SampleIndex, ais_loader
from torchdata_ais.testing import example_shards

SHARDS, SAMPLES, SIDE, GAP, TOP = 12, 25, 200, 40, 24
INK, DOT = "#7d7d7d", "#00998a"  # readable on a light and a dark page


def orders() -> dict[str, list[int]]:
    """Return the numbers of the samples in the order of an epoch, by the way to read."""
    shards = example_shards(counts=[SAMPLES] * SHARDS)
    stream = AISSourceLister(shards).shuffle().load_tar().group_samples()
    found = {}
    for name, samples in (
        ("stream, .shuffle()", stream),
        ("stream, .shuffle(), .shuffled(50)", stream.shuffled(50)),
        ("index, shuffle='samples'", AISSampleReader(SampleIndex.build(shards), shuffle="samples")),
    ):
        with ais_loader(samples.decode().to_tuple("cls").batched(10), seed=0) as loader:
            found[name] = [label for (labels,) in loader for label in labels.tolist()]
    return found


def draw() -> str:
    """Return the figure: a dot a sample, its position in the epoch to the right, its number upwards."""
    parts, scale = [], SIDE / (SHARDS * SAMPLES)
    for column, (name, numbers) in enumerate(orders().items()):
        left = 10 + column * (SIDE + GAP)
        dots = "".join(
            f"M{left + at * scale:.0f} {TOP + SIDE - number * scale:.0f}h2"
            for at, number in enumerate(numbers)
        )
        parts.append(f'<text x="{left}" y="14" fill="{INK}">{name}</text>')
        parts.append(
            f'<rect x="{left - 4}" y="{TOP - 2}" width="{SIDE + 8}" height="{SIDE + 6}" fill="none" stroke="{INK}"/>'
        )
        parts.append(f'<path d="{dots}" stroke="{DOT}" stroke-width="2"/>')
        parts.append(f'<text x="{left}" y="{TOP + SIDE + 18}" fill="{INK}">position in the epoch →</text>')
    root = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {3 * (SIDE + GAP)} {TOP + SIDE + 26}"'
    return "\n".join([root + ' font-family="sans-serif" font-size="13">', *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw())
