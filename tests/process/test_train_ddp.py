"""The DDP example under torchrun: two ranks, a stop in mid-epoch, a resume."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(240)


def torchrun(*arguments: str, timeout_s: float = 110) -> str:
    """Run the example on two ranks and return what it printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               "-m", "torchdata_ais.examples.train_ddp", *arguments]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, f"{out}\n{err}"
    return out


@pytest.mark.ci
def test_two_ranks_train_stop_in_mid_epoch_and_resume(tmp_path: Path) -> None:
    common = ("--samples", "120", "--epochs", "1", "--batch", "4", "--every", "2")
    whole = torchrun(*common)
    found = re.search(r"steps (\d+), evaluated (\d+) samples", whole)
    assert found is not None, whole
    assert int(found[2]) == 120
    steps = int(found[1])
    checkpoint = tmp_path / "checkpoint.pt"
    torchrun(*common, "--checkpoint", str(checkpoint), "--stop-after", "4")
    resumed = torchrun(*common, "--checkpoint", str(checkpoint))
    found = re.search(r"steps (\d+), evaluated (\d+) samples", resumed)
    assert found is not None, resumed
    assert (int(found[1]), int(found[2])) == (steps - 4, 120)
