"""Folder of a run, and a page that shows it."""

from __future__ import annotations

import errno
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from torchdata_ais._util.files import open_regular
from torchdata_ais._util.formatting import html_page, html_table, html_text, time_text
from torchdata_ais.errors import LoaderError, UsageError
from torchdata_ais.errors.text import Remedy, in_commands, in_programs
from torchdata_ais.observe.diagnosis.chrome_trace import write_whole
from torchdata_ais.observe.diagnosis.rank_summary import SILENT_S, RankSummary, Sketch
from torchdata_ais.observe.diagnosis.rank_table import HEAD, Readiness, row_of

EVERY_S = 5.0
"""Interval between the reports of a rank."""

_MOST_BYTES = 64 << 20
"""A file that is larger is none of ours."""

_CLOCKS_S = 2.0

_THE_FOLDER = Remedy(
    in_programs("pass the run_dir= of the job"), in_commands("name the folder that the job got as run_dir")
)

logger = logging.getLogger("torchdata_ais")


class RunFolder:
    """Files of one rank in the folder of its run, shared by nodes or not.

    An error of the files is logged once, and does not affect the training.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._next = 0.0
        self._warned = False
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError.at(
                f"run_dir={os.fspath(path)!r} cannot be made ({error})",
                todo="name a folder that can be written to",
            ) from error

    def is_due(self) -> bool:
        """Report whether the next report is due."""
        return time.monotonic() >= self._next

    def tell(self, summary: RankSummary) -> None:
        """Write the report of the rank."""
        self._next = time.monotonic() + EVERY_S
        self.write(_name_of(summary.rank), msgspec.json.encode(summary))

    def write(self, name: str, data: bytes) -> Path | None:
        """Write a file; return where it is, or None if that failed."""
        path = self.path / name
        try:
            write_whole(path, data)
        except LoaderError as error:
            if not self._warned:
                self._warned = True
                logger.warning("the run goes on, but is not told of any more: %s", error.what)
            return None
        return path


def read_run(path: str | os.PathLike[str]) -> tuple[list[RankSummary], list[str]]:
    """Return the last reports of the ranks of a run, and remarks on the files."""
    folder = Path(path)
    try:
        names = sorted(name for name in folder.iterdir() if name.match("rank-*.json"))
    except OSError as error:
        raise UsageError.at(
            f"{folder}: this cannot be read ({error.strerror or error})", todo=_THE_FOLDER
        ) from error
    if not names:
        raise UsageError.at(
            f"no rank has told anything in {folder}",
            todo=Remedy(*_THE_FOLDER.ways, "; a rank tells as soon as its workers run"),
        )
    notes: list[str] = []
    told = [one for name in names if (one := _told_in(name, notes)) is not None]
    told, others = _of_one_run(told)
    _note_silence(told, time.time())
    return [one for one, _ in told], [*notes, *others, *_troubles(told), *_clocks(told)]


def _name_of(rank: int) -> str:
    return f"rank-{rank:05d}.json"


def _told_in(path: Path, notes: list[str]) -> tuple[RankSummary, float] | None:
    """Return a rank's report and its time by the file system, or note a fault."""
    try:
        with open_regular(path, follow=False) as file:
            about = os.fstat(file.fileno())
            if about.st_size > _MOST_BYTES:
                raise OSError(errno.EFBIG, "it is larger than a rank writes", str(path))
            one = msgspec.json.decode(file.read(_MOST_BYTES), type=RankSummary)
    except OSError as error:
        notes.append(f"{path.name} cannot be read, and is left out ({error.strerror or error})")
    except (msgspec.MsgspecError, RecursionError) as error:
        notes.append(f"{path.name} is damaged, and left out ({error})")
    else:
        if path.name == _name_of(one.rank):
            return one, about.st_mtime
        notes.append(f"{path.name} is of rank {one.rank}, and left out: each rank has a file of its name")
    return None


def _of_one_run(told: list[tuple[RankSummary, float]]) -> tuple[list[tuple[RankSummary, float]], list[str]]:
    """Return the reports of the latest run, and a note on those of others."""
    ranks = max(told, key=lambda one: one[1])[0].ranks if told else 0
    older = [one for one, _ in told if one.ranks != ranks]
    if not older:
        return told, []
    note = (
        f"{len(older)} files ({_name_of(older[0].rank)}, ...) are of another run, with {older[0].ranks} ranks, and "
        f"left out: the last one has {ranks}"
    )
    return [(one, written) for one, written in told if one.ranks == ranks], [note]


def _note_silence(told: list[tuple[RankSummary, float]], here: float) -> None:
    """Set how long ranks were silent: by the folder's clock while any reports."""
    newest = max((written for _, written in told), default=here)
    now = here if here - newest > SILENT_S else newest
    for one, written in told:
        one.silent_s = 0.0 if one.ended else now - written


def _troubles(told: Iterable[tuple[RankSummary, float]]) -> Iterator[str]:
    """Yield remarks on single ranks."""
    for one, _ in told:
        if one.ended:
            if one.ended.startswith("failed"):
                yield f"rank {one.rank} on {one.node} {one.ended}"
        elif one.silent_s > SILENT_S:
            yield (
                f"rank {one.rank} on {one.node} (pid {one.pid}) has been silent for {time_text(one.silent_s)}: "
                "it was killed, or is stopped"
            )
        elif one.waiting_s > SILENT_S / 3:
            yield f"rank {one.rank} on {one.node} has waited {time_text(one.waiting_s)} for a batch"


def _clocks(told: Iterable[tuple[RankSummary, float]]) -> list[str]:
    """Return a note on the node whose clock differs most from the folder's."""
    apart = [(abs(one.told - written), one) for one, written in told]
    most_s, one = max(apart, key=lambda pair: pair[0], default=(0.0, None))
    if one is None or most_s < _CLOCKS_S:
        return []
    text = (
        f"the clock of {one.node} differs by {time_text(most_s)} from that of this folder: durations are right, times "
        "of day of different nodes are not to be compared"
    )
    return [text]


_WIDTH, _HEIGHT = 720, 180
_LEFT, _TOP = 70, 30  # for the times, and for the legend
_WIDEST, _LABEL = 60, 26  # a bar with the space around it; a rank's number
_SHARES = (0.5, 0.9, 0.99)
_NAMES = ("half of the batches", "90 of 100", "99 of 100")
_COLOURS = ("#4c78a8", "#f58518", "#e45756")


def write_page(found: Readiness, path: Path) -> None:
    """Write the page."""
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
    """Yield the legend of the colours."""
    for number, (name, colour) in enumerate(zip(_NAMES, _COLOURS, strict=True)):
        left = _LEFT + 190 * number
        yield f'<rect x="{left}" y="4" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{left + 18}" y="14">{name}</text>'
