"""Other frameworks' loops over our loaders: every sample once, and on from the middle of an epoch."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from torchdata_ais import AISSampleReader, AISSourceLister, SampleIndex, ais_loader
from torchdata_ais.errors import StateError, UsageError
from torchdata_ais.integrations import as_node, lightning_data, to_hf, trainer_callback
from torchdata_ais.testing import write_shard

pytestmark = [pytest.mark.ci, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

SIZES = (7, 12, 5, 16)
KEYS = sorted(f"{shard}-{n:02d}" for shard, size in enumerate(SIZES) for n in range(size))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("frameworks")
    return [
        str(write_shard(folder / f"{shard}.tar", {f"{shard}-{n:02d}.cls": b"%d" % n for n in range(size)}))
        for shard, size in enumerate(SIZES)
    ]


def stream(shards: list[str]) -> Any:
    return AISSourceLister(shards).shuffle().load_tar().group_samples().shuffled(8).decode()


def planned(shards: list[str]) -> Any:
    return AISSampleReader(SampleIndex.build(shards), shuffle="samples").decode()


def batches(samples: Any, size: int = 4) -> Any:
    return samples.to_tuple("__key__", "cls").batched(size)


def keys_of(items: Any) -> list[str]:
    return [key for keys, _ in items for key in keys]


MAKERS = pytest.mark.parametrize("make", [stream, planned])


@MAKERS
@pytest.mark.parametrize("workers", [0, 2])
def test_a_node_gives_each_sample_once_and_goes_on_where_its_state_was_taken(
    shards: list[str], make: Callable[..., Any], workers: int
) -> None:
    nodes = pytest.importorskip("torchdata.nodes")

    def loader() -> tuple[Any, Any]:
        node = as_node(ais_loader(batches(make(shards)), num_workers=workers, seed=3))
        return nodes.Loader(
            nodes.Prefetcher(nodes.Mapper(node, functools.partial(_same)), prefetch_factor=2)
        ), node

    first, node = loader()
    epochs = [keys_of(first), keys_of(first)]
    node.close()
    assert [sorted(epoch) for epoch in epochs] == [KEYS, KEYS]
    assert epochs[0] != epochs[1]
    for seen in (0, 3, 9, 10):
        broken, node = loader()
        items = iter(broken)
        begun = keys_of(next(items) for _ in range(seen))
        state = broken.state_dict()
        node.close()
        resumed, node = loader()
        resumed.load_state_dict(state)
        rest = keys_of(resumed)
        node.close()
        assert begun + rest == (epochs[0] if seen < 10 else epochs[0] + epochs[1])


def _same(item: Any) -> Any:
    return item


@pytest.mark.parametrize("workers", [0, 2])
def test_hugging_faces_dataset_gives_each_sample_once(shards: list[str], workers: int) -> None:
    nodes = pytest.importorskip("datasets.distributed")
    dataset = to_hf(stream(shards))
    assert dataset.num_shards == len(SIZES)
    seen = [sample["__key__"] for sample in DataLoader(dataset, batch_size=None, num_workers=workers)]
    assert sorted(seen) == KEYS
    halves = [nodes.split_dataset_by_node(dataset, rank=rank, world_size=2) for rank in (0, 1)]
    shares = [[sample["__key__"] for sample in half] for half in halves]
    assert sorted(shares[0] + shares[1]) == KEYS
    assert all(shares)


def test_hugging_faces_dataset_goes_on_where_its_state_was_taken(shards: list[str]) -> None:
    pytest.importorskip("datasets")
    whole = [sample["__key__"] for sample in to_hf(stream(shards), seed=5)]
    for stop in (0, 1, 9, 20, len(whole) - 1):
        first = to_hf(stream(shards), seed=5)
        items = iter(first)
        begun = [next(items)["__key__"] for _ in range(stop)]
        state = first.state_dict()
        second = to_hf(stream(shards), seed=5)
        second.load_state_dict(state)
        assert begun + [sample["__key__"] for sample in second] == whole


def test_what_hugging_faces_dataset_cannot_be_made_of(shards: list[str]) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(UsageError, match="SampleDataset"):
        to_hf(planned(shards))
    with pytest.raises(UsageError, match="one dict a sample"):
        next(iter(to_hf(batches(stream(shards)))))
    with pytest.raises(UsageError, match=r"to_hf\(pipe=.*this is a list"):
        to_hf(shards)  # type: ignore[arg-type]


class Model(torch.nn.Module):
    """Remembers what it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[int] = []

    def forward(self, number: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen += number.tolist()
        return {"loss": self.layer(labels[:, None].float()).square().mean()}


def numbered(sample: Any) -> Any:
    shard, n = sample["__key__"].split("-")
    return {"number": 100 * int(shard) + int(n), "labels": sample["cls"]}


def as_dict(batch: Any) -> Any:
    return {"number": batch["number"], "labels": batch["labels"]}


@MAKERS
def test_hugging_faces_trainer_goes_on_from_a_checkpoint_in_mid_epoch(
    shards: list[str], make: Callable[..., Any], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")

    def run(folder: Path, resume: Path | None = None, **named: Any) -> tuple[list[int], int]:
        pipe = make(shards).map_sample(numbered).batched(4).map(as_dict)
        with ais_loader(pipe, seed=1, epoch_steps=10 if make is stream else None) as loader:

            class Trainer(transformers.Trainer):  # type: ignore[name-defined,misc]
                def get_train_dataloader(self) -> Any:
                    return loader

            arguments = transformers.TrainingArguments(
                str(folder), save_steps=3, report_to=[], disable_tqdm=True, use_cpu=True, ignore_data_skip=True,
                num_train_epochs=2, dataloader_pin_memory=False, **named,
            )  # fmt: skip
            model = Model()
            trainer = Trainer(model, arguments, callbacks=[trainer_callback(loader, resume)])
            trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
            return model.seen, trainer.state.global_step

    whole, steps = run(tmp_path / "a")
    numbers = sorted(100 * int(key[0]) + int(key[2:]) for key in KEYS)
    assert sorted(whole[:40]) == sorted(whole[40:]) == numbers
    assert steps == 20
    for step in (3, 9, 12):
        rest, steps = run(tmp_path / f"b{step}", tmp_path / "a" / f"checkpoint-{step}")
        assert rest == whole[4 * step :]
        assert steps == 20
    with pytest.raises(StateError, match="no state of a loader"):
        run(tmp_path / "c", tmp_path)


@MAKERS
def test_lightnings_data_module_goes_on_from_a_checkpoint_in_mid_epoch(
    shards: list[str], make: Callable[..., Any], tmp_path: Path
) -> None:
    lightning = pytest.importorskip("lightning")

    class Net(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: list[str] = []
            self.validated: Counter[str] = Counter()

        def training_step(self, batch: Any, _index: int) -> torch.Tensor:
            keys, labels = batch
            self.seen += keys
            return self.layer(labels[:, None].float()).square().mean()

        def validation_step(self, batch: Any, _index: int) -> None:
            self.validated.update(batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    def data() -> Any:
        steps = 10 if make is stream else None
        val = functools.partial(lambda: batches(AISSourceLister(shards).load_tar().group_samples().decode()))
        return lightning_data(
            lambda: ais_loader(batches(make(shards)), epoch_steps=steps, seed=2),
            lambda: ais_loader(val(), seed=2),
        )

    quiet = {
        "max_epochs": 2, "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
        "accelerator": "cpu", "use_distributed_sampler": False, "num_sanity_val_steps": 0,
    }  # fmt: skip
    keep = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=3, save_top_k=-1)
    first = Net()
    lightning.Trainer(callbacks=[keep], **quiet).fit(first, datamodule=data())
    assert [sorted(first.seen[:40]), sorted(first.seen[40:])] == [KEYS, KEYS]
    assert first.validated == Counter(dict.fromkeys(KEYS, 2))
    for step in (3, 9, 12):
        (middle,) = tmp_path.glob(f"*step={step}.ckpt")
        second = Net()
        lightning.Trainer(enable_checkpointing=False, **quiet).fit(
            second, datamodule=data(), ckpt_path=str(middle), weights_only=True
        )
        assert second.seen == first.seen[4 * step :]


def test_lightnings_data_module_asks_for_the_steps_of_a_stream(shards: list[str]) -> None:
    pytest.importorskip("lightning")
    with pytest.raises(UsageError, match="epoch_steps=N"):
        lightning_data(lambda: ais_loader(batches(stream(shards)))).train_dataloader()
