"""Which batches of a trace have the growth of the stages' counters: slow ones each their own, fast ones together."""

from __future__ import annotations

import time
from typing import Any

import pytest

from torchdata_ais import AISSourceLister
from torchdata_ais.observe.diagnosis.batch_records import BatchRecorder
from torchdata_ais.testing import shard_bytes


def counted(pipe: Any, made_s: list[float]) -> list[bool]:
    """Return which of the batches, of so many seconds each, were counted."""
    recorder = BatchRecorder(pipe)
    for seconds in made_s:
        recorder.made({"__key__": ["a"]}, time.time(), seconds)
    return [bool(record.own_s) for record in recorder.take().batches]


@pytest.fixture
def pipe(tmp_path: Any) -> Any:
    (tmp_path / "s.tar").write_bytes(shard_bytes({"a.cls": b"1"}))
    return AISSourceLister([str(tmp_path / "s.tar")]).load_tar().group_samples()


def test_fast_batches_are_counted_together_after_a_tenth_of_a_second(pipe: Any) -> None:
    assert counted(pipe, [1 / 64] * 15) == [True, *([False] * 6 + [True]) * 2]


def test_each_slow_batch_is_counted_for_itself(pipe: Any) -> None:
    assert counted(pipe, [0.001, 0.03, 0.03, 0.001, 0.001, 0.2]) == [True, True, True, False, False, True]
