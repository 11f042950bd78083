"""An embedded AIStore cluster in a process of its own, and faults by rule; see `LocalCluster`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
