"""What a source of items raises when it has none now: torchdata's exceptions, or ours of the same names."""

from torchdata_ais.dataloader2.torchdata_names import (
    InvalidStateResetRequired,
    NotAvailable,
    TerminateRequired,
)

__all__ = ["InvalidStateResetRequired", "NotAvailable", "TerminateRequired"]
