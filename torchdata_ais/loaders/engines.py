"""Three ways to run a pipe for `ais_loader`: in this process, under torch's DataLoader, under DataLoader2.

Each yields ``(item, worker, packed state)`` in strict round robin over the workers that still have items, so that the
order is a function of the data, the seed, the epoch and the topology, and not of timing.
"""

from __future__ import annotations

from torchdata_ais.loaders.dataloader_engine import DataLoaderEngine
from torchdata_ais.loaders.engine import Engine
from torchdata_ais.loaders.engine_options import EngineSettings
from torchdata_ais.loaders.in_process_engine import InProcessEngine


def make_engine(settings: EngineSettings) -> Engine:
    """Return a new engine, of the kind that the options name."""
    if settings.options.num_workers == 0:
        return InProcessEngine(settings)
    if settings.options.engine == "dataloader":
        return DataLoaderEngine(settings)
    from torchdata_ais.loaders.dataloader2_engine import DataLoader2Engine  # torchdata, where it has one

    return DataLoader2Engine(settings)
