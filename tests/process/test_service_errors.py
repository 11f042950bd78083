"""What goes wrong in a worker is an error in the main process, soon, with a name: never a hang, never a short epoch."""

from __future__ import annotations

import itertools
import os
import pickle
import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import service_pipes as pipes
import torch
from helpers.waiting import is_living
from service_pipes import numbers
from service_sessions import becomes_true
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from torchdata_ais.dataloader2 import DataLoader2
from torchdata_ais.errors import AISError, LoaderError, TruncatedShardError, UsageError, WorkerDiedError
from torchdata_ais.loaders import MultiProcessingReadingService

pytestmark = pytest.mark.kills


def load(pipe: Any, workers: int = 2, *args: Any, **options: Any) -> Any:
    return DataLoader2(pipe, reading_service=MultiProcessingReadingService(workers, *args, **options))


def first_error(loader: Any) -> tuple[int, BaseException]:
    """Return how many items came before the error, and the error."""
    count = 0
    with loader, pytest.raises(Exception) as caught:  # noqa: PT012
        for _ in loader:
            count += 1
    return count, caught.value


@pytest.mark.quick(6)
@pytest.mark.parametrize("prefetch", [0, 10])
@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (pipes.raise_at_five, ValueError, "ValueError: five"),
        (pipes.key_error_at_five, KeyError, "the missing key"),
        (pipes.odd_error_at_five, LoaderError, "Caught TwoArgumentsError"),
        (pipes.base_exception_at_five, LoaderError, "NotAnException: not an Exception"),
        (pipes.stop_iteration_at_five, RuntimeError, "generator raised StopIteration"),
        (pipes.lambda_at_five, (AttributeError, LoaderError), "while pickling an item of type 'function'"),
        (pipes.open_file_at_five, TypeError, "while pickling an item of type 'TextIOWrapper'"),
        (pipes.broken_here_at_five, LoaderError, "cannot be rebuilt here: ImportError: no such class here"),
    ],
    ids=lambda value: (
        getattr(value, "__name__", None) if callable(value) and not isinstance(value, type) else ""
    ),
)
def test_promise_6_the_error_of_an_item_arrives_in_its_place(
    function: Callable[..., Any], kind: type, text: str, prefetch: int
) -> None:
    count, error = first_error(load(numbers(20).map(function), 2, None, prefetch, prefetch))
    assert count == 5
    assert isinstance(error, kind)
    assert text in str(error)
    if function is not pipes.broken_here_at_five:
        assert "in worker process 1" in str(error)
        assert "Original Traceback" in str(error)


def test_errors_of_this_package_keep_their_place() -> None:
    _, error = first_error(load(numbers(20).map(pipes.ais_error_at_five)))
    assert isinstance(error, TruncatedShardError)
    assert (error.url, error.offset, error.place["in"]) == ("ais://b/s.tar", 512, "worker process 1")
    assert not str(error).startswith("Caught")


@pytest.mark.quick(4)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("pipe", "options", "kind", "text"),
    [
        (numbers(9), {"worker_init_fn": pipes.failing_init}, ValueError, "init of worker"),
        (numbers(9), {"worker_init_fn": pipes.stopping_init}, LoaderError, "StopIteration: init"),
        (numbers(9), {"worker_reset_fn": pipes.failing_reset}, ValueError, "ValueError: reset"),
        (pipes.RefusesItsSeed(numbers(9)), {}, ValueError, "set_seed"),
        (pipes.RefusesToBegin(numbers(9)), {}, ValueError, "reset of a pipe"),
    ],
    ids=["init", "init-stop", "reset", "set_seed", "pipe-reset"],
)
def test_promise_6_errors_before_the_first_item_arrive(
    pipe: Any, options: dict[str, Any], kind: type, text: str, workers: int
) -> None:
    count, error = first_error(load(pipe, workers, **options))
    assert count == 0
    assert isinstance(error, kind)
    assert text in str(error)


def test_promise_6_a_second_sharding_made_in_the_worker_is_an_error() -> None:
    _, error = first_error(load(numbers(9), 2, worker_init_fn=shard_again))
    assert "Sharding twice" in str(error)


def shard_again(pipe: Any, info: Any) -> Any:
    from torch.utils.data.graph_settings import apply_sharding

    pipe = pipe.sharding_filter()
    apply_sharding(pipe, info.num_workers, info.worker_id, SHARDING_PRIORITIES.MULTIPROCESSING)
    return pipe


