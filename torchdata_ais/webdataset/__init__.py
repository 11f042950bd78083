"""webdataset's names on this package's promises.

Change the import, keep the code.
    import torchdata_ais.webdataset as wds

The README in this folder lists the differences from webdataset 1.0.2, and why.
"""

from __future__ import annotations

from typing import Any

import lazy_loader

from torchdata_ais.webdataset.gopen import gopen  # noqa: F401 - now: later the module of this name would take its place
from torchdata_ais.webdataset.left_out import explaining

_loaded, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_missing = explaining(__name__)


def __getattr__(name: str) -> Any:
    return _loaded(name) if name in __all__ else _missing(name)
