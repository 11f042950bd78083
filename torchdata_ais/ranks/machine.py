"""What ranks that run on one machine know of each other, and the memory that they have together."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torchdata_ais.ranks.alive import Ranks
from torchdata_ais.store import PackedURLs


def this_machine() -> str:
    """Return what is the same in two processes if each finds the other by its number; nothing if that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def start_time(pid: int) -> str:
    """Return when a process began; nothing if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]


def share_on_machine(lists: Iterable[PackedURLs], ranks: Ranks) -> None:
    """Have the ranks of one machine read the same lists from the same memory: that of the first of them.

    Nobody waits for it: a rank whose neighbour is gone, or lets it see nothing, keeps its own.

    Args:
        lists: The same on all ranks, in the same order.
        ranks: What they tell each other by.

    Raises:
        LoaderError: The store is gone.
    """
    here = this_machine()
    for number, urls in enumerate(lists):
        if here and urls.place is not None:
            place, first = ranks.first_to_tell(f"names/{here}/{number}", urls.place)
            if first != ranks.rank:
                urls.take_memory(place)
