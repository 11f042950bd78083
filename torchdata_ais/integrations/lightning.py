"""`lightning_data`: pipes as a ``LightningDataModule``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchdata_ais._util.arguments import checked
from torchdata_ais._util.versions import require
from torchdata_ais.errors import UsageError
from torchdata_ais.loaders import AISLoader


@checked
def lightning_data(
    train: Callable[[], AISLoader],
    val: Callable[[], AISLoader] | None = None,
) -> Any:
    """Return loaders as a ``LightningDataModule`` with the data's position.

    Checkpoints hold the position. Give the trainer ``use_distributed_sampler=False``: ranks share out the data by
    themselves.

    Args:
        train: A function that makes the loader to train on, called in each process of the job. The loader of a stream
            needs ``epoch_steps=``.
        val: One that makes the loader to validate on, if any: every sample of it once, each time.

    Raises:
        MissingLibraryError: Lightning is not installed.
        UsageError: A stream without ``epoch_steps=``, found when the loader is made: from a loader without a length
            Lightning takes one batch ahead, and a checkpoint would count it as seen.

    Example::

        def train():
            return ais_loader(train_pipe(), epoch_steps=1000, num_workers=4)

        data = lightning_data(train)
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
            loader = self._loader("train", train)
            try:
                len(loader)
            except TypeError:
                raise UsageError.at(
                    "Lightning needs the number of steps of an epoch, and a stream does not know it",
                    todo="pass ais_loader(epoch_steps=N), or read by index (.read_samples())",
                ) from None
            return loader

        def val_dataloader(self) -> Any:
            return [] if val is None else self._loader("val", val)

        def teardown(self, stage: str) -> None:  # noqa: ARG002 - Lightning passes it by name
            for loader in self._loaders.values():
                loader.close()
            self._loaders.clear()

        def _loader(self, name: str, make: Callable[[], AISLoader]) -> AISLoader:
            if name not in self._loaders:
                self._loaders[name] = make()
            return self._loaders[name]

    return Data()
