"""Stream WebDataset shards from NVIDIA AIStore into PyTorch training.

Importing this package makes its stages methods of every torch `IterDataPipe`::

    AISSourceLister("ais://pets").shuffle().load_tar().group_samples().decode("torchrgb8", size=224)

All names, such as `ais_loader`, are loaded on first use. torch is imported only for what needs it: a stage or a loader,
not an index, a writer, or the embedded cluster. torchdata is imported for DataLoader2 alone, and need not be there.
"""

from __future__ import annotations

import importlib as _importlib
import os as _os
import sys as _sys
from importlib.util import find_spec as _find_spec

import lazy_loader as _lazy

from torchdata_ais import functional as _functional
from torchdata_ais._util.versions import check_versions as _check_versions

__version__ = "0.1.0"

if (
    _os.path.basename(_sys.argv[0] if _sys.argv else "") == "torchdata-ais"  # noqa: PTH119 - being imported
    or _sys.orig_argv[1:3] == ["-m", "torchdata_ais"]
):
    from torchdata_ais._util.process_end import quit_at_once

    quit_at_once()

_load, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
__all__ += ["__version__"]


def __getattr__(name: str) -> object:
    if not name.startswith("_") and name not in __all__:
        if _find_spec(f"{__name__}.{name}") is not None:  # a package, as in torchdata_ais.urls.split_url
            return _importlib.import_module(f"{__name__}.{name}")
        from torchdata_ais._util.arguments import did_you_mean

        if hint := did_you_mean(name, __all__):
            raise AttributeError(f"module {__name__!r} has no {name!r}. {hint}")
    return _load(name)


_check_versions()
_functional.register()
