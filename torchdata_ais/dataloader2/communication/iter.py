"""Exceptions of a source without a next item: torchdata's, or ours."""

from torchdata_ais.dataloader2.torchdata_names import (
    InvalidStateResetRequired,
    NotAvailable,
    TerminateRequired,
)

__all__ = ["InvalidStateResetRequired", "NotAvailable", "TerminateRequired"]
