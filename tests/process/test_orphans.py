"""Promise 6: a worker whose main process is killed the moment it is started does not outlive it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from helpers.waiting import is_living
from service_sessions import FORK, becomes_true

from torchdata_ais import AISSourceLister, ais_loader
from torchdata_ais._util.process_pool import OrderedPool
from torchdata_ais.testing import write_shard

pytestmark = pytest.mark.kills


def run_and_be_killed(kind: str, shard: Path, log: Path) -> None:
    """Kill this process as soon as it has a worker; the worker begins when its main process is gone."""
    main = os.getpid()

    def in_worker() -> None:
        log.write_text(str(os.getpid()))
        os.kill(main, signal.SIGKILL)
        while os.getppid() == main:
            pass

    os.register_at_fork(after_in_child=in_worker)
    if kind == "ordered pool":
        list(OrderedPool(str, 1).map(range(3)))
    else:
        pipe = AISSourceLister(str(shard)).load_tar().group_samples()
        list(ais_loader(pipe, num_workers=1, multiprocessing_context="fork"))


@pytest.mark.parametrize("kind", ["ais_loader", "ordered pool"])
def test_promise_6_a_worker_begun_after_the_end_of_its_main_process_ends(kind: Any, tmp_path: Path) -> None:
    shard, log = write_shard(tmp_path / "a.tar", {"a.cls": b"1"}), tmp_path / "pid"
    process = FORK.Process(target=run_and_be_killed, args=(kind, shard, log))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    worker = int(log.read_text())
    try:
        assert becomes_true(lambda: not is_living(worker), within_s=60)
    finally:
        if is_living(worker):
            os.kill(worker, signal.SIGKILL)
