"""Random crops of `.decode()`: a sample's own, whoever decodes it, and after a resume."""

from __future__ import annotations

import io
import pickle
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.global_batches import steps_of
from PIL import Image
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.graph_settings import apply_random_seed, apply_sharding

from torchdata_ais import AISSampleReader, Decoder, RandomResizedCrop, SampleIndex, ais_loader
from torchdata_ais.errors import StateError
from torchdata_ais.loaders import SampleDataset
from torchdata_ais.pipes import AISFileLoader, SampleDecoder, SampleMapper, Shuffler, TarSampleGrouper
from torchdata_ais.pipes.base.meter import StageStats
from torchdata_ais.testing import shard_bytes

HEIGHT, WIDTH = 60, 90
COUNT = 20


def ramp() -> bytes:
    """A picture whose pixels say where they stand."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(np.stack([rows, columns, rows], -1)).save(stream, "png")
    return stream.getvalue()


RAMP = ramp()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("pictures")
    urls = []
    for shard in range(4):
        members: dict[str, bytes] = {}
        for number in range(shard * 5, shard * 5 + 5):
            members |= {f"{number:03d}.png": RAMP, f"{number:03d}.cls": b"%d" % number}
        path = Path(folder, f"s-{shard}.tar")
        path.write_bytes(shard_bytes(members))
        urls.append(str(path))
    return urls


@pytest.fixture(scope="module")
def index(shards: list[str]) -> SampleIndex:
    return SampleIndex.build(shards)


CROP: dict[str, Any] = {"random_resized_crop": (6, 8), "flip": 0.5}


def told(row: Any) -> tuple[int, bytes]:
    return row[1], row[0].numpy().tobytes()


def stream(shards: list[str], threads: int = 0) -> Any:
    samples = TarSampleGrouper(AISFileLoader(IterableWrapper(shards).shuffle()))
    return samples.decode("torchrgb8", threads=threads, **CROP).to_tuple("png", "cls").map(told)


def epochs(pipe: Any, workers: int, count: int = 2, **how: Any) -> list[list[Any]]:
    with ais_loader(pipe, num_workers=workers, seed=5, **how) as loader:
        return [sorted(loader) for _ in range(count)]


def test_crops_of_a_stream_are_new_in_each_epoch_and_the_same_with_threads(shards: list[str]) -> None:
    first, second = epochs(stream(shards), 0)
    assert len({crop for _, crop in first}) == COUNT
    assert not {crop for _, crop in first} & {crop for _, crop in second}
    assert epochs(stream(shards, threads=2), 0) == [first, second]


def test_promise_4_crops_of_a_stream_are_the_same_on_any_workers_and_ranks(shards: list[str]) -> None:
    alone = epochs(stream(shards), 0)
    assert epochs(stream(shards), 2) == alone
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*may take different numbers of steps")
        parts = [epochs(stream(shards), 0, rank=rank, world_size=2) for rank in range(2)]
    assert [sorted(one + two) for one, two in zip(*parts, strict=True)] == alone


def test_promise_4_the_seed_of_any_loader_decides_and_not_the_worker(shards: list[str]) -> None:
    """Torch's and torchdata's loaders send a seed that all workers share only to what is above the sharding filter."""

    def parts(count: int, seed: int) -> list[Any]:
        found = []
        for instance in range(count):
            copy = pickle.loads(pickle.dumps(stream(shards)))
            apply_sharding(copy, count, instance)
            apply_random_seed(copy, torch.Generator().manual_seed(seed))
            found += list(copy)
        return sorted(found)

    assert parts(2, 5) == parts(3, 5) == parts(1, 5) != parts(1, 6)


def test_promise_5_crops_outlive_a_resume_on_other_workers(shards: list[str]) -> None:
    def make(workers: int) -> Any:
        samples = Shuffler(TarSampleGrouper(AISFileLoader(shards)), 4)
        pipe = samples.decode("torchrgb8", **CROP).to_tuple("png", "cls").map(told)
        return ais_loader(pipe, num_workers=workers, seed=1)

    with make(0) as loader:
        first, second = sorted(loader), sorted(loader)
    with make(2) as loader:
        running = iter(loader)
        head = [next(running) for _ in range(5)]
        state = loader.state_dict()
    with make(1) as loader:
        loader.load_state_dict(state)
        assert sorted([*head, *loader]) == first
        assert sorted(loader) == second


def planned(index: Any, threads: int = 0) -> Any:
    reader = AISSampleReader(index, shuffle="samples").decode("torchrgb8", threads=threads, **CROP)
    return reader.to_tuple("png", "cls").batched(3)


def crops_of(items: list[Any]) -> dict[int, set[bytes]]:
    found: dict[int, set[bytes]] = {}
    for images, labels in items:
        for image, label in zip(images, labels.tolist(), strict=True):
            found.setdefault(label, set()).add(image.numpy().tobytes())
    return found


def test_promise_4_crops_by_index_are_the_same_on_any_topology(index: SampleIndex) -> None:
    def epoch(number: int, ranks: int, workers: int, threads: int = 0) -> dict[int, set[bytes]]:
        parts = steps_of(lambda: planned(index, threads), ranks, workers, 6, seed=3, epoch=number)
        return crops_of([item for part in parts for item in part])

    alone = epoch(0, 1, 0)
    assert len({crop for one in alone.values() for crop in one}) == COUNT
    assert epoch(0, 2, 3) == epoch(0, 3, 1) == epoch(0, 1, 2, threads=2) == alone
    later = [epoch(number, 1, 0) for number in (1, 2)]
    assert all(len(one | later[0][n] | later[1][n]) == 3 for n, one in alone.items()), "each draw has its own"


def test_promise_5_crops_by_index_outlive_a_resume(index: SampleIndex) -> None:
    def make() -> Any:
        return ais_loader(planned(index), seed=2)

    with make() as loader:
        whole = [images for images, _ in loader]
    with make() as loader:
        running = iter(loader)
        head = [next(running)[0] for _ in range(3)]
        state = loader.state_dict()
    with make() as loader:
        loader.load_state_dict(state)
        rest = [images for images, _ in loader]
    assert len(whole) == len(head) + len(rest)
    assert all(torch.equal(one, two) for one, two in zip(whole, head + rest, strict=True))


def test_a_function_below_draws_other_numbers_than_the_crop() -> None:
    """Or augmentations would follow from the crop."""
    crop = RandomResizedCrop((6, 8))

    def alike(sample: Any, rng: random.Random) -> Any:
        return {**sample, "cut": crop.frame(HEIGHT, WIDTH, rng).cut}

    samples = [{"__key__": f"{n}", "png": RAMP} for n in range(8)]
    decoded = SampleDecoder(samples, "rgb8", crop=crop)
    found = [
        (one["cut"].top, one["cut"].left, one["png"][0, 0]) for one in SampleMapper(decoded, alike, rng=True)
    ]
    assert any(abs(int(pixel[0]) - top) > 10 or abs(int(pixel[1]) - left) > 15 for top, left, pixel in found)


def test_what_has_no_key_cannot_be_dealt_out_anew() -> None:
    running = SampleDecoder([{"png": RAMP}, {"png": RAMP}], "torchrgb8", **CROP)
    next(iter(running))
    with pytest.raises(StateError, match="without a key"):
        running.save_state()
    plain = SampleDecoder([{"png": RAMP}], "torchrgb8", center_crop=4)
    next(iter(plain))
    assert plain.save_state() is None
    assert plain.epoch_seed is None
    assert isinstance(plain.stats, StageStats)


def test_a_dataset_by_number_takes_torchs_generator(index: SampleIndex) -> None:
    dataset = SampleDataset(index, Decoder("torchrgb8", **CROP))
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(torch.stack([item["png"] for item in dataset.__getitems__([0, 1, 0])]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert not torch.equal(found[0][0], found[0][2])


def test_the_stage_shows_its_crop() -> None:
    assert "random_resized_crop=(6, 8), flip=0.5" in repr(SampleDecoder([], "torchrgb8", **CROP))
    assert "crop=RandomResizedCrop(size=8" in repr(SampleDecoder([], "rgb8", crop=RandomResizedCrop(8)))
