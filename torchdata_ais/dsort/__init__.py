"""dSort: samples of many shards put into another order, and into shards of another size, by the cluster itself.

::

    spec = DsortSpec("ais://pets/samples-{00..18}.tar", "ais://pets/shuffled-%d.tar", "100MB", Shuffle(seed=5))
    run_dsort(client, spec, check=True)

Specifications as the `ais` command takes them, also those of older versions, work as they stand::

    run_dsort(client, "dsort_shuffle_samples.json", check=True)
"""

from torchdata_ais.dsort.run import DsortResult, run_dsort
from torchdata_ais.dsort.spec import (
    ByContent,
    ByName,
    DsortSpec,
    Shuffle,
    Unchanged,
    load_spec,
    translate_spec,
)

__all__ = [
    "ByContent",
    "ByName",
    "DsortResult",
    "DsortSpec",
    "Shuffle",
    "Unchanged",
    "load_spec",
    "run_dsort",
    "translate_spec",
]
