"""Checks before training: shards, speed, installation and cluster.

`lint_shards` reads every shard as training would and reports all problems. `reshard` writes the good samples to new
shards. `measure` times the stages of a chain one by one. `diagnose` checks the installation and the cluster. The
commands ``torchdata-ais lint``, ``bench`` and ``doctor`` print their results.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
