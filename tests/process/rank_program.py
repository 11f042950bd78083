"""What one rank runs in test_ranks.py: forked, or as ``python rank_program.py JOB.json``, which prints JSON."""

from __future__ import annotations

import itertools
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from torchdata_ais import AISSourceLister
from torchdata_ais.errors import AISError
from torchdata_ais.loaders import ais_loader, merge_states, state_from_json, state_to_json


def fail_on_seven(row: tuple[Any, ...]) -> tuple[Any, ...]:
    if row[0] == 7:
        raise RuntimeError("row 7 is bad")
    return row


def run(job: dict[str, Any]) -> dict[str, Any]:
    pipe = (
        AISSourceLister(job["urls"]).shuffle().load_tar().group_samples().shuffled(5).decode().to_tuple("cls")
    )
    if job.get("fail"):
        pipe = pipe.map(fail_on_seven)
    epochs: list[list[list[int]]] = []
    repeated: list[int] = []
    states: list[Any] = []
    with ais_loader(
        pipe.batched(2),
        num_workers=job["workers"],
        epoch_steps=job.get("steps"),
    ) as loader:
        if job.get("states"):
            loader.load_state_dict(merge_states([state_from_json(state) for state in job["states"]]))
        for _ in range(job.get("epochs", 1)):
            batches: Any = loader if job.get("take") is None else itertools.islice(loader, job["take"])
            epochs.append([batch[0].tolist() for batch in batches])
            repeated.append(loader.repeated)
        if job.get("take") is not None:
            mine = state_to_json(loader.state_dict())
            states = [None] * dist.get_world_size()
            dist.all_gather_object(states, mine)
    return {"rank": dist.get_rank(), "epochs": epochs, "repeated": repeated, "states": states}


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job; an error is an answer, too."""
    try:
        return run(job)
    except (AISError, RuntimeError) as error:
        return {"rank": dist.get_rank(), "error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    answer = main(json.loads(Path(sys.argv[1]).read_text()))
    print("ANSWER " + json.dumps(answer), flush=True)
    if "error" not in answer:
        dist.barrier()
        dist.destroy_process_group()
