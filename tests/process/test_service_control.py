"""Limit, pause and resume, state, and what travels with resets and items."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from service_pipes import Diary, NotReplicable, Tagged, numbers, uneven
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_ais import AISSourceLister
from torchdata_ais.dataloader2 import DataLoader2, split, torchdata_names
from torchdata_ais.errors import UsageError
from torchdata_ais.loaders import MultiProcessingReadingService
from torchdata_ais.testing import example_shards
from torchdata_ais.workers import process


def load(pipe: Any, workers: int = 2, *args: Any, **options: Any) -> Any:
    return DataLoader2(pipe, reading_service=MultiProcessingReadingService(workers, *args, **options))


@pytest.mark.quick(4)
@pytest.mark.parametrize("prefetch", [(0, 0), (2, 0), (0, 2), (10, 10)])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_limit_pauses_and_resume_goes_on_where_it_stopped(workers: int, prefetch: tuple[int, int]) -> None:
    with load(numbers(10), workers, None, *prefetch) as loader:
        items = iter(loader)
        items.limit(3)
        assert list(items) == [0, 1, 2]
        assert list(items) == []
        items.resume()
        assert list(items) == [3, 4, 5]
        items.limit(None)
        items.resume()
        assert list(items) == [6, 7, 8, 9]
        assert list(loader) == list(range(10))


@pytest.mark.parametrize("workers", [0, 1])
def test_limit_and_resume_over_shards(workers: int, tmp_path: Path) -> None:
    pipe = (
        AISSourceLister(example_shards(tmp_path, (3, 3))).load_tar().group_samples().decode().to_tuple("cls")
    )
    with load(pipe, workers) as loader:
        items = iter(loader)
        items.limit(4)
        assert list(items) == [(0,), (1,), (2,), (3,)]
        items.resume()
        assert list(items) == [(4,), (5,)]


def test_pausing_pauses_the_pipes_of_the_workers_and_nothing_is_made_meanwhile(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    with load(Diary(numbers(40), diary)) as loader:
        items = iter(loader)
        seen = [next(items)]
        loader._pause()
        written = diary.read_text()
        assert written.count("pause") == 2
        assert list(items) == []
        assert diary.read_text() == written
        loader._resume()
        seen += list(items)
        assert diary.read_text().count("resume") == 2
    assert seen == list(range(40))


def test_pipes_with_threads_of_their_own_can_be_paused_at_any_moment() -> None:
    """torchdata's prefetch never answers a pause that comes just after its source was exhausted and resumed."""
    pipe = IterableWrapper(range(10)).shuffle().sharding_filter().prefetch().prefetch()
    with load(pipe, 2, None, 0, 0) as loader:
        for _ in range(10):
            seen = []
            for item in loader:
                seen.append(item)
                loader._pause()
                loader._resume()
            assert sorted(seen) == list(range(10))


def test_a_look_ahead_pipe_that_was_not_iterated_yet_can_be_paused() -> None:
    split.pause(pickle.loads(pickle.dumps(IterableWrapper(range(3)).prefetch(10))))


@pytest.mark.skipif(torchdata_names.OWN, reason="ours has no such state")
def test_a_look_ahead_thread_that_is_about_to_end_is_not_waited_for() -> None:
    """The state in which torchdata's own pause waits for ever: exhausted, resumed, the thread not gone yet."""
    pipe = IterableWrapper(range(3)).prefetch(10)
    items = iter(pipe)
    next(items)
    while not pipe.prefetch_data.stop_iteration:
        time.sleep(0.001)
    pipe.thread.join()
    ending = threading.Event()
    pipe.thread = threading.Thread(target=ending.wait)
    pipe.thread.start()
    pipe.prefetch_data.paused = False
    try:
        split.pause(pipe)
    finally:
        ending.set()
    assert list(items) == [1, 2]


def test_a_new_epoch_and_shutdown_work_while_paused() -> None:
    with load(numbers(10)) as loader:
        items = iter(loader)
        next(items)
        loader._pause()
        again = iter(loader)
        assert list(again) == []
        loader._resume()
        assert list(again) == list(range(10))
        loader._pause()


def test_dispatched_items_can_be_paused_and_limited() -> None:
    from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

    pipe = IterableWrapper(range(20)).sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    with load(pipe) as loader:
        items = iter(loader)
        items.limit(3)
        assert list(items) == [0, 1, 2]
        items.resume()
        items.limit(None)
        assert list(items) == list(range(3, 20))


def test_torchdatas_state_dict_starts_the_epoch_again() -> None:
    pipe = NotReplicable(IterableWrapper(range(20)).shuffle().sharding_filter())
    with load(pipe) as loader:
        loader.seed(1)
        list(loader)
        items = iter(loader)
        head = next(items)
        state = loader.state_dict()
        whole = [head, *items]
    with DataLoader2.from_state(state, MultiProcessingReadingService(2), trust=True) as again:
        again._restore_checkpoint_beginning_of_epoch()
        assert [number for number, _ in again] == [number for number, _ in whole]


def test_resets_carry_the_epoch_and_each_workers_own_extras() -> None:
    with load(Tagged(numbers(6))) as loader:
        iter(loader)  # the service of the loader is a copy, made when the loader is
        service = loader.reading_service
        assert [told for _, told in loader] == [(0, None)] * 6
        service.reset_extras = {0: "zero", 1: {"state": [1]}}
        assert [told for _, told in loader] == [(1, "zero"), (1, {"state": [1]})] * 3
        service.epoch = 40
        assert [told for _, told in loader] == [(40, None)] * 6


@pytest.mark.parametrize("prefetch", [0, 10])
def test_extras_are_those_of_the_item_just_yielded_however_far_ahead_the_worker_is(prefetch: int) -> None:
    with load(Tagged(numbers(20)), 2, None, prefetch, prefetch) as loader:
        service = loader.reading_service
        for position, _ in enumerate(loader):
            assert service.last_worker == position % 2
            assert service.last_extras[position % 2] == {"count": position // 2 + 1}
        assert service.last_extras == {0: {"count": 10}, 1: {"count": 10}}


def test_extras_work_without_worker_processes() -> None:
    with load(Tagged(numbers(3)), 0) as loader:
        assert loader.reading_service.last_extras == {}
        for position, (_, told) in enumerate(loader):
            assert told == (0, None)
            assert loader.reading_service.last_extras == {0: {"count": position + 1}}


def test_once_cuda_is_up_workers_are_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert process.start_context(None, "torchdata_ais").get_start_method() == "forkserver"
    assert process.start_context("fork", "torchdata_ais").get_start_method() == "fork"  # asked for by name


def inside_a_daemon(answers: Any) -> None:
    try:
        list(load(numbers(3), 1))
    except UsageError as error:
        answers.put(str(error))


def test_worker_processes_inside_a_daemonic_process_are_refused_with_a_way_out() -> None:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=inside_a_daemon, args=(answers,), daemon=True)
    child.start()
    assert "daemonic" in answers.get(timeout=60)
    child.join(60)
    answers.close()
    answers.join_thread()


def test_a_forked_child_of_the_main_process_leaves_the_loader_alone() -> None:
    with load(uneven()) as loader:
        items = iter(loader)
        seen = [next(items)]
        child = os.fork()
        if child == 0:
            loader.shutdown()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        seen += list(items)
        assert len(seen) == len(list(loader))
