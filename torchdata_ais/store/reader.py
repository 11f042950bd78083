"""Something that yields the blocks of one object, to the thread that reads ahead or to the consumer, in turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from torchdata_ais.store.cancel import Cancel
from torchdata_ais.store.facts import Facts
from torchdata_ais.store.hashes import report_unverified, unverifiable
from torchdata_ais.store.options import StoreOptions


@dataclass
class Stats:
    """Measurements of one open object.

    Attributes:
        retries: Requests made again after a failure.
        bytes: Bytes fetched.
        first_byte_s: Seconds until the response began; None before.
        wait_s: Seconds the consumer waited for blocks.
        unverified: The kind of the object's checksum, if it cannot be computed here.
    """

    retries: int = 0
    bytes: int = 0
    first_byte_s: float | None = None
    wait_s: float = 0.0
    unverified: str = ""


class Reader(ABC):
    """Yields the blocks of one object, and learns about it meanwhile.

    The thread that reads ahead and the consumer may take turns in `blocks`; never both at once.

    Args:
        options: Where and how.
        start: The first byte wanted.
        known: What the object must be.

    Attributes:
        facts: What is known about the object, more once it is open.
        verified: Whether the whole body was compared with a checksum; None before its end.
        cancel: Ends the reading.
        stats: What was measured so far.
    """

    def __init__(self, options: StoreOptions, start: int, known: Facts) -> None:
        self._options = options
        self._start = self._offset = start
        # The middle of an object continues a known version of it, whatever pin says.
        self.facts = known if options.pin or start > 0 else Facts()
        self.verified: bool | None = None
        self.cancel = Cancel()
        self.stats = Stats()

    def _note_unverified(self, name: str) -> None:
        """Note and log a checksum that should be verified and cannot be."""
        kind = unverifiable(self.facts.checksum, self.facts.hash_name)
        if kind and self._options.verify and self._start == 0:
            self.stats.unverified = kind
            report_unverified(kind, name)

    @abstractmethod
    def blocks(self) -> Iterator[bytes]:
        """Yield blocks, never an empty one."""

    def close(self) -> None:  # noqa: B027 - most hold nothing before their first block
        """Let go of what is held although `blocks` may never have begun."""

    def check_overdue(self) -> None:  # noqa: B027 - what is read locally has no time limit
        """End a step of `blocks` that takes too long; called by the thread that waits for it."""
