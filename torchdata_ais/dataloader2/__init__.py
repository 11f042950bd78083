"""DataLoader2 and its reading services, under every torchdata, and without one: the only room that imports torchdata.

`MultiProcessingReadingService` is this package's. The rest is torchdata's own where it has them (0.8 and 0.9), and
this package's of the same interface elsewhere (0.10 and later): the same samples in the same order. So is what stands
in the modules `adapter`, `graph`, `random` and `communication`.

Names are imported on first use. With the first one the functional names ``prefetch``, ``fullsync``, ``pin_memory`` and
``sharding_round_robin_dispatch`` are there: all of torchdata's, or ours of these four.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
