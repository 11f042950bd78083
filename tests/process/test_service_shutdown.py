"""However a loader ends, from whatever state, its processes end too, soon, and nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
import service_pipes as pipes
from helpers.waiting import is_living
from service_pipes import numbers
from service_sessions import becomes_true, living_in, load, program, session, worker_pids

from torchdata_ais._util import process_pool
from torchdata_ais._util.process_pool import OrderedPool
from torchdata_ais.errors import LoaderError
from torchdata_ais.workers import process as workers_process

pytestmark = pytest.mark.kills

SOON_S = 60.0
"""Two seconds are promised; a loaded machine may be slow to look."""


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Threads and descriptors are no more than before: what an earlier test left to the collector may have gone."""
    gc.collect()
    resource_tracker.ensure_running()  # multiprocessing's own; it stays
    threads, descriptors = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    yield
    gc.collect()
    assert threading.active_count() <= threads
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors


@pytest.fixture
def soon_out_of_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrink the two seconds that a worker in the middle of an item is given."""
    monkeypatch.setattr(workers_process, "_GRACE_S", 0.5)


def untouched(loader: Any) -> None:
    """No iterator was made."""


def begun(loader: Any) -> None:
    iter(loader)


def in_the_middle(loader: Any) -> None:
    items = iter(loader)
    for _ in range(3):
        next(items)


def exhausted(loader: Any) -> None:
    list(loader)


def paused(loader: Any) -> None:
    in_the_middle(loader)
    loader._pause()


def failed(loader: Any) -> None:
    in_the_middle(loader)
    os.kill(worker_pids(loader)[0], signal.SIGKILL)


STATES = [untouched, begun, in_the_middle, exhausted, paused, failed]


def shut_down(loader: Any) -> None:
    loader.shutdown()
    loader.shutdown()


def leave_the_context(loader: Any) -> None:
    with loader:
        pass


ENDS = [shut_down, leave_the_context, None]


@pytest.mark.quick(6)
@pytest.mark.parametrize("end", ENDS, ids=["shutdown", "with", "garbage"])
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_promise_6_loaders_end_from_every_state(
    state: Callable[[Any], None], end: Callable[[Any], None] | None
) -> None:
    loader = load(numbers(50).map(pipes.short_sleep))
    state(loader)
    pids = worker_pids(loader)
    if end is not None:
        end(loader)
    del loader
    assert not any(is_living(pid) for pid in pids)


def ignore_terminate(pipe: Any, info: Any) -> Any:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return pipe


@pytest.mark.quick(1)
@pytest.mark.usefixtures("soon_out_of_patience")
@pytest.mark.parametrize("options", [{}, {"worker_init_fn": ignore_terminate}], ids=["", "ignores-SIGTERM"])
def test_promise_6_an_item_that_never_ends_is_terminated_then_killed(
    options: dict[str, Any], tmp_path: Path
) -> None:
    arrived = tmp_path / "arrived"
    function = partial(pipes.sleep_for_ever_at_six_and_say_so, said=arrived)
    loader = load(numbers(50).map(function), 2, **options)
    items = iter(loader)
    next(items)
    assert becomes_true(arrived.exists, 60)
    pids = worker_pids(loader)
    loader.shutdown()
    assert not any(is_living(pid) for pid in pids)


def test_a_worker_whose_pipe_leaves_threads_behind_still_ends() -> None:
    loader = load(pipes.WithThreads(numbers(4)))
    assert list(loader) == list(range(4))
    pids = worker_pids(loader)
    loader.shutdown()
    assert not any(is_living(pid) for pid in pids)


@pytest.mark.usefixtures("soon_out_of_patience")
def test_promise_6_shutdown_in_one_thread_ends_the_wait_of_another(tmp_path: Path) -> None:
    arrived = tmp_path / "arrived"
    loader = load(numbers(50).map(partial(pipes.sleep_for_ever_at_six_and_say_so, said=arrived)))
    caught: list[BaseException] = []

    def read() -> None:
        try:
            list(loader)
        except BaseException as error:
            caught.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert becomes_true(arrived.exists, 60)
    loader.shutdown()
    reader.join(60)
    assert not reader.is_alive()
    assert isinstance(caught[0], LoaderError)
    assert "shut down" in str(caught[0])


@pytest.mark.usefixtures("soon_out_of_patience")
def test_promise_6_shutdown_in_a_signal_handler_ends_the_wait(tmp_path: Path) -> None:
    arrived = tmp_path / "arrived"
    loader = load(numbers(50).map(partial(pipes.sleep_for_ever_at_six_and_say_so, said=arrived)))
    before = signal.signal(signal.SIGUSR1, lambda *_: loader.shutdown())

    def send() -> None:
        if becomes_true(arrived.exists, 60):
            os.kill(os.getpid(), signal.SIGUSR1)

    sender = threading.Thread(target=send)
    try:
        sender.start()
        with pytest.raises(LoaderError, match="shut down"):
            list(loader)
        sender.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.ci
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("soon_out_of_patience")
def test_promise_6_shutdown_in_a_signal_handler_is_told_wherever_it_interrupts() -> None:
    """The handler runs after each line that the main process comes by while it takes items and waits for them."""
    for lines in range(1, 150, 5):
        loader = load(numbers(30).map(pipes.short_sleep))
        items = iter(loader)
        next(items)
        before = signal.signal(signal.SIGUSR1, lambda *_, loader=loader: loader.shutdown())
        interrupt = partial(signal.raise_signal, signal.SIGUSR1)
        try:
            with pytest.raises(LoaderError, match="shut down"), after_lines(lines, "workers", interrupt):
                list(items)
        finally:
            signal.signal(signal.SIGUSR1, before)


@contextlib.contextmanager
def after_lines(lines: int, room: str, action: Callable[[], object]) -> Iterator[None]:
    """Call `action` after so many lines of the package's `room` in this thread."""
    counted = 0
    folder = str(Path(workers_process.__file__).parent.parent / room)

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal counted
        if not frame.f_code.co_filename.startswith(folder):
            return None
        if event == "line":
            counted += 1
            if counted == lines:
                sys.settrace(None)
                action()
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def test_workers_do_not_run_the_main_processes_signal_handlers(tmp_path: Path) -> None:
    """A signal to the whole group, as schedulers send before they end a job, is for the main process."""
    with session(read_with_a_handler, str(tmp_path / "handled")) as process:
        assert process.answers.get() == "ready"
        os.killpg(process.pid, signal.SIGUSR1)
        assert process.answers.get() == list(range(200))
        assert (tmp_path / "handled").read_text() == f"{process.pid}\n"


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.ci)])
def test_a_signal_to_a_worker_that_begins_is_for_the_main_process(method: str, tmp_path: Path) -> None:
    """It comes after the process is there, and before that has a say about signals."""
    seen = tmp_path / "seen"
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.write_text(f"{os.getpid()}"))
    try:
        process = context.Process(target=begins_late, args=(there,))
        with process_pool.holding_signals(method):
            process.start()
            assert process.pid
            assert here.poll(60)
            assert here.recv() == "begun"
            os.kill(process.pid, signal.SIGUSR1)
        here.send("go on")
        assert here.poll(60)
        assert here.recv() == "here"
        process.join(60)
        assert process.exitcode == 0
        assert not seen.exists()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert seen.read_text() == f"{os.getpid()}"
    finally:
        signal.signal(signal.SIGUSR1, before)
        here.close()
        there.close()


