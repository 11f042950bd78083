"""The folder of a run: a small file a rank, written anew every few seconds, for who looks at a running job."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from torchdata_ais.error_text import Remedy, in_commands, in_programs
from torchdata_ais.errors import LoaderError, UsageError
from torchdata_ais.observe.chrome_trace import write_whole
from torchdata_ais.observe.rank_summary import SILENT_S, RankSummary
from torchdata_ais.observe.time_text import time_text
from torchdata_ais.whole_file import open_regular

EVERY_S = 5.0
"""How often a rank tells."""

_MOST_BYTES = 64 << 20
"""A file that is larger is none of ours."""

_CLOCKS_S = 2.0

_THE_FOLDER = Remedy(
    in_programs("pass the run_dir= of the job"), in_commands("name the folder that the job got as run_dir")
)

logger = logging.getLogger("torchdata_ais")


class RunFolder:
    """What one rank writes into the folder of its run.

    Whatever goes wrong with the files is logged once, and is no matter of the training.

    Args:
        path: The folder; shared by all nodes, or one a node.
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
        """Return whether it is time to tell again."""
        return time.monotonic() >= self._next

    def tell(self, summary: RankSummary) -> None:
        """Write what there is to tell of the rank."""
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
    """Return what the ranks of a run have told last, and what there is to say of the files.

    Raises:
        UsageError: There is no such folder, or no rank has told anything.
    """
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
    """Return what a rank has told in the file, and when; where it has not, say so in a note."""
    try:
        one, written = _read(path)
    except OSError as error:
        notes.append(f"{path.name} cannot be read, and is left out ({error.strerror or error})")
    except (msgspec.MsgspecError, RecursionError) as error:
        notes.append(f"{path.name} is damaged, and left out ({error})")
    else:
        if path.name == _name_of(one.rank):
            return one, written
        notes.append(f"{path.name} is of rank {one.rank}, and left out: each rank has a file of its name")
    return None


def _read(path: Path) -> tuple[RankSummary, float]:
    """Return what a rank has told, and when it was written by the clock of the folder's file system.

    Raises:
        OSError: It cannot be read, or is no file of that kind.
        MsgspecError: It is damaged.
    """
    with open_regular(path, follow=False) as file:
        about = os.fstat(file.fileno())
        if about.st_size > _MOST_BYTES:
            raise OSError(errno.EFBIG, "it is larger than a rank writes", str(path))
        return msgspec.json.decode(file.read(_MOST_BYTES), type=RankSummary), about.st_mtime


def _of_one_run(told: list[tuple[RankSummary, float]]) -> tuple[list[tuple[RankSummary, float]], list[str]]:
    """Return what was told in the run that was told of last, and that there is something of another one."""
    newest = max(told, key=lambda one: one[1], default=None)
    if newest is None:
        return told, []
    ranks = newest[0].ranks
    older = [one for one, _ in told if one.ranks != ranks]
    if not older:
        return told, []
    note = (
        f"{len(older)} files ({_name_of(older[0].rank)}, ...) are of another run, with {older[0].ranks} ranks, and "
        f"left out: the last one has {ranks}"
    )
    return [(one, written) for one, written in told if one.ranks == ranks], [note]


def _note_silence(told: list[tuple[RankSummary, float]], here: float) -> None:
    """Note how long each rank has told nothing: by the clock of the folder, as long as any of them tells."""
    newest = max((written for _, written in told), default=here)
    now = here if here - newest > SILENT_S else newest
    for one, written in told:
        one.silent_s = 0.0 if one.ended else now - written


def _troubles(told: Iterable[tuple[RankSummary, float]]) -> Iterator[str]:
    """Yield what is to be said of single ranks."""
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
    """Return that a node's clock differs from that of the folder's file system, of the node where it does most."""
    apart = [(abs(one.told - written), one) for one, written in told]
    most_s, one = max(apart, key=lambda pair: pair[0], default=(0.0, None))
    if one is None or most_s < _CLOCKS_S:
        return []
    text = (
        f"the clock of {one.node} differs by {time_text(most_s)} from that of this folder: durations are right, times "
        "of day of different nodes are not to be compared"
    )
    return [text]
