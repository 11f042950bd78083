"""A folder as a queue of shards, which other processes fill and empty at the same time."""

from __future__ import annotations

import glob
import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from torch.utils.data import IterableDataset

from torchdata_ais.errors import UsageError
from torchdata_ais.urls import expand_template

_CLAIMED = re.compile(r"\._(\d+)_$")


class DirectoryShardList(IterableDataset[dict[str, str]]):
    """Yield ``{"url": shard}`` for the shards of a folder, each claimed by a new name while it is read.

    A shard ``s.tar`` is renamed to ``s.tar._PID_``. When the next one is asked for, it is deleted (``mode="unlink"``),
    kept as ``s.tar._done_`` (``"keep"``), or put back (``"resample"``). Shards of processes that are gone are treated
    so, too. To read a folder once, `WebDataset("folder/")` is simpler.

    Args:
        path: The folder, with a slash at its end.
        pattern: What a shard is called; braces stand for alternatives.
        poll: Seconds between two looks at an empty folder; None ends the stream when it is empty.
        timeout: Seconds without a shard after which the stream ends.
        mode: What becomes of a shard that was read; None leaves it as it is.
        select: ``"random"`` or ``"oldest"``.
        fate: No effect, as in webdataset.

    Raises:
        UsageError: No such folder, or another `select`.
    """

    def __init__(
        self,
        path: str,
        pattern: str = "*.{tar,tgz,tar.gz}",
        poll: float | None = 1,
        timeout: float = 600,
        mode: Literal["unlink", "keep", "resample"] | None = "resample",
        select: Literal["random", "oldest"] = "random",
        fate: object = None,
    ) -> None:
        del fate
        if not path.endswith("/") or not Path(path).is_dir():
            raise UsageError.at(f"{path!r} is no folder", todo="name one, with a slash at its end")
        if select not in ("random", "oldest"):
            raise UsageError.at(f"select={select!r}", todo='use "random" or "oldest"')
        self.path = path
        self.pattern = pattern
        self.poll = poll
        self.timeout = timeout
        self.mode = mode
        self.select = select

    def __iter__(self) -> Iterator[dict[str, str]]:
        last = time.monotonic()
        while time.monotonic() - last < self.timeout:
            claimed = self._claim()
            if claimed is not None:
                yield {"url": claimed}
                self.recycle(claimed)
                self.cleanup_files_without_processes()
                last = time.monotonic()
            elif self.poll is None:
                return
            else:
                time.sleep(self.poll)

    def _claim(self) -> str | None:
        patterns = expand_template(self.pattern)
        found = sorted({file for pattern in patterns for file in glob.glob(glob.escape(self.path) + pattern)})  # noqa: PTH207 - text in, text out
        if self.select == "random":
            random.shuffle(found)
        else:
            found.sort(key=_age)
        for file in found:
            claimed = f"{file}._{os.getpid()}_"
            try:
                Path(file).rename(claimed)
            except FileNotFoundError:
                continue  # another process was faster
            return claimed
        return None

    def recycle(self, activename: str) -> None:
        """Do with a shard that was read what `mode` says."""
        original = activename.rpartition(".")[0]
        if self.mode == "unlink":
            Path(activename).unlink(missing_ok=True)
        elif self.mode == "keep":
            Path(activename).rename(original + "._done_")
        elif self.mode == "resample":
            Path(activename).rename(original)

    def cleanup_files_without_processes(self) -> None:
        """Do the same with the shards that processes which are gone had claimed."""
        for file in Path(self.path).iterdir():
            claim = _CLAIMED.search(file.name)
            if claim is not None and not _is_running(int(claim[1])):
                self.recycle(str(file))


def _age(file: str) -> float:
    try:
        return Path(file).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