def test_processes_that_write_leave_signals_to_the_main_process(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.write_text(f"{os.getpid()}"))
    try:
        with OrderedPool(signalled, 1, "fork") as pool:
            assert list(pool.map(range(3))) == [0, 1, 2]
        assert not seen.exists()
    finally:
        signal.signal(signal.SIGUSR1, before)


def signalled(number: int) -> int:
    os.kill(os.getpid(), signal.SIGUSR1)
    return number


def begins_late(pipe: Any) -> None:
    pipe.send("begun")
    pipe.recv()
    process_pool.take_no_part_in_signals()
    pipe.send("not there" if signal.pthread_sigmask(signal.SIG_BLOCK, ()) else "here")


def read_with_a_handler(answers: Any, path: str) -> None:
    def handle(*_: Any) -> None:
        with Path(path).open("a") as file:
            file.write(f"{os.getpid()}\n")

    signal.signal(signal.SIGUSR1, handle)
    with load(numbers(200).map(pipes.short_sleep)) as loader:
        items = iter(loader)
        first = next(items)
        answers.put("ready")
        answers.put([first, *items])


def test_workers_leave_ctrl_c_to_the_main_process() -> None:
    with load(numbers(200).map(pipes.short_sleep)) as loader:
        items = iter(loader)
        seen = [next(items)]
        for pid in worker_pids(loader):
            os.kill(pid, signal.SIGINT)
        assert [*seen, *items] == list(range(200))


