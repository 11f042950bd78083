"""Names of torchdata's ``communication``: local queues and exceptions.

Its messages and event loops are not here: `MultiProcessingReadingService` has another protocol.
"""

from torchdata_ais.dataloader2.communication import iter, queue  # noqa: A004 - torchdata's name

__all__ = ["iter", "queue"]
