"""What programs import of torchdata's ``communication``: its queues within a process, and how a source says no.

Its messages and event loops are not here: `MultiProcessingReadingService` speaks to its workers in another way.
"""

from torchdata_ais.dataloader2.communication import iter, queue  # noqa: A004 - torchdata's name

__all__ = ["iter", "queue"]
