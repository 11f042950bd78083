"""The DDP example under torchrun: two ranks, a stop in mid-epoch, a resume."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image
from service_sessions import run_module

import torchdata_ais
from torchdata_ais import convert

pytestmark = pytest.mark.timeout(240)


STEPS = 8
"""Of a run of 60 drawn samples that does not stop."""


def torchrun(*arguments: str) -> str:
    """Run the example on two ranks and return what it printed."""
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return run_module(*command, "-m", "torchdata_ais.examples.train_ddp", *arguments, timeout_s=110)


@pytest.mark.ci
def test_two_ranks_train_stop_in_mid_epoch_and_resume(tmp_path: Path) -> None:
    common = ("--samples", "60", "--epochs", "1", "--batch", "4", "--every", "2")
    checkpoint = tmp_path / "checkpoint.pt"
    torchrun(*common, "--checkpoint", str(checkpoint), "--stop-after", "4")
    resumed = torchrun(*common, "--checkpoint", str(checkpoint))
    found = re.search(r"steps (\d+), evaluated (\d+) samples", resumed)
    assert found is not None, resumed
    assert (int(found[1]), int(found[2])) == (STEPS - 4, 60)


@pytest.mark.ci
def test_the_script_of_the_guide_trains_and_continues_on_another_number_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("photos")
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(24):
            Image.new("RGB", (64, 64), (number, 0, 0)).save(folder / name / f"{number}.jpg")
    convert("photos", "shards/train-%06d.tar", index=True)
    guide = (Path(torchdata_ais.__file__).parent / "docs" / "ddp.md").read_text()
    script = re.findall(r"```python\n# train\.py\n(.*?)```", guide, re.DOTALL)[0]
    Path("train.py").write_text(script)
    run = ["torch.distributed.run", "--standalone", "--nproc-per-node"]
    first = run_module(*run, "2", "train.py", timeout_s=110)
    assert f"torchrun --nproc-per-node 2 train.py\n```\n```text\n{first}```" in guide
    Path("train.py").write_text(script.replace("loader.epochs(2)", "loader.epochs(3)"))
    again = run_module(*run, "1", "train.py", timeout_s=110)
    assert re.findall(r"epoch (\d): (\d) steps of 16 samples on 1 ranks", again) == [("2", "3")]
