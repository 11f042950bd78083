"""Who asks a loader by index how many batches come is told before the first: progress bars, schedules, trainers."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchdata_ais import AISSampleReader, SampleIndex, ais_loader
from torchdata_ais.testing import example_shards

pytestmark = [pytest.mark.timeout(240)]

COUNTS = (9, 20, 14)
TOTAL = sum(COUNTS)
STEPS = 11  # of 4 samples, and a short one


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SampleIndex:
    return SampleIndex.build(example_shards(tmp_path_factory.mktemp("totals"), COUNTS))


def pipe_of(index: SampleIndex) -> Any:
    return AISSampleReader(index, shuffle="samples").decode().to_tuple("cls").batched(4)


@pytest.mark.ci  # with tqdm, which an extra brings
def test_the_bar_of_tqdm_has_a_total_in_each_epoch_and_after_a_resume(index: SampleIndex) -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    shown = io.StringIO()
    with ais_loader(pipe_of(index)) as loader:
        for _ in range(2):
            bar = tqdm(loader, file=shown)
            assert bar.total == STEPS
            assert sum(1 for _ in bar) == STEPS
        for number, _ in enumerate(loader):
            if number == 3:
                break
        state = loader.state_dict()
    assert f"{STEPS}/{STEPS}" in shown.getvalue()
    with ais_loader(pipe_of(index)) as loader:
        loader.load_state_dict(state)
        bar = tqdm(loader, initial=4, file=io.StringIO())
        assert bar.total == STEPS
        assert sum(1 for _ in bar) == STEPS - 4
        assert bar.n == STEPS


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
def test_lightning_knows_its_steps_and_goes_on_from_a_checkpoint(index: SampleIndex, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    bars: list[Any] = []

    class Learner(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(1, 1)
            self.seen: list[int] = []

        def training_step(self, batch: Any, _index: int) -> Any:
            (numbers,) = batch
            self.seen += numbers.tolist()
            return self.model(numbers.float()[:, None]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-9)

        def on_train_epoch_end(self) -> None:
            bars.append(self.trainer.progress_bar_callback.train_progress_bar.total)

    def fit(learner: Any, epochs: int, path: Path | None = None, **how: Any) -> Any:
        trainer = lightning.Trainer(
            accelerator="cpu", use_distributed_sampler=False, max_epochs=epochs, logger=False,
            enable_model_summary=False, **how,
        )  # fmt: skip
        with ais_loader(pipe_of(index), seed=3) as loader:
            trainer.fit(learner, loader, ckpt_path=None if path is None else str(path), weights_only=False)
        return trainer

    first = Learner()
    checkpoints = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=5, save_top_k=-1)
    trainer = fit(first, 2, callbacks=[checkpoints])
    assert trainer.num_training_batches == STEPS
    assert trainer.estimated_stepping_batches == 2 * STEPS
    assert bars == [STEPS, STEPS]
    assert sorted(first.seen[:TOTAL]) == sorted(first.seen[TOTAL:]) == list(range(TOTAL))
    (middle,) = tmp_path.glob("*step=15.ckpt")  # the fourth batch of the second epoch
    second = Learner()
    fit(second, 2, middle, enable_checkpointing=False)
    assert second.seen == first.seen[TOTAL + 4 * 4 :]
    assert bars == [STEPS, STEPS, STEPS]


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
def test_the_trainer_of_hugging_face_knows_its_steps(index: SampleIndex, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Learner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(1, 1)
            self.seen: list[int] = []

        def forward(self, cls: torch.Tensor) -> dict[str, torch.Tensor]:
            self.seen += cls.tolist()
            return {"loss": self.model(cls.float()[:, None]).mean()}

    labels = AISSampleReader(index, shuffle="samples").decode().map(only_label)
    with ais_loader(labels.batched(4), seed=3) as loader:

        class Trainer(transformers.Trainer):  # type: ignore[name-defined, misc]
            def get_train_dataloader(self) -> Any:
                return loader

        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), num_train_epochs=2, report_to="none", use_cpu=True, save_strategy="no",
            disable_tqdm=True,
        )  # fmt: skip
        learner = Learner()
        trainer = Trainer(model=learner, args=arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.train()
    assert trainer.state.max_steps == trainer.state.global_step == 2 * STEPS
    assert sorted(learner.seen[:TOTAL]) == sorted(learner.seen[TOTAL:]) == list(range(TOTAL))


def only_label(sample: Any) -> Any:
    return {"cls": sample["cls"]}
