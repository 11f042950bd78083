"""The drawn pets, and the parts of the demo that judge it."""

from __future__ import annotations

import io
import tarfile
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from torchdata_ais.cli import app
from torchdata_ais.examples import pets, train


def test_the_same_seed_gives_the_same_sample_and_another_seed_another() -> None:
    assert pets.make_pet(3, seed=1) == pets.make_pet(3, seed=1)
    assert pets.make_pet(3, seed=1) != pets.make_pet(3, seed=2)
    assert next(pets.make_pets(2, seed=1, start=3)) == pets.make_pet(3, seed=1)


@pytest.mark.parametrize("index", range(4))
def test_the_trimap_is_exact(index: int) -> None:
    sample = pets.make_pet(index)
    image = np.asarray(Image.open(io.BytesIO(sample["image.jpg"])))
    trimap = np.asarray(Image.open(io.BytesIO(sample["trimap.png"])))
    assert image.shape == (375, 500, 3)
    assert trimap.shape == (375, 500)
    assert set(np.unique(trimap)) == {1, 2, 3}
    # The outline is the one dark thing outside the animal: JPEG blurs it, but by a few pixels only.
    assert image[trimap == 3].mean() < 90 < image[trimap == 2].mean()


def test_all_classes_appear_about_equally_often() -> None:
    labels = [int(pets.make_pet(index)["cls"]) for index in range(240)]
    counts = np.bincount(labels, minlength=len(pets.CLASSES))
    assert len(counts) == len(pets.CLASSES)
    assert counts.min() > 20


@pytest.mark.parametrize(("total", "shards"), [(12, 12), (100, 3), (2400, 12)])
def test_uneven_sizes_add_up(total: int, shards: int) -> None:
    sizes = pets.uneven_sizes(total, shards)
    assert sum(sizes) == total
    assert len(sizes) == shards
    assert min(sizes) >= 1


def test_uneven_sizes_are_uneven() -> None:
    sizes = pets.uneven_sizes(2400, 12)
    assert max(sizes) > 3 * min(sizes)


def test_keys_run_on_from_shard_to_shard() -> None:
    names: list[str] = []
    for shard in pets.make_shards([2, 1], start=5):
        with tarfile.open(fileobj=io.BytesIO(shard)) as archive:
            names += archive.getnames()
    keys = sorted({name.partition(".")[0] for name in names})
    assert keys == ["sample_000005", "sample_000006", "sample_000007"]
    assert len(names) == 9
    assert all(a <= b for a, b in pairwise(name.partition(".")[0] for name in names))


def _demo(*words: str) -> Any:
    arguments = ["demo", "--samples", "100", "--epochs", "1", "--workers", "0", *words]
    return CliRunner().invoke(app, arguments)


@pytest.mark.ci
def test_a_model_that_has_not_learned_fails_the_demo() -> None:
    result = _demo()
    assert "80 + 20 samples each exactly once" in result.stdout
    assert result.exit_code == 1
    assert "not far above chance" in result.stderr


@pytest.mark.ci
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("lost", "1 of 80 samples were lost"),
        pytest.param("doubled", "1 came more than once", marks=pytest.mark.ci),
    ],
)
def test_a_sample_lost_or_doubled_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, change: str, says: str
) -> None:
    honest = train.run_epoch

    def run_epoch(*arguments: Any) -> train.EpochResult:
        result = honest(*arguments)
        if change == "lost":
            result.keys.pop()
        else:
            result.keys.append(result.keys[0])
        return result

    monkeypatch.setattr(train, "run_epoch", run_epoch)
    result = _demo()
    assert result.exit_code == 1
    assert "Epoch 1, training shards: " + says in result.stderr
