"""Train on several processes under torchrun, with mid-epoch checkpoints.

::

    torchrun --nproc-per-node 2 -m torchdata_ais.examples.train_ddp --samples 200 --epochs 2
    torchrun --nproc-per-node 2 -m torchdata_ais.examples.train_ddp --source ais://pets/train- --held-out ais://pets/test-

Each rank reads different shards. In training all ranks give equally many batches (``epoch_steps="shortest"``), as the
exchange of gradients needs it; in evaluation every sample counts exactly once, and the counts are added up. With
``--checkpoint FILE`` the state of model and loader is written every few steps, and read back at the start.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchdata_ais.examples.pets import CLASSES, make_shards, uneven_sizes
from torchdata_ais.examples.train import SmallCNN, pets_pipe, run_epoch
from torchdata_ais.loaders import AISLoader, ais_loader, merge_states, state_from_json, state_to_json


def main() -> None:
    """Run one rank."""
    arguments = _arguments()
    if not dist.is_torchelastic_launched() and "RANK" not in os.environ:
        sys.exit("run it under torchrun: torchrun --nproc-per-node 2 -m torchdata_ais.examples.train_ddp")
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))
    try:
        with tempfile.TemporaryDirectory() as folder:
            # A checkpoint is of certain shards: drawn ones must be there again when it is resumed.
            keep = arguments.checkpoint.parent if arguments.checkpoint is not None else Path(folder)
            train, held_out = _sources(arguments, keep)
            _run(arguments, train, held_out)
            dist.barrier()
    finally:
        dist.destroy_process_group()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", help="shards to train on; default: drawn pets")
    parser.add_argument("--held-out", help="shards to evaluate on")
    parser.add_argument("--samples", type=int, default=400, help="drawn pets, if no source is given")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1, help="worker processes of each rank")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--checkpoint", type=Path, help="file to write to, and to resume from if it is there")
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--stop-after", type=int, help="stop after so many steps, as if interrupted")
    return parser.parse_args()


def _sources(arguments: argparse.Namespace, folder: Path) -> tuple[object, object]:
    """Return the shards to train and to evaluate on, the same on all ranks."""
    if arguments.source:
        return arguments.source, arguments.held_out or arguments.source
    names: list[Any] = [None]
    if dist.get_rank() == 0:
        sizes = uneven_sizes(arguments.samples, 6)
        paths = [folder / f"pets-{index}.tar" for index in range(len(sizes))]
        for path, shard in zip(paths, make_shards(sizes), strict=True):
            # Those of an earlier run stay as they are: a file that is written again is another one for a checkpoint.
            if not path.exists() or path.read_bytes() != shard:
                path.write_bytes(shard)
        names = [[str(path) for path in paths]]
    dist.broadcast_object_list(names)
    return names[0], names[0]


def _run(arguments: argparse.Namespace, train: object, held_out: object) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(SmallCNN(len(CLASSES)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    pipe = pets_pipe(train, shuffle=True, batchsize=arguments.batch)
    steps = 0
    with ais_loader(pipe, num_workers=arguments.workers, epoch_steps="shortest") as loader:
        if arguments.checkpoint is not None and arguments.checkpoint.exists():
            saved = torch.load(arguments.checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(state_from_json(json.loads(saved["loader"])))
        while loader.epoch < arguments.epochs - 1 or loader.under_way:
            for images, labels, _ in loader:
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                steps += 1
                if arguments.checkpoint is not None and steps % arguments.every == 0:
                    _save(arguments.checkpoint, model, optimizer, loader)
                if steps == arguments.stop_after:
                    return
            if dist.get_rank() == 0:
                print(f"epoch {loader.epoch}: loss {loss.item():.3f}", flush=True)  # noqa: T201
    seen, correct = _evaluate(model.module, pets_pipe(held_out, shuffle=False, batchsize=arguments.batch))
    if dist.get_rank() == 0:
        print(f"steps {steps}, evaluated {seen} samples, accuracy {correct / max(1, seen):.2f}", flush=True)  # noqa: T201


def _save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: AISLoader) -> None:
    """Write one checkpoint for all ranks; only their loaders' states differ."""
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, loader.state_dict())
    if dist.get_rank() == 0:
        part = path.with_suffix(".part")
        state = json.dumps(state_to_json(merge_states(states)))
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": state}, part)
        part.replace(path)


def _evaluate(model: nn.Module, pipe: Any) -> tuple[int, int]:
    """Return samples and right answers over all ranks, each counted once."""
    with ais_loader(pipe) as loader:
        result = run_epoch(model, loader)
    counts = torch.tensor([len(result.keys), result.correct])
    dist.all_reduce(counts)
    return int(counts[0]), int(counts[1])


if __name__ == "__main__":
    main()
