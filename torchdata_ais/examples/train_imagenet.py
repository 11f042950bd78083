r"""Train a classifier of pictures on ImageNet-like shards.

It runs in one process, or in several under torchrun; on GPUs or the CPU.

::

    python -m torchdata_ais.examples.train_imagenet --size 64 --epochs 3
    torchrun --nproc-per-node 8 -m torchdata_ais.examples.train_imagenet --source ais://imagenet/train- \
        --held-out ais://imagenet/val- --classes 1000 --model resnet50 --global-batch 1024 --workers 8 \
        --checkpoint last.pt

Pictures are ``jpg``, ``png`` or ``webp``, classes ``cls``. With an index next to the shards (``torchdata-ais index``),
samples come in one planned order: the same for any number of GPUs and workers, shuffled as a whole, with equal steps
for all ranks, and a checkpoint resumes with another number of them. Without one shards are streamed and ranks stop
together.

Random crops, flips and brightness depend on seed, epoch and sample alone. With ``--checkpoint FILE`` everything is
written after so many steps and read back at the start, in the middle of an epoch, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image, ImageEnhance
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from torchdata_ais import AISSampleReader, AISSourceLister, SampleIndex, ShardWriter
from torchdata_ais.errors import NotFoundError
from torchdata_ais.examples.pets import CLASSES, make_pets
from torchdata_ais.examples.train import SmallCNN
from torchdata_ais.loaders import AISLoader, ais_loader, merge_states, state_from_json, state_to_json

IMAGE = "jpg;png;webp;image.jpg"
FIELDS = f"{IMAGE} cls".replace(";", " ")


class Augment:
    """A random part of the picture, resized, perhaps mirrored or brighter.

    It may also be darker.

    Args:
        size: Width and height of the result.
        least: The smallest share of the picture's area that is taken.
    """

    def __init__(self, size: int, least: float = 0.25) -> None:
        self._size = size
        self._least = least

    def __call__(self, sample: dict[str, Any], rng: random.Random) -> dict[str, Any]:
        """Return the sample with a uint8 tensor ``image`` (3, size, size)."""
        picture = next(sample[field] for field in IMAGE.split(";") if field in sample).convert("RGB")
        area, aspect = rng.uniform(self._least, 1), rng.uniform(3 / 4, 4 / 3)
        width = min(picture.width, round((picture.width * picture.height * area * aspect) ** 0.5))
        height = min(picture.height, round((picture.width * picture.height * area / aspect) ** 0.5))
        left, top = rng.randint(0, picture.width - width), rng.randint(0, picture.height - height)
        picture = picture.resize(
            (self._size, self._size), Image.Resampling.BILINEAR, (left, top, left + width, top + height)
        )
        if rng.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        picture = ImageEnhance.Brightness(picture).enhance(rng.uniform(0.7, 1.3))
        return sample | {"image": torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()}


def index_of(source: Any) -> SampleIndex | None:
    """Return the index stored with the shards, or None."""
    try:
        return SampleIndex.open(source)
    except NotFoundError:
        return None


def train_pipe(source: object, index: SampleIndex | None, size: int, batch: int) -> Any:
    """Return the chain for training: planned with an index, else streamed.

    Args:
        source: Shards, as `AISSourceLister` takes them.
        index: That of these shards.
        size: Of the pictures, in pixels.
        batch: Samples that a rank takes in a step.
    """
    if index is not None:
        samples: Any = AISSampleReader(index, shuffle="samples")
    else:
        samples = AISSourceLister(source).shuffle().load_tar().group_samples().shuffled(2000)
    pictures = samples.decode("pil", only=FIELDS).map_sample(Augment(size), rng=True)
    return pictures.to_tuple("image", "cls").batched(batch)


def valid_pipe(source: object, size: int, batch: int) -> Any:
    """Return the chain for evaluation: every picture once, resized."""
    samples = AISSourceLister(source).load_tar().group_samples()
    return samples.decode("torchrgb8", size=size, only=FIELDS).to_tuple(IMAGE, "cls").batched(batch)


class Run:
    """Model, optimizer and data of one rank."""

    def __init__(self, arguments: argparse.Namespace, source: object, device: torch.device) -> None:
        self.arguments = arguments
        self.device = device
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        torch.manual_seed(0)
        self.plain = _network(arguments.model, arguments.classes).to(device)
        self.model: nn.Module = DistributedDataParallel(self.plain) if self.world > 1 else self.plain
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=arguments.lr, weight_decay=0.05)
        index = index_of(source)
        pipe = train_pipe(source, index, arguments.size, max(1, arguments.global_batch // self.world))
        how: dict[str, Any] = (
            {"epoch_steps": "shortest"} if index is None else {"global_batch": arguments.global_batch}
        )
        self.loader: AISLoader = ais_loader(pipe, num_workers=arguments.workers, device=device, seed=0, **how)
        say(f"{'streamed' if index is None else 'planned'} order, {self.world} x {device.type}")

    def train(self) -> None:
        """Train until the last epoch, or the step of ``--stop-after``."""
        steps = 0
        while self.loader.epoch < self.arguments.epochs - 1 or self.loader.under_way:
            self.model.train()
            for images, labels in self.loader:
                loss = nn.functional.cross_entropy(self.scores(images), labels)
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                steps += 1
                if self.arguments.checkpoint is not None and steps % self.arguments.every == 0:
                    self.save(self.arguments.checkpoint)
                if steps == self.arguments.stop_after:
                    return
            say(f"epoch {self.loader.epoch}: loss {loss.item():.3f}")

    def scores(self, images: Tensor) -> Tensor:
        """Return the model's scores of uint8 pictures; on a GPU in bfloat16."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            scores: Tensor = self.model(images)
        return scores.float()

    @torch.no_grad()
    def evaluate(self, source: object) -> tuple[int, int]:
        """Return right answers and pictures over all ranks, each counted once."""
        self.model.eval()
        counts = torch.zeros(2, dtype=torch.long, device=self.device)
        pipe = valid_pipe(source, self.arguments.size, self.arguments.global_batch)
        with ais_loader(pipe, device=self.device) as loader:
            for images, labels in loader:
                best = self.plain(images).argmax(1)
                counts[0] += (best == labels).sum()
                counts[1] += len(labels)
        if self.world > 1:
            dist.all_reduce(counts)
        return int(counts[0]), int(counts[1])

    def save(self, path: Path) -> None:
        """Write one checkpoint for all ranks, whole or not at all."""
        states = [self.loader.state_dict()]
        if self.world > 1:
            states *= self.world
            dist.all_gather_object(states, states[0])
        if is_first():
            state = json.dumps(state_to_json(merge_states(states)))
            part = path.with_suffix(".part")
            kept = {
                "model": self.plain.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "loader": state,
            }
            torch.save(kept, part)
            part.replace(path)

    def load(self, path: Path) -> None:
        """Resume from a checkpoint."""
        kept = torch.load(path, map_location=self.device, weights_only=True)
        self.plain.load_state_dict(kept["model"])
        self.optimizer.load_state_dict(kept["optimizer"])
        self.loader.load_state_dict(state_from_json(json.loads(kept["loader"])))
        say(f"goes on from {path}")


