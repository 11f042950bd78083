"""Ranks whose epochs are shorter than the time between two exchanges hear of each other all the same."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from torch.distributed import HashStore

from torchdata_ais import AISSampleReader, SampleIndex, ais_loader
from torchdata_ais.errors import LoaderError
from torchdata_ais.testing import example_shards

FAILS = "rank that fails"


def value_of(sample: Any) -> bytes:
    if threading.current_thread().name == FAILS and time.monotonic() > FAILS_AT[0]:
        raise RuntimeError("this rank has had enough")
    return bytes(sample["cls"])


FAILS_AT = [float("inf")]


@pytest.mark.ci
@pytest.mark.timeout(60)
def test_promise_6_a_failure_is_heard_in_short_epochs() -> None:
    index, store, heard = SampleIndex.build(example_shards(counts=(30, 50))), HashStore(), []
    FAILS_AT[0] = time.monotonic() + 1

    def train(rank: int) -> None:
        pipe = AISSampleReader(index).map(value_of).batched(4)
        until = time.monotonic() + 20
        try:
            with ais_loader(pipe, global_batch=8, rank=rank, world_size=2, store=store) as loader:
                while time.monotonic() < until:
                    for _ in loader:
                        time.sleep(0.01)
        except Exception as error:
            heard.append((rank, error))

    threads = [
        threading.Thread(target=train, args=(0,)),
        threading.Thread(target=train, args=(1,), name=FAILS),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    found = dict(heard)
    assert "had enough" in str(found[1])
    assert isinstance(found[0], LoaderError)
    assert found[0].place["failed_rank"] == 1
