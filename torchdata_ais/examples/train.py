"""A small training loop over a chain, run by ``torchdata-ais demo``.

Nothing in here is special to the drawn pets but the names of the fields.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchdata_ais import AISSourceLister
from torchdata_ais.store import Cluster


def pets_pipe(
    source: object, *, shuffle: bool, cluster: Cluster = None, size: int = 64, batchsize: int = 32
) -> Any:
    """Return the chain from a bucket of shards to batches.

    Args:
        source: As for `AISSourceLister`: ``"ais://pets/train-"``.
        shuffle: Whether to mix shards and samples, differently in each epoch.
        cluster: See `torchdata_ais.store.Cluster`; default ``AIS_ENDPOINT``.
        size: Images are decoded to size x size pixels.
        batchsize: Samples a batch.

    Yields:
        ``(images, labels, keys)``: uint8 of shape ``(n, 3, size, size)``, int64 of shape ``(n,)``, list of strings.
    """
    return (
        samples_of(source, shuffle=shuffle, cluster=cluster)
        .decode("torchrgb8", size=size, only="image.jpg cls")
        .to_tuple("image.jpg", "cls", "__key__")
        .batched(batchsize)
    )


def samples_of(source: object, *, shuffle: bool, cluster: Cluster = None) -> Any:
    """Return the chain from a bucket of shards to samples; see `pets_pipe`."""
    shards: Any = AISSourceLister(source, cluster=cluster)
    if not shuffle:
        return shards.load_tar().group_samples()
    return shards.shuffle().load_tar().group_samples().shuffled(1000)


class SmallCNN(nn.Sequential):
    """Four convolutions and a mean over the image: about 100,000 weights.

    Takes uint8 images of shape ``(n, 3, h, w)``, returns scores of shape ``(n, classes)``.
    """

    def __init__(self, classes: int) -> None:
        layers: list[nn.Module] = []
        channels = 3
        for width in (16, 32, 64, 128):
            layers += [nn.Conv2d(channels, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        super().__init__(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(channels, classes))

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores."""
        scores: Tensor = super().forward(images.float().div(127.5).sub(1.0))  # type: ignore[no-untyped-call]
        return scores


@dataclass
class EpochResult:
    """Result of one pass over the data.

    Attributes:
        loss: Sum over the samples; `mean_loss` is the mean.
        correct: Samples whose class was right.
        keys: The keys of all samples, in the order they came.
        seconds: From the request of the first batch to the end of the last.
    """

    loss: float = 0.0
    correct: int = 0
    keys: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def mean_loss(self) -> float:
        """Loss a sample."""
        return self.loss / max(1, len(self.keys))

    @property
    def accuracy(self) -> float:
        """Share of samples whose class was right."""
        return self.correct / max(1, len(self.keys))

    @property
    def samples_per_second(self) -> float:
        """Speed, training included."""
        return len(self.keys) / max(self.seconds, 1e-9)


def run_epoch(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor, Sequence[str]]],
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    on_batch: Callable[[int], object] = bool,
) -> EpochResult:
    """Train on all batches, or only measure without an optimizer.

    Args:
        model: Takes images, returns scores.
        batches: See `pets_pipe`.
        optimizer: Steps once a batch.
        scheduler: Steps with it.
        on_batch: Called with the number of samples of each batch, for a progress bar.
    """
    result = EpochResult()
    model.train(optimizer is not None)
    begin = time.perf_counter()
    with torch.set_grad_enabled(optimizer is not None):
        for images, labels, keys in batches:
            scores = model(images)
            loss = nn.functional.cross_entropy(scores, labels)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            if scheduler is not None:
                scheduler.step()
            result.loss += loss.item() * len(keys)
            result.correct += int((scores.argmax(1) == labels).sum())
            result.keys += keys
            on_batch(len(keys))
    result.seconds = time.perf_counter() - begin
    return result


def once_each(keys: Iterable[str], expected: Iterable[str]) -> str:
    """Return "" if `keys` are the expected ones, each once, else an error.

    The error is a sentence.

    Example:
        >>> once_each(["b", "a"], ["a", "b"])
        ''
        >>> once_each(["a", "a", "x"], ["a", "b", "c"])
        '2 of 3 samples were lost (b, c), 1 came more than once (a), 1 are unknown (x)'
    """
    wanted, seen = set(expected), Counter(keys)
    lost = sorted(wanted - seen.keys())
    twice = sorted(key for key, count in seen.items() if count > 1)
    unknown = sorted(seen.keys() - wanted)
    found = []
    if lost:
        found.append(f"{len(lost)} of {len(wanted)} samples were lost ({_some(lost)})")
    if twice:
        found.append(f"{len(twice)} came more than once ({_some(twice)})")
    if unknown:
        found.append(f"{len(unknown)} are unknown ({_some(unknown)})")
    return ", ".join(found)


def _some(keys: Sequence[str]) -> str:
    return ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