def _network(name: str, classes: int) -> nn.Module:
    """Return a small network, or one of torchvision's, for uint8 pictures."""
    if name == "small":
        return SmallCNN(classes)
    from torchvision.models import get_model  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return nn.Sequential(_Normalise(), get_model(name, num_classes=classes))


class _Normalise(nn.Module):
    """Turns 0..255 into the usual input of networks for ImageNet."""

    def forward(self, images: Tensor) -> Tensor:
        mean = torch.tensor([0.485, 0.456, 0.406], device=images.device).view(3, 1, 1)
        std = torch.tensor([0.229, 0.224, 0.225], device=images.device).view(3, 1, 1)
        return (images.float() / 255 - mean) / std


def is_first() -> bool:
    """Return whether this is rank 0, or the only process."""
    return not dist.is_initialized() or dist.get_rank() == 0


def say(text: str) -> None:
    """Print a line, once for all ranks."""
    if is_first():
        print(text, flush=True)  # noqa: T201


def main() -> None:
    """Run one rank."""
    arguments = _arguments()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)  # the workers need the other cores
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("nccl" if gpu else "gloo", timeout=timedelta(minutes=10))
    try:
        with tempfile.TemporaryDirectory() as folder:
            train, held_out = _sources(arguments, Path(folder))
            run = Run(arguments, train, device)
            with run.loader:
                if arguments.checkpoint is not None and arguments.checkpoint.exists():
                    run.load(arguments.checkpoint)
                run.train()
            right, pictures = run.evaluate(held_out)
            say(f"evaluated {pictures} pictures, {right / max(1, pictures):.1%} right")
            if dist.is_initialized():
                dist.barrier()  # rank 0 removes the drawn shards
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", help="shards to train on; default: drawn pets, with an index")
    parser.add_argument("--held-out", help="shards to evaluate on")
    parser.add_argument("--samples", type=int, default=400, help="drawn pets, if no source is given")
    parser.add_argument("--classes", type=int, default=len(CLASSES))
    parser.add_argument(
        "--model", default="small", help="small, or a name of torchvision's, such as resnet50"
    )
    parser.add_argument("--size", type=int, default=224, help="of the pictures, in pixels")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--global-batch", type=int, default=32, help="samples a step, over all ranks")
    parser.add_argument("--workers", type=int, default=2, help="worker processes of each rank")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--checkpoint", type=Path, help="file to write to, and to go on from if it is there")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--stop-after", type=int, help="stop after so many steps, as if interrupted")
    return parser.parse_args()


def _sources(arguments: argparse.Namespace, folder: Path) -> tuple[object, object]:
    """Return the shards to train and to evaluate on, the same on all ranks."""
    if arguments.source:
        return arguments.source, arguments.held_out or arguments.source
    # A checkpoint is of certain shards: drawn ones must be there again when it resumes.
    where = arguments.checkpoint.parent / "pets" if arguments.checkpoint is not None else folder
    names = [f"{where}/train-{{000..{(arguments.samples - 1) // 50:03d}}}.tar", f"{where}/valid-*.tar"]
    if is_first() and not Path(where, "valid-000.tar").exists():
        Path(where).mkdir(parents=True, exist_ok=True)
        for name, seed, count in (
            ("train", 0, arguments.samples),
            ("valid", 1, max(1, arguments.samples // 5)),
        ):
            with ShardWriter(
                f"{where}/{name}-%03d.tar", maxcount=50, index=name == "train", overwrite=True
            ) as writer:
                for sample in make_pets(count, seed):
                    writer.write(sample)
    if dist.is_initialized():
        dist.broadcast_object_list(names)
    return names[0], names[1]


if __name__ == "__main__":
    main()
