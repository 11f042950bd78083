"""The stages, one `IterDataPipe` or a few of a kind per file.

Each is a thin layer over the packages below.
Each class is imported on first use, and with it the module that registers its functional name (``.load_tar()``, ...).
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
