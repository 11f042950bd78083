"""Graphs that several threads look at: torch's traversal sets hooks on the classes of all pipes meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_ais.dataloader2.own.graph import clone
from torchdata_ais.pipes.base.torch_pipes import (
    IterDataPipe,
    all_pipes,
    copy_pipe,
    deepcopy_pipe,
    graph_lock,
    traverse_dps,
)

WAITED_S = 0.05


class Slow(IterDataPipe[int]):
    """A pipe whose traversal lasts until another thread has had time to look at another pipe."""

    def __init__(self) -> None:
        self.source = IterableWrapper([1])
        self.entered = threading.Event()

    def __iter__(self) -> Iterator[int]:
        yield from self.source

    def __getstate__(self) -> Any:
        self.entered.set()
        threading.Event().wait(WAITED_S)
        return {"source": self.source}


@contextmanager
def traversed_meanwhile() -> Iterator[None]:
    pipe, found = Slow(), list[int]()
    thread = threading.Thread(target=lambda: found.append(len(all_pipes(pipe))))
    thread.start()
    assert pipe.entered.wait(60)
    yield
    thread.join(60)
    assert found == [2]


@pytest.mark.parametrize("look", [traverse_dps, clone, copy_pipe, deepcopy_pipe])
def test_promise_1_a_pipe_is_whole_while_another_thread_traverses_one(look: Callable[[Any], Any]) -> None:
    pipe = IterableWrapper([1, 2]).map(str)
    with traversed_meanwhile():
        seen = look(pipe)
    copied = seen[id(pipe)][0] if look is traverse_dps else seen
    assert list(copied) == ["1", "2"]
    assert len(all_pipes(copied)) == 2


@pytest.mark.timeout(120)
def test_a_fork_while_another_thread_traverses_has_no_hooks() -> None:
    def child() -> None:
        hooks = IterDataPipe.reduce_ex_hook, IterDataPipe.getstate_hook
        os._exit(0 if hooks == (None, None) and len(all_pipes(IterableWrapper([1]).map(str))) == 2 else 1)

    with traversed_meanwhile():
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(60)
    assert process.exitcode == 0
    assert graph_lock.acquire(blocking=False)
    graph_lock.release()
