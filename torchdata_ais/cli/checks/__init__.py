"""Look before you train: are the shards sound, what can this machine and this cluster deliver, is all in place.

`lint_shards` reads every shard as training would and tells all that is wrong, `reshard` writes the good samples
anew, `measure` times the stages of a chain one by one, `diagnose` looks at the installation and the cluster. The
commands ``torchdata-ais lint``, ``bench`` and ``doctor`` print what they return.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
