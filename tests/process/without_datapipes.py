"""What chains over the shards of a folder give, printed as JSON. Then "hidden": as under a torch without DataPipes."""

from __future__ import annotations

import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
warnings.simplefilter("error")

import torch.utils.data  # noqa: E402
from hidden import hide  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

if sys.argv[2:] == ["hidden"]:
    hide("torchdata", *(f"torch.utils.data.{name}" for name in ("datapipes", "graph", "graph_settings")))
    # torch's own loader asks for these by name in its workers: nothing is a pipe for it.
    for name in ("IterDataPipe", "MapDataPipe"):
        setattr(torch.utils.data, name, type(name, (), {}))
    settings = types.ModuleType("torch.utils.data.graph_settings")
    settings.apply_random_seed = None  # type: ignore[attr-defined]
    sys.modules[settings.__name__] = settings

from torchdata_ais import AISSourceLister, ais_loader, as_dataset, draw, stats  # noqa: E402
from torchdata_ais.dataloader2 import (  # noqa: E402
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
)
from torchdata_ais.dataloader2.adapter import Shuffle  # noqa: E402
from torchdata_ais.dataloader2.graph import list_dps, traverse_dps  # noqa: E402
from torchdata_ais.stage import datapipes  # noqa: E402


def chain(folder: str) -> Any:
    return (
        AISSourceLister(f"{folder}/s-{{0..5}}.tar")
        .shuffle()
        .load_tar()
        .group_samples()
        .shuffled(5)
        .map(named)
        .batch(2)
    )


def named(sample: dict[str, Any]) -> str:
    return str(sample["__key__"]) + sample["txt"].decode()


def loaders(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for engine in ("dataloader", "dataloader2", "auto"):
        for workers in (0, 2):
            pipe = chain(folder).map(tuple)
            with ais_loader(pipe, num_workers=workers, seed=3, engine=engine) as loader:
                epoch = [*loader]
                running = iter(loader)
                next(running)
                state = loader.state_dict()
                rest = [*running]
                loader.load_state_dict(state)
                found[f"{engine} {workers}"] = [epoch, rest, [*loader]]
    for service in (InProcessReadingService(2), MultiProcessingReadingService(2, "fork")):
        with DataLoader2(chain(folder), Shuffle(True), service) as running_loader:
            running_loader.seed(5)
            found[type(service).__name__] = [list(running_loader), list(running_loader)]
    found["as_dataset"] = list(DataLoader(as_dataset(chain(folder), seed=1), batch_size=None))
    found["prefetched"] = sorted(chain(folder).unbatch().prefetch(3))
    torch.manual_seed(1)
    plain = DataLoader(
        chain(folder).unbatch(), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    found["plain"] = [sorted(plain), sorted(plain)]
    return found


if __name__ == "__main__":
    folder = sys.argv[1]
    pipe = chain(folder)
    report = {
        "own": datapipes.OWN,
        "orders": loaders(folder),
        "names": [type(one).__name__.removesuffix("IterDataPipe") for one in list_dps(traverse_dps(pipe))],
        "drawn": bool(str(draw(pipe))),
        "counted": sum(1 for _ in pipe) and bool(str(stats(pipe))),
    }
    json.dump(report, sys.stdout)
