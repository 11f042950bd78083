"""Draws a part of the traces of some ranks as SVG: the figure of the guide on tracing.

``python docs/trace_figure.py OUT.svg TRACE.json...`` takes files that ``loader.trace(file)`` wrote on one machine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

WIDTH, LEFT, TRACK, BAR = 760, 150, 22, 16
FIRST, MS = 6, 400
"""The step to begin with, and how many milliseconds are shown."""
COLORS = {"wait for data": "#e8710a", "batch": "#00998a", "loop": "#9aa0a6"}
INK = "#7d7d7d"  # readable on a light and a dark page


def tracks(trace: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the slices of the tracks of a rank, by name."""
    names = {event["tid"]: event["args"]["name"] for event in trace if event["name"] == "thread_name"}
    return {name: [e for e in trace if e["ph"] == "X" and e["tid"] == tid] for tid, name in names.items()}


def draw(traces: list[list[dict[str, Any]]]) -> str:
    """Return the figure."""
    begin = min(
        e["ts"]
        for trace in traces
        for e in trace
        if e["name"] == "wait for data" and e["args"]["step"] == FIRST
    )
    scale = (WIDTH - LEFT - 10) / (MS * 1000)
    parts, y = [], 26
    for at in range(0, MS + 1, 100):
        x = LEFT + at * 1000 * scale
        anchor = "end" if at == MS else "middle"
        parts.append(f'<text x="{x:.0f}" y="14" fill="{INK}" text-anchor="{anchor}">{at} ms</text>')
    for number, trace in enumerate(traces):
        for name, slices in tracks(trace).items():
            parts.append(
                f'<text x="4" y="{y + 12}" fill="{INK}">rank {number}, {name.partition(":")[0]}</text>'
            )
            for one in slices:
                first = max(0.0, one["ts"] - begin)
                last = min(MS * 1000.0, one["ts"] + one["dur"] - begin)
                if last > first:
                    color = COLORS["batch" if one["name"].startswith("batch") else one["name"]]
                    x, width = LEFT + first * scale, max(0.5, (last - first) * scale - 0.5)
                    parts.append(
                        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{color}"/>'
                    )
            y += TRACK
        y += 8
    for place, (name, color) in enumerate(COLORS.items()):
        x = LEFT + place * 160
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{color}"/>')
        parts.append(f'<text x="{x + 18}" y="{y + 11}" fill="{INK}">{name}</text>')
    root = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 20}"'
    return "\n".join([root + ' font-family="sans-serif" font-size="12">', *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    loaded = [json.loads(Path(name).read_text()) for name in sys.argv[2:]]
    Path(sys.argv[1]).write_text(
        draw([one["traceEvents"] if isinstance(one, dict) else one for one in loaded])
    )
