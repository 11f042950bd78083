"""What a report of ranks comes to: who holds the job up, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Cause = Literal["shard", "target", "network", "decode", "hand-over", "loop", "silent", "none", "unknown"]


@dataclass
class Verdict:
    """Who holds the job up.

    Attributes:
        cause: ``"shard"``, ``"target"``; ``"network"``: all requests of the rank; ``"decode"``: the work of a stage;
            ``"hand-over"``: between worker and loop; ``"loop"``; ``"silent"``: the rank tells nothing any more;
            ``"none"``: the data are ready everywhere; ``"unknown"``: that is not known.
        sentence: The same, in words.
        rank: Which rank; None where it is all of them, or none.
        worker: Which of its workers, where it is one.
        node: Where that rank runs.
        place: The shard, the target, the stage or the line of the program.
        hidden: Whether no loop waits for it: batches that are made ahead last until it is over.
    """

    cause: Cause
    sentence: str
    rank: int | None = None
    worker: int | None = None
    node: str = ""
    place: str = ""
    hidden: bool = False
