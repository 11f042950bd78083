"""The DDP example under torchrun: two ranks, a stop in mid-epoch, a resume."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from service_sessions import run_module

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
