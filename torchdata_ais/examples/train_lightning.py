"""Train with Lightning: fit, mid-epoch checkpoint, resume.

::

    python -m torchdata_ais.examples.train_lightning ais://pets/train-

Lightning keeps the state of every loader that has ``state_dict`` in its checkpoints, and gives it back on resume. Give
`ais_loader` a fixed number of steps: from a loader without length Lightning takes one batch ahead, and that batch
would count as seen in a checkpoint. Several processes: Lightning starts them, `ais_loader` sees their ranks when an
epoch begins; ``use_distributed_sampler=False`` keeps Lightning from adding another sampler.
"""

from __future__ import annotations

import sys
from typing import Any

import lightning
import torch
from torch import Tensor, nn

from torchdata_ais.examples.pets import CLASSES
from torchdata_ais.examples.train import SmallCNN, pets_pipe
from torchdata_ais.loaders import AISLoader, ais_loader


class Pets(lightning.LightningModule):
    """The network, and how it learns."""

    def __init__(self) -> None:
        super().__init__()
        self.model = SmallCNN(len(CLASSES))
        self.keys: list[str] = []

    def training_step(self, batch: tuple[Tensor, Tensor, list[str]], _index: int) -> Tensor:
        """Return the loss of a batch."""
        images, labels, keys = batch
        self.keys += keys
        return nn.functional.cross_entropy(self.model(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


class PetsData(lightning.LightningDataModule):
    """The loader, made once.

    Lightning requests it again only by configuration.

    Args:
        source: As for `AISSourceLister`.
        steps: Batches of each rank in an epoch; the next epoch continues in the data where it stopped.
        num_workers: Worker processes of each rank.
        batchsize: Samples a batch.
    """

    def __init__(self, source: object, steps: int, num_workers: int = 0, batchsize: int = 16) -> None:
        super().__init__()
        self._source = source
        self._steps = steps
        self._num_workers = num_workers
        self._batchsize = batchsize
        self._loader: AISLoader | None = None

    def train_dataloader(self) -> AISLoader:
        """Return the loader."""
        if self._loader is None:
            pipe = pets_pipe(self._source, shuffle=True, batchsize=self._batchsize)
            self._loader = ais_loader(pipe, num_workers=self._num_workers, epoch_steps=self._steps)
        return self._loader

    def teardown(self, stage: str) -> None:  # noqa: ARG002 - Lightning passes it by name
        """End the workers."""
        if self._loader is not None:
            self._loader.close()
            self._loader = None


# The options are those of Lightning's class.
def trainer(**options: Any) -> lightning.Trainer:
    """Return a trainer for loaders that split the data themselves."""
    return lightning.Trainer(accelerator="cpu", use_distributed_sampler=False, **options)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("name the shards: python -m torchdata_ais.examples.train_lightning ais://pets/train-")
    trainer(max_epochs=2).fit(Pets(), datamodule=PetsData(sys.argv[1], steps=100, num_workers=2))