def sockets_of(pid: int) -> set[str]:
    links = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor that lists this folder is gone by now
            links.add(str(entry.readlink()))
    return {link for link in links if link.startswith("socket:")}


def test_workers_hold_no_connection_of_another_loader() -> None:
    """Else what is under way in a loader that has ended would live as long as the other loader's workers."""
    before = sockets_of(os.getpid())
    with load(numbers(10)) as first:
        iter(first)
        connections = sockets_of(os.getpid()) - before
        assert len(connections) >= 2
        with load(numbers(10)) as second:
            in_the_middle(second)
            for pid in worker_pids(second):
                assert not sockets_of(pid) & connections


def read_for_ever(answers: Any, function: Any, prefetch: int, dispatch: bool) -> None:
    from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

    pipe = numbers(100_000)  # a millisecond each, at least
    if dispatch:
        pipe = pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    loader = load(pipe.map(function), 2, None, prefetch, prefetch)
    items = iter(loader)
    next(items)
    answers.put(worker_pids(loader))
    for _ in items:
        pass


@pytest.mark.quick(2)
@pytest.mark.parametrize("dispatch", [False, True], ids=["", "dispatch"])
@pytest.mark.parametrize("function", [pipes.short_sleep, pipes.sleep_for_ever_at_six], ids=["items", "stuck"])
def test_promise_6_workers_do_not_outlive_a_killed_main_process(function: Any, dispatch: bool) -> None:
    with session(read_for_ever, function, 10, dispatch) as process:
        pids = process.answers.get()
        assert len(pids) == 2 + dispatch
        os.kill(process.pid, signal.SIGKILL)
        assert becomes_true(lambda: not living_in(process.pid), SOON_S)


@pytest.mark.quick(1)
@pytest.mark.parametrize("prefetch", [pytest.param(0, marks=pytest.mark.ci), 10])
@pytest.mark.parametrize("function", [pipes.short_sleep, pipes.sleep_for_ever_at_six], ids=["items", "stuck"])
def test_promise_6_ctrl_c_to_the_whole_group_ends_all(function: Any, prefetch: int) -> None:
    with session(read_for_ever, function, prefetch, False) as process:
        process.answers.get()
        os.killpg(process.pid, signal.SIGINT)
        assert becomes_true(lambda: not living_in(process.pid), SOON_S)
        process.join(60)
        assert process.exitcode == 0


@pytest.mark.parametrize(
    ("how", "method", "code"),
    [
        pytest.param("exit-busy", "fork", 0, marks=pytest.mark.ci),
        pytest.param("exit-error", "fork", 1, marks=pytest.mark.ci),
        pytest.param("exit-thread", "fork", 0, marks=pytest.mark.ci),
        pytest.param("exit", "spawn", 0, marks=pytest.mark.ci),
        pytest.param("exit", "forkserver", 0, marks=pytest.mark.ci),
    ],
)
def test_promise_6_scripts_that_never_shut_their_loader_down_end(how: str, method: str, code: int) -> None:
    with program(how, method) as process:
        out, err = process.communicate(timeout=60)
        assert "READY" in out
        assert process.returncode == code, err
        assert "Traceback" not in err or how == "exit-error"
        assert becomes_true(lambda: not living_in(process.pid), SOON_S)


@pytest.mark.ci
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_promise_6_ctrl_c_in_a_terminal_ends_a_script_with_one_traceback(method: str) -> None:
    with program("interrupt", method) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "READY\n"
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode != 0
        assert err.count("KeyboardInterrupt") == 1, err
        assert becomes_true(lambda: not living_in(process.pid), SOON_S)


@pytest.mark.ci
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_promise_6_workers_do_not_outlive_a_killed_script(method: str) -> None:
    with program("wait", method) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "READY\n"
        assert len(living_in(process.pid)) > 2
        process.kill()
        assert becomes_true(lambda: not living_in(process.pid), SOON_S)


HELD = """
import multiprocessing, signal, sys
from torchdata_ais._util.process_pool import holding_signals

def held(conn):
    conn.send(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    for _ in range(2):
        here, there = context.Pipe()
        process = context.Process(target=held, args=(there,))
        with holding_signals(sys.argv[1]):
            process.start()
            print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()), here.recv())
        process.join(60)
    print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


@pytest.mark.quick(1)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_first_process_of_a_program_begins_with_ctrl_c_held_back(method: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(HELD)
    done = subprocess.run(
        [sys.executable, str(path), method], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == ["True True", "True True", "False"], done.stderr
