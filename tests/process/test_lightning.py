"""Lightning: fit, a checkpoint in mid-epoch, resume; every sample of the epoch once."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.ci, pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore")]


def test_fit_and_resume_from_a_checkpoint_in_mid_epoch(tmp_path: Path) -> None:
    lightning = pytest.importorskip(
        "lightning"
    )  # here, not above: whoever collects the tests would wait for it
    from torchdata_ais.examples.pets import make_shards
    from torchdata_ais.examples.train_lightning import Pets, PetsData, trainer

    paths = []
    for index, shard in enumerate(make_shards([7, 12, 5])):
        paths.append(tmp_path / f"pets-{index}.tar")
        paths[-1].write_bytes(shard)
    source = [str(path) for path in paths]
    quiet = {"max_epochs": 1, "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    checkpoints = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=3, save_top_k=-1)
    first = Pets()
    trainer(callbacks=[checkpoints], **quiet).fit(first, datamodule=PetsData(source, steps=6, batchsize=4))
    assert sorted(first.keys) == [f"sample_{index:06d}" for index in range(24)]
    (middle,) = tmp_path.glob("*step=3.ckpt")
    second = Pets()
    trainer(enable_checkpointing=False, **quiet).fit(
        second, datamodule=PetsData(source, steps=6, batchsize=4), ckpt_path=str(middle), weights_only=True
    )
    assert second.keys == first.keys[12:]
