"""A connection to the store of torch.distributed for one thread: a wait on a shared one holds up the others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed

BLOCKS_S = 3600.0
"""How long such a connection may wait for an answer; the wait is then begun again."""


def own_connection(store: Any) -> tuple[Any, bool]:
    """Return the store, and whether it may be waited on: over a connection of its own.

    A FileStore and a HashStore have no connections, and older versions of torch make no second one.
    """
    stores: Any = torch.distributed  # which does not say that it has them
    inner = store
    while isinstance(inner, stores.PrefixStore):
        inner = inner.underlying_store
    if isinstance(inner, (stores.FileStore, stores.HashStore)):
        return store, False
    try:
        own = store.clone()
        own.set_timeout(timedelta(seconds=BLOCKS_S))
    except (AttributeError, RuntimeError):  # also of a store that is gone: then the shared one says so
        return store, False
    return own, True
