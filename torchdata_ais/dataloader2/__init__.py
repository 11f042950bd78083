"""torchdata's DataLoader2 and the reading services for it: the only room that imports torchdata.

`MultiProcessingReadingService` is this package's, the rest is torchdata's own. Names are imported on first use, with
torchdata: what needs none of them works where it is not installed, or has no DataLoader2 (0.10 and later).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
