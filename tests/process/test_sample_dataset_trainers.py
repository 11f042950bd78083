"""`SampleDataset` under Lightning and Hugging Face's `Trainer`, with the samplers that these put in themselves."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from torchdata_ais import SampleDataset, SampleIndex
from torchdata_ais.testing import example_shards

pytestmark = [pytest.mark.ci, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def taken(sample: dict[str, bytes]) -> dict[str, torch.Tensor]:
    """Return what a model takes, and write down which sample it is."""
    number = int(sample["cls"])
    return {"x": torch.tensor([float(number)]), "labels": torch.tensor(number)}


def dataset_of(counts: tuple[int, ...]) -> SampleDataset:
    return SampleDataset(SampleIndex.build(example_shards(counts=counts)), taken)


@pytest.mark.parametrize("workers", [0, 2])
def test_promise_3_lightning_on_two_ranks_gets_each_sample_once(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # its ranks leave a folder each

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            with (tmp_path / f"{self.global_rank}-{self.current_epoch}").open("a") as file:
                file.writelines(f"{number}\n" for number in batch["labels"].tolist())
            loss: torch.Tensor = self.layer(batch["x"]).sum() * 0
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp_fork", max_epochs=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    loader = DataLoader(dataset_of((10, 13, 17)), batch_size=8, shuffle=True, num_workers=workers)
    trainer.fit(Model(), loader)
    orders = []
    for epoch in range(2):
        ranks = [
            [int(line) for line in (tmp_path / f"{rank}-{epoch}").read_text().split()] for rank in (0, 1)
        ]
        assert [len(rank) for rank in ranks] == [20, 20]
        assert sorted(ranks[0] + ranks[1]) == list(range(40))
        orders.append(ranks)
    assert orders[0] != orders[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_promise_3_hugging_faces_trainer_gets_each_sample_once(tmp_path: Path, workers: int) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.met: list[int] = []

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            if self.training:
                self.met += labels.tolist()
            return {"loss": self.layer(x).sum() * 0, "logits": labels[:, None].float()}

    arguments = transformers.TrainingArguments(
        str(tmp_path), per_device_train_batch_size=8, per_device_eval_batch_size=8, num_train_epochs=2,
        dataloader_num_workers=workers, remove_unused_columns=False, report_to=[], save_strategy="no",
        use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    model = Model()
    trainer = transformers.Trainer(
        model, arguments, train_dataset=dataset_of((10, 13, 17)), eval_dataset=dataset_of((5, 6))
    )
    trainer.train()
    assert Counter(model.met) == dict.fromkeys(range(40), 2)
    assert sorted(model.met[:40]) == list(range(40))
    assert model.met[:40] != model.met[40:]
    found = trainer.predict(dataset_of((5, 6)))
    assert found.predictions[:, 0].tolist() == list(range(11))
