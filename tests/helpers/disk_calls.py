"""Record of what a program has the disk do."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest


def disk_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by each call of ``fsync`` and ``replace``, until the test ends."""
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_sync(fd: int) -> None:
        status = os.fstat(fd)
        done.append("folder" if stat.S_ISDIR(status.st_mode) else f"{status.st_size} bytes")
        fsync(fd)

    def note_replace(path: Path | str, target: Path | str) -> None:
        done.append(f"replace {Path(target).name}")
        replace(path, target)

    def note_replace_of_path(path: Path, target: Path | str) -> Path:
        note_replace(path, target)
        return Path(target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    monkeypatch.setattr(Path, "replace", note_replace_of_path)
    return done
