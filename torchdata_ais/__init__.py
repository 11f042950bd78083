"""Stream WebDataset shards from NVIDIA AIStore into PyTorch training.

Importing this package registers its stages as methods of every torch `IterDataPipe`::

    AISSourceLister("ais://pets").shuffle().load_tar().group_samples().decode("torchrgb8", size=224)

The other names, such as `ais_loader`, are loaded on first use: the command imports torch only for what needs it, and
torchdata is imported only by those who use DataLoader2, and need not be there.
"""

from __future__ import annotations

import os as _os
import sys as _sys

import lazy_loader as _lazy

__version__ = "0.1.0"

_in_command = (
    _os.path.basename(_sys.argv[0] if _sys.argv else "") == "torchdata-ais"  # noqa: PTH119 - being imported
    or _sys.orig_argv[1:3] == ["-m", "torchdata_ais"]
)

if _in_command:
    from torchdata_ais.interrupt import quit_at_once

    quit_at_once()

_load, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
__all__ += ["__version__"]


def __getattr__(name: str) -> object:
    if not name.startswith("_") and name not in __all__:
        from torchdata_ais.arguments import did_you_mean

        if hint := did_you_mean(name, __all__):
            raise AttributeError(f"module {__name__!r} has no {name!r}. {hint}")
    return _load(name)


if not _in_command:
    import torchdata_ais.display.sample  # so that notebooks show samples
    import torchdata_ais.observe.draw  # so that notebooks show pipes as tables
    import torchdata_ais.pipes  # noqa: F401 - so that the stages are methods
