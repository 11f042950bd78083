"""Ctrl-C at any moment of an epoch leaves a loader that can be iterated again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import AISSourceLister, ais_loader
from torchdata_ais.testing import example_shards
from torchdata_ais.workers.pool import Pool


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where a shell has turned it off in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("line", ["the first worker", "the second worker", "reset"])
def test_an_interrupt_while_workers_begin_leaves_a_loader_that_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    name, when = ("reset", 1) if line == "reset" else ("launch", 1 if line == "the first worker" else 2)
    plain, calls = getattr(Pool, name), []

    def interrupted(self: Pool, *arguments: Any) -> None:
        plain(self, *arguments)
        calls.append(name)
        if len(calls) == when:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Pool, name, interrupted)
    pipe = AISSourceLister(example_shards(tmp_path, [3, 2])).load_tar().group_samples().to_tuple("__key__")
    with ais_loader(pipe.batched(2), num_workers=2) as loader:
        with pytest.raises(KeyboardInterrupt):
            next(iter(loader))
        for _ in range(2):
            assert sorted(key for (keys,) in loader for key in keys) == [f"{n:05}" for n in range(5)]
