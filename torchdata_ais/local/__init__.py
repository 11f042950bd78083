"""An embedded AIStore cluster in a child process, with faults by rule.

See `LocalCluster`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
