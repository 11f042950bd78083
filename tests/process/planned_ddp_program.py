"""A rank of a DDP training over an index, begun by torchrun: it writes down what it was given, and may be killed.

Checkpoints of model and loader are torch.distributed.checkpoint's, one in three steps; torchrun begins all ranks
anew where one was killed, and they go on from the last.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchdata_ais import AISSampleReader, Mixture, SampleIndex, ais_loader

EVERY = 3


class Model:
    """The model's part of a checkpoint."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def state_dict(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        return get_model_state_dict(self.model)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        from torch.distributed.checkpoint.state_dict import set_model_state_dict

        set_model_state_dict(self.model, state)


def forever(loader: Any) -> Any:
    while True:
        yield from loader


def main() -> None:
    """Train from the last checkpoint to the last step."""
    import torch.distributed.checkpoint as dcp  # 50 MB and a second, also of each process that collects tests

    job = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(job["folder"])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    indexes = [SampleIndex.open(where, shards_from=Path(where).parent) for where in job["indexes"]]
    mixture = Mixture(dict(zip(indexes, job["weights"], strict=True)), stop="all")
    pipe = AISSampleReader(mixture, shuffle="samples").decode().to_tuple("__key__", "cls").batched(2)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    with (
        ais_loader(pipe, seed=job["seed"], global_batch=job["batch"], num_workers=job["workers"]) as loader,
        (folder / f"{attempt}-{rank}.jsonl").open("w") as log,
    ):
        step = 0
        if checkpoints:
            dcp.load({"data": loader, "model": Model(model)}, checkpoint_id=checkpoints[-1])
            step = int(checkpoints[-1].name.split("-")[1])
        for keys, numbers in islice(forever(loader), job["steps"] - step):
            loss = model(numbers.float()[:, None]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(json.dumps([step, keys]), file=log, flush=True)
            step += 1
            if step % EVERY == 0:
                unfinished = folder / f"unfinished-{step}"
                dcp.save({"data": loader, "model": Model(model)}, checkpoint_id=unfinished)
                dist.barrier()
                if rank == 0:
                    unfinished.rename(folder / f"checkpoint-{step}")
                dist.barrier()
            if [attempt, rank, step] in job["kills"]:
                os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
