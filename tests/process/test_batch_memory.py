"""Batches whose images workers make in the memory that is sent: whoever holds or changes them has them alone."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from torchdata_ais import AISSampleReader, SampleIndex, ais_loader
from torchdata_ais.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata_ais.pipes import AISFileLoader, TarSampleGrouper
from torchdata_ais.pipes.base.collate import BatchRows
from torchdata_ais.testing import shard_bytes

SAMPLES = 60
SIZE = 48


def picture(number: int) -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (60, 50, 3), np.uint8)
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    return stream.getvalue()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("rows")
    found = []
    for shard in range(4):
        members: dict[str, bytes] = {}
        for number in range(shard * 15, shard * 15 + 15):
            members |= {f"{number:03d}.jpg": picture(number), f"{number:03d}.cls": b"%d" % number}
        path = Path(folder, f"s-{shard}.tar")
        path.write_bytes(shard_bytes(members))
        found.append(str(path))
    return found


def chain(shards: list[str], size: int = 4, **how: Any) -> Any:
    samples = TarSampleGrouper(AISFileLoader(shards))
    return samples.decode("torchrgb8", size=SIZE, **how).to_tuple("jpg", "cls").batched(size)


def is_early(sample: dict[str, Any]) -> bool:
    return int(sample["cls"]) < 4


def by_label(batches: list[Any]) -> dict[int, torch.Tensor]:
    return {
        int(label): image for images, labels in batches for image, label in zip(images, labels, strict=True)
    }


@pytest.mark.parametrize("how", [{}, {"threads": 2}])
def test_promise_2_batches_that_are_held_and_changed_are_never_those_of_others(
    shards: list[str], how: dict[str, Any]
) -> None:
    expected = {label: image.clone() for label, image in by_label(list(chain(shards))).items()}
    assert len(expected) == SAMPLES
    loader = DataLoader2(chain(shards, **how), reading_service=MultiProcessingReadingService(num_workers=2))
    try:
        held = []
        for _ in range(3):
            for index, batch in enumerate(loader):
                if index % 2:
                    batch[0].zero_()  # in place: nobody else sees it
                else:
                    held.append(batch)
            assert all(torch.equal(image, expected[label]) for label, image in by_label(held).items())
        assert len(held) > 20
    finally:
        loader.shutdown()


def test_a_batch_that_is_given_again_is_as_it_was(shards: list[str], tmp_path: Path) -> None:
    index = SampleIndex.build(shards, where=str(tmp_path / "index"), method="read")
    reader = AISSampleReader(index, shuffle=None, empty="repeat")
    samples = reader.select(is_early)
    pipe = samples.decode("torchrgb8", size=SIZE).to_tuple("jpg", "cls").batched(4)
    with ais_loader(pipe, num_workers=1) as loader:
        seen = []
        for images, labels in loader:
            assert labels.tolist() == [0, 1, 2, 3]
            seen.append(images.clone())
            images.zero_()
    assert len(seen) == SAMPLES // 4
    assert all(images.any() and torch.equal(images, seen[0]) for images in seen)


def test_workers_make_batches_in_the_memory_that_they_send(
    shards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchdata_ais.workers.memory import Lender

    def copied(self: Lender, content: memoryview) -> int:
        assert len(content) < SIZE * SIZE, "a batch was copied"
        return fill(self, content)

    fill = Lender.fill
    monkeypatch.setattr(Lender, "fill", copied)  # forked workers have it, too
    assert BatchRows(4)._memory(8).nbytes == 8
    for make in (
        lambda pipe: DataLoader2(pipe, reading_service=MultiProcessingReadingService(num_workers=2)),
        lambda pipe: ais_loader(pipe, num_workers=2),
    ):
        loader = make(chain(shards, 5))  # no worker has a smaller one at the end
        try:
            assert len(by_label(list(loader))) == SAMPLES
        finally:
            loader.shutdown() if isinstance(loader, DataLoader2) else loader.close()
