"""dSort: reorder the samples of many shards on the cluster.

::

    spec = DsortSpec("ais://pets/samples-{00..18}.tar", "ais://pets/shuffled-%d.tar", "100MB", Shuffle(seed=5))
    run_dsort(client, spec, check=True)

Specifications as the `ais` command takes them work without a change::

    run_dsort(client, "dsort_shuffle_samples.json", check=True)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
