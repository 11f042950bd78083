"""Something that yields the blocks of one object, to the thread that reads ahead or to the consumer, in turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from torchdata_ais.store.facts import Facts


@dataclass
class Stats:
    """Measurements of one open object.

    Attributes:
        retries: Requests made again after a failure.
        bytes: Bytes fetched.
        first_byte_s: Seconds until the response began; None before.
        wait_s: Seconds the consumer waited for blocks.
    """

    retries: int = 0
    bytes: int = 0
    first_byte_s: float | None = None
    wait_s: float = 0.0


class Reader(ABC):
    """Yields the blocks of one object, and learns about it meanwhile.

    The thread that reads ahead and the consumer may take turns in `blocks`; never both at once.

    Attributes:
        facts: What is known about the object.
        verified: Whether the whole body was compared with a checksum; None before its end.
    """

    def __init__(self) -> None:
        self.facts = Facts()
        self.verified: bool | None = None

    @abstractmethod
    def blocks(self) -> Iterator[bytes]:
        """Yield blocks, never an empty one."""

    def close(self) -> None:  # noqa: B027 - most hold nothing before their first block
        """Let go of what is held although `blocks` may never have begun."""

    def check_overdue(self) -> None:  # noqa: B027 - what is read locally has no time limit
        """End a step of `blocks` that takes too long; called by the thread that waits for it."""
