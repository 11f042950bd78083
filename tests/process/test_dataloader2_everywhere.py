"""DataLoader2 under every torchdata: the same samples in the same order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais.dataloader2 import torchdata_names

pytestmark = [pytest.mark.ci, pytest.mark.timeout(300)]

HERE = Path(__file__).parent
ORDERS = HERE / "dataloader2_orders.json"
"""What `dataloader2_orders.py` printed under torchdata 0.9.0, with torch 2.15."""


def printed(program: str, *arguments: str) -> Any:
    command = [sys.executable, str(HERE / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "hidden",
    [[], ["torchdata"], ["torchdata.dataloader2", "torchdata.datapipes"]],
    ids=["as it is", "none", "0.10"],
)
def test_promise_4_the_order_is_that_of_torchdata_0_9(hidden: list[str]) -> None:
    answer = printed("dataloader2_orders.py", *hidden)
    assert answer["home"] == ("torchdata_ais" if hidden or torchdata_names.OWN else "torchdata")
    expected = json.loads(ORDERS.read_text())["orders"]
    assert answer["orders"].keys() == expected.keys()
    for name, orders in expected.items():
        assert answer["orders"][name] == orders, name