@pytest.mark.parametrize(
    ("function", "exit_code"),
    [(pipes.exit_at_five, 3), (pipes.hard_exit_at_five, 0), (pipes.kill_at_five, -signal.SIGKILL)],
)
def test_promise_6_a_worker_that_ends_is_named_with_pid_and_exit_code(
    function: Callable[..., Any], exit_code: int
) -> None:
    count, error = first_error(load(numbers(20).map(function)))
    assert count <= 5
    assert isinstance(error, WorkerDiedError)
    assert error.place["worker"] == 1
    assert error.place["exit_code"] == exit_code
    assert f"Worker process 1 (pid {error.place['pid']})" in str(error)


@pytest.mark.ci
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_promise_6_errors_and_ends_of_workers_under_other_start_methods(method: str) -> None:
    _, error = first_error(load(numbers(20).map(pipes.exit_at_five), 1, method))
    assert isinstance(error, WorkerDiedError)
    assert error.place["exit_code"] == 3


def pids(loader: Any) -> list[int]:
    return [process.pid for process, *_ in loader.reading_service._worker_processes]


@pytest.mark.quick(1)
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_promise_6_a_killed_worker_is_seen_while_another_one_is_awaited(victim: int) -> None:
    """Worker 0 sleeps over item 6, so the main process waits for it, whoever is killed."""
    loader = load(numbers(30).map(pipes.sleep_for_ever_at_six), 3)
    items = iter(loader)
    next(items)
    victim_pid = pids(loader)[victim]
    threading.Timer(0.3, os.kill, (victim_pid, signal.SIGKILL)).start()
    with (
        loader,
        pytest.raises(WorkerDiedError, match=rf"\(pid {victim_pid}\) ended with exit code -9 \(SIGKILL\)"),
    ):
        list(items)


def test_promise_6_a_worker_killed_between_epochs_is_seen() -> None:
    loader = load(numbers(6))
    assert list(loader) == list(range(6))
    os.kill(pids(loader)[1], signal.SIGKILL)
    with loader, pytest.raises(WorkerDiedError, match="Worker process 1"):
        list(loader)


def test_promise_6_a_worker_killed_while_the_caller_is_busy_is_seen_before_its_buffer_is_used_up() -> None:
    loader = load(numbers(1000), 2, None, 100, 100)
    items = iter(loader)
    next(items)
    victim = pids(loader)[0]
    os.kill(victim, signal.SIGKILL)
    assert becomes_true(lambda: not is_living(victim), 60)
    time.sleep(0.5)  # the caller is busy
    with loader, pytest.raises(WorkerDiedError, match="Worker process 0"):
        list(itertools.islice(items, 10))


def dispatched(pipe: Any) -> Any:
    return pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)


@pytest.mark.parametrize("prefetch", [0, 10])
def test_an_error_in_the_dispatching_process_arrives_in_its_place(prefetch: int) -> None:
    pipe = dispatched(IterableWrapper(range(20)).map(pipes.raise_at_five)).map(pipes.double)
    count, error = first_error(load(pipe, 2, None, prefetch, prefetch))
    assert count == 5
    assert isinstance(error, ValueError)
    assert "Caught ValueError in dispatching process" in str(error)


@pytest.mark.parametrize("function", [pipes.exit_at_five, pipes.kill_at_five])
def test_promise_6_a_dispatching_process_that_ends_is_named(function: Callable[..., Any]) -> None:
    _, error = first_error(load(dispatched(IterableWrapper(range(20)).map(function)), 2))
    assert isinstance(error, WorkerDiedError)
    assert "Dispatching process (pid" in str(error)


def test_a_failed_loader_says_that_it_is_over() -> None:
    loader = load(numbers(20).map(pipes.raise_at_five))
    with pytest.raises(ValueError, match="five"):
        list(loader)
    with pytest.raises(RuntimeError, match="shut down"):
        list(loader)


@pytest.mark.parametrize(("args", "word"), [((-1,), "num_workers"), ((1, None, -1), "prefetch")])
def test_numbers_that_cannot_be_are_refused(args: tuple[Any, ...], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        MultiProcessingReadingService(*args)


def test_errors_say_all_in_one_string_that_survives_a_second_journey() -> None:
    """An error rebuilt here may be pickled again, by a launcher that collects errors of ranks."""
    _, error = first_error(load(numbers(20).map(pipes.ais_error_at_five)))
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, AISError)
    assert str(again) == str(error)


def test_a_batch_of_more_tensors_than_descriptors_allow_is_an_error_or_comes_whole() -> None:
    """Descriptors run out in the main process: the loader says so and still ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    loader = load(numbers(64).map(many_tensors), 2)
    items = iter(loader)
    next(items)
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 100, hard))
    try:
        with (
            loader,
            pytest.raises((LoaderError, RuntimeError, OSError), match=r"(?i)descriptors|open files|mmap|dup"),
        ):
            held.extend(items)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def many_tensors(number: int) -> list[torch.Tensor]:
    return [torch.full((2000,), number) for _ in range(40)]  # too large to travel inside the message
