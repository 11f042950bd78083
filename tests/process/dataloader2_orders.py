"""What DataLoader2 gives, and in which order: printed as JSON. Arguments: modules to hide first.

python dataloader2_orders.py                       with the torchdata that is installed
python dataloader2_orders.py torchdata             without one
python dataloader2_orders.py torchdata.dataloader2 torchdata.datapipes      as under 0.10
"""

from __future__ import annotations

import json
import pickle
import random
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
warnings.simplefilter("error")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from helpers.hidden_modules import hide  # noqa: E402

if __name__ == "__main__":
    hide(*sys.argv[1:])

from torch.utils.data.datapipes.iter import IterableWrapper  # noqa: E402
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES  # noqa: E402
from torch.utils.data.datapipes.map import SequenceWrapper  # noqa: E402

from torchdata_ais.dataloader2 import (  # noqa: E402
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from torchdata_ais.dataloader2.adapter import Shuffle  # noqa: E402
from torchdata_ais.dataloader2.graph import find_dps, list_dps, replace_dp, traverse_dps  # noqa: E402
from torchdata_ais.dataloader2.random import SeedGenerator  # noqa: E402


def drawn(item: int) -> list[int]:
    """Return the item with a number of each global generator."""
    return [
        item,
        random.randrange(1000),
        int(np.random.randint(1000)),  # noqa: NPY002 - the state that workers are seeded with
        int(torch.randint(1000, ()).item()),
    ]


def threes(item: int) -> list[int]:
    return [item] * (item % 4)


def filtered() -> Any:
    return IterableWrapper(range(17)).shuffle().sharding_filter().map(drawn)


def uneven() -> Any:
    return IterableWrapper(range(9)).shuffle().sharding_filter().map(threes).unbatch().shuffle(buffer_size=4)


def dispatched() -> Any:
    pipe = IterableWrapper(range(14)).shuffle().prefetch(3)
    return pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING).map(drawn).batch(2)


def joined() -> Any:
    one, two, three = IterableWrapper(range(12)).shuffle().fork(3)
    return (
        one.sharding_filter()
        .zip(two.shuffle().sharding_filter(), three.shuffle().sharding_filter())
        .shuffle()
    )


PIPES = {"filtered": filtered, "uneven": uneven, "dispatched": dispatched, "joined": joined}

SERVICES = {
    "in process": InProcessReadingService,
    "in sequence": lambda: SequentialReadingService(InProcessReadingService()),
    "one worker": lambda: MultiProcessingReadingService(1, "fork"),
    "three workers": lambda: MultiProcessingReadingService(
        3, "fork", worker_prefetch_cnt=0, main_prefetch_cnt=0
    ),
}


def epochs(pipe: Any, service: Any) -> list[Any]:
    """Return epochs: two of a seed, two of another, one of torch's generator, one that was broken off."""
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    with DataLoader2(pipe, reading_service=service) as loader:
        found = []
        for seed in (1, 2**64 - 1):
            loader.seed(seed)
            found += [list(loader), list(loader)]
        running = iter(loader)
        found.append([next(running) for _ in range(3)])
        found.append(list(loader))
    torch.manual_seed(6)
    with DataLoader2(pipe, reading_service=service) as loader:
        found.append(list(loader))
    return found


def states() -> list[Any]:
    """Return what an epoch of a seed gives when it is begun again from a state."""
    service = InProcessReadingService()
    loader = DataLoader2(filtered(), reading_service=service)
    loader.seed(3)
    found = [list(loader)]
    running = iter(loader)
    first = [next(running) for _ in range(4)]
    again = DataLoader2.from_state(loader.state_dict(), service, trust=True)
    again._restore_checkpoint_beginning_of_epoch()
    found += [first, [item[0] for item in again]]
    loaded = DataLoader2(None, reading_service=service)
    loaded.load_state_dict(loader.state_dict(), trust=True)
    found.append([item[0] for item in loaded])
    for one in (loader, again, loaded):
        one.shutdown()
    return found


def limits(service: Any) -> list[Any]:
    with DataLoader2(
        IterableWrapper(range(10)).shuffle().sharding_filter(), reading_service=service
    ) as loader:
        loader.seed(4)
        running = iter(loader)
        running.limit(3)
        found = [list(running), list(running)]
        running.resume()
        found.append(list(running))
        running.limit(None)
        running.resume()
        return [*found, list(running)]


def adapted(enable: bool | None) -> list[Any]:
    pipe = IterableWrapper(range(8)).shuffle().sharding_filter()
    with DataLoader2(pipe, Shuffle(enable), InProcessReadingService()) as loader:
        loader.seed(1)
        return list(loader)


def seeds() -> list[int]:
    one = SeedGenerator(123)
    found = [one.generate_seed() for _ in range(5)] + [one.generate_shared_seed() for _ in range(3)]
    for worker in (0, 1, 2, 99):
        other = one.spawn(worker)
        found += [other.generate_seed(), other.generate_shared_seed(), other.generate_seed()]
    other = pickle.loads(pickle.dumps(one))
    found += [other.generate_seed(), other.generate_shared_seed()]
    one.spawn(7, inplace=True)
    torch.manual_seed(1)
    found += [one.generate_seed(), SeedGenerator().generate_seed(), SeedGenerator().generate_seed()]
    return [*found, SeedGenerator(-5).generate_seed()]


def graphs() -> list[Any]:
    pipe = joined()
    graph = traverse_dps(pipe)
    found: list[Any] = [type(one).__name__ for one in list_dps(graph)]
    (source,) = find_dps(graph, type(IterableWrapper([])))
    replace_dp(graph, source, IterableWrapper(range(3)))
    with DataLoader2(pipe, reading_service=InProcessReadingService()) as loader:
        loader.seed(1)
        return [*found, list(loader)]


def everything() -> dict[str, Any]:
    found: dict[str, Any] = {
        f"{name}, {how}": epochs(pipe(), service())
        for name, pipe in PIPES.items()
        for how, service in SERVICES.items()
    }
    found["limits"] = [limits(service()) for how, service in SERVICES.items() if how != "in sequence"]
    found["adapted"] = [adapted(enable) for enable in (True, False, None)]
    found |= {"states": states(), "seeds": seeds(), "graphs": graphs()}
    found["map"] = list(DataLoader2(SequenceWrapper(list("abc"))))
    return found


if __name__ == "__main__":
    from torchdata_ais.dataloader2 import torchdata_names

    home = torchdata_names.DataLoader2.__module__.partition(".")[0]
    json.dump({"home": home, "orders": everything()}, sys.stdout)
