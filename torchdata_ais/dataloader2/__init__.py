"""DataLoader2 and its reading services, with or without torchdata's own.

`MultiProcessingReadingService` is this package's. The rest is torchdata's where it has them (0.8 and 0.9), and this
package's of the same interface elsewhere (0.10 and later): the same samples in the same order. The same holds for the
modules `adapter`, `graph`, `random` and `communication`. No other package imports torchdata.

Names are imported on first use. The first import adds the functional names ``prefetch``, ``fullsync``, ``pin_memory``
and ``sharding_round_robin_dispatch``: all of torchdata's, or ours of these four.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
