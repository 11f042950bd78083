"""`lightning_data`: pipes as a ``LightningDataModule``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchdata_ais._util.arguments import checked
from torchdata_ais._util.versions import require
from torchdata_ais.errors import UsageError
from torchdata_ais.loaders import AISLoader, ais_loader
from torchdata_ais.pipes.base.pipe import IterDataPipe

_Pipe = Callable[[], IterDataPipe[Any]]


@checked
def lightning_data(
    train: _Pipe | IterDataPipe[Any],
    val: _Pipe | IterDataPipe[Any] | None = None,
    *,
    epoch_steps: int | None = None,
    **options: Any,
) -> Any:
    """Return pipes as a ``LightningDataModule`` with the data's position.

    Checkpoints hold the position. Give the trainer ``use_distributed_sampler=False``: ranks share out the data by
    themselves.

    Args:
        train: The pipe to train on, or a function that makes it, called in each process of the job.
        val: To validate on, if any: every sample of it once, each time.
        epoch_steps: Batches of each rank in an epoch of training, of a stream. By index it is not needed.
        **options: Of `ais_loader`, such as ``num_workers=4, seed=0``.

    Raises:
        MissingLibraryError: Lightning is not installed.
        UsageError: A stream without `epoch_steps`, found when the loader is made: from a loader without a length
            Lightning takes one batch ahead, and a checkpoint would count it as seen.

    Example::

        data = lightning_data(train_pipe, val_pipe, epoch_steps=1000, num_workers=4)
        Trainer(use_distributed_sampler=False).fit(model, datamodule=data, ckpt_path="last")
    """
    lightning = require("lightning", "lightning_data()")

    class Data(lightning.LightningDataModule):  # type: ignore[name-defined,misc]
        """The loaders, each made once.

        Lightning requests them again only by configuration.
        """

        def __init__(self) -> None:
            super().__init__()
            self._loaders: dict[str, AISLoader] = {}

        def train_dataloader(self) -> AISLoader:
            loader = self._loader("train", train, epoch_steps)
            try:
                len(loader)
            except TypeError:
                raise UsageError.at(
                    "Lightning needs the number of steps of an epoch, and a stream does not know it",
                    todo="pass epoch_steps=N, or read by index (.read_samples())",
                ) from None
            return loader

        def val_dataloader(self) -> Any:
            return [] if val is None else self._loader("val", val, None)

        def teardown(self, stage: str) -> None:  # noqa: ARG002 - Lightning passes it by name
            for loader in self._loaders.values():
                loader.close()
            self._loaders.clear()

        def _loader(self, name: str, pipe: _Pipe | IterDataPipe[Any], steps: int | None) -> AISLoader:
            if name not in self._loaders:
                made = pipe if isinstance(pipe, IterDataPipe) else pipe()
                self._loaders[name] = ais_loader(made, epoch_steps=steps, **options)
            return self._loaders[name]

    return Data()
