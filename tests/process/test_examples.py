"""The examples run on what they draw, on the CPU, and learn something; the one for several ranks stops and goes on."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from service_sessions import run_module

pytestmark = [pytest.mark.ci, pytest.mark.timeout(240)]


def run(*command: str) -> str:
    return run_module(*command, timeout_s=200)


def numbers(pattern: str, text: str) -> tuple[float, ...]:
    found = re.search(pattern, text)
    assert found is not None, text
    return tuple(float(number) for number in found.groups())


IMAGENET = ("torchdata_ais.examples.train_imagenet", "--size", "48", "--samples", "120", "--workers", "1")


def test_pictures_in_one_process_with_a_planned_order() -> None:
    out = run(*IMAGENET, "--epochs", "4", "--global-batch", "16")
    assert "planned order, 1 x cpu" in out
    pictures, right = numbers(r"evaluated (\d+) pictures, ([\d.]+)% right", out)
    assert pictures == 24
    assert right > 25  # chance: 17


def test_pictures_on_two_ranks_stop_in_mid_epoch_and_go_on_alone(tmp_path: Path) -> None:
    """A planned order goes on with another number of ranks: the same steps are left."""
    common = (
        "--epochs",
        "1",
        "--global-batch",
        "8",
        "--checkpoint",
        str(tmp_path / "last.pt"),
        "--every",
        "5",
    )
    ranks = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
    assert "planned order, 2 x cpu" in run(*ranks, *IMAGENET, *common, "--stop-after", "5")
    assert (tmp_path / "last.pt").exists()
    out = run(*IMAGENET, *common)
    assert f"goes on from {tmp_path / 'last.pt'}" in out
    assert "epoch 0" in out
    assert "epoch 1" not in out


def test_pictures_without_an_index_are_streamed(tmp_path: Path) -> None:
    from torchdata_ais.examples.pets import make_shards

    for number, shard in enumerate(make_shards([10, 14])):
        (tmp_path / f"{number}.tar").write_bytes(shard)
    out = run(*IMAGENET, "--epochs", "1", "--global-batch", "4", "--source", f"{tmp_path}/*.tar")
    assert "streamed order" in out
    assert "evaluated 24 pictures" in out


def test_captions_are_found() -> None:
    out = run("torchdata_ais.examples.train_captions", "--samples", "240", "--epochs", "6", "--batch", "16")
    found, pictures = numbers(r"(\d+) of (\d+) held-out pictures", out)
    assert pictures == 48
    assert found >= 10  # chance: 3


@pytest.mark.skipif(importlib.util.find_spec("soundfile") is None, reason="needs [audio]")
def test_sounds_are_told_apart() -> None:
    out = run("torchdata_ais.examples.train_audio", "--samples", "200", "--epochs", "4")
    right, clips = numbers(r"(\d+) of (\d+) held-out clips", out)
    assert clips == 40
    assert right >= 16  # chance: 10
