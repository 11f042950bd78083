"""The folder of a run: a small file a rank, written anew every few seconds, for who looks at a running job."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from torchdata_ais.error_text import Remedy, in_commands, in_programs
from torchdata_ais.errors import LoaderError, UsageError
from torchdata_ais.observe.chrome_trace import write_whole
from torchdata_ais.observe.rank_summary import RankSummary
from torchdata_ais.observe.time_text import time_text

EVERY_S = 5.0
"""How often a rank tells."""

SILENT_S = 30.0
"""A rank that has not told for so long is silent."""

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
        self.write(f"rank-{summary.rank:05d}.json", msgspec.json.encode(summary))

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
        here = time.time()
        told = [(name, name.stat().st_mtime, name.read_bytes()) for name in names]
    except OSError as error:
        raise UsageError.at(
            f"{folder}: this cannot be read ({error.strerror or error})", todo=_THE_FOLDER
        ) from error
    if not told:
        raise UsageError.at(
            f"no rank has told anything in {folder}",
            todo=Remedy(*_THE_FOLDER.ways, "; a rank tells with its first batch"),
        )
    ranks, notes = [], []
    for name, written, data in told:
        try:
            one = msgspec.json.decode(data, type=RankSummary)
        except (msgspec.MsgspecError, RecursionError) as error:
            notes.append(f"{name.name} is damaged, and left out ({error})")
            continue
        ranks.append(one)
        silent_s = here - written
        if silent_s > SILENT_S and not one.ended:
            notes.append(
                f"rank {one.rank} on {one.node} (pid {one.pid}) has been silent for {time_text(silent_s)}: "
                "it was killed, or is stopped"
            )
        if one.waiting_s > SILENT_S / 3 and not one.ended:
            notes.append(f"rank {one.rank} on {one.node} waits for a batch since {time_text(one.waiting_s)}")
        if one.ended.startswith("failed"):
            notes.append(f"rank {one.rank} on {one.node} {one.ended}")
    return ranks, [*notes, *_clocks(ranks, (written for _, written, _ in told))]


def _clocks(ranks: Iterable[RankSummary], written: Iterable[float]) -> list[str]:
    """Return that a node's clock differs from that of the folder's file system, of the node where it does most."""
    apart = [(abs(one.told - at), one) for one, at in zip(ranks, written, strict=False)]
    most_s, one = max(apart, key=lambda pair: pair[0], default=(0.0, None))
    if one is None or most_s < _CLOCKS_S:
        return []
    text = (
        f"the clock of {one.node} differs by {time_text(most_s)} from that of this folder: durations are right, times "
        "of day of different nodes are not to be compared"
    )
    return [text]
