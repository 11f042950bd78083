"""Pool of processes with results in order."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from typing_extensions import Self

from torchdata_ais._util.process_end import end_with, safe_context
from torchdata_ais.errors import UsageError, WorkerDiedError


@contextlib.contextmanager
def holding_signals(method: str) -> Iterator[None]:
    """Hold back handled signals, here and in processes that are started.

    New processes hold them until they ignore them.

    Args:
        method: How the processes start.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    if method != "fork":  # before Python 3.13, starting the tracker inside would release Ctrl-C again
        resource_tracker.ensure_running()
    handled = {number for number in signal.valid_signals() if callable(signal.getsignal(number))}
    handled.discard(signal.SIGCHLD)  # a fork server started here would never see its processes end
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *handled})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def take_no_part_in_signals() -> None:
    """Leave Ctrl-C and other handled signals to the main process.

    SIGTERM ends this process at once.
    """
    # Held since this process started; a spawned one learns only from this what the main process handles.
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ()) if hasattr(signal, "pthread_sigmask") else set()
    for number in signal.valid_signals():
        if number in held or callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if held:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)


_T = TypeVar("_T")
_R = TypeVar("_R")

_AHEAD = 2  # arguments a process has: one under way, one waiting, so that it never idles
_GRACE_S = 2.0


class OrderedPool(Generic[_T, _R]):
    """Processes that each take every n-th argument, with ordered results.

    The fixed assignment gives the order without bookkeeping.

    A process ends when this one does, even after a kill. The death of a process is an error here, at once.

    Memory: ``2 * processes`` arguments and as many results.

    Args:
        function: A picklable function; under the start method ``fork`` any.
        processes: How many.
        start_method: ``fork``, ``forkserver`` or ``spawn``; None is Python's default, but never ``fork`` after
            CUDA was initialised.

    Raises:
        WorkerDiedError: A process was killed, ran out of memory, or exited.
        UsageError: The function, an argument or a result cannot be pickled.
    """

    def __init__(self, function: Callable[[_T], _R], processes: int, start_method: str | None = None) -> None:
        context = safe_context(start_method)
        self._workers: list[tuple[Any, Connection]] = []
        try:
            for number in range(processes):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_work, args=(function, theirs, os.getpid()), name=f"convert-{number}", daemon=True
                )
                _start(process, context.get_start_method())
                theirs.close()
                self._workers.append((process, ours))
        except BaseException:
            self.close()
            raise

    def map(self, arguments: Iterable[_T]) -> Iterator[_R]:
        """Yield the results in the order of the arguments.

        An exception of the function is raised at the position of its result.
        """
        waiting: deque[int] = deque()
        for index, argument in enumerate(arguments):
            number = index % len(self._workers)
            if len(waiting) == _AHEAD * len(self._workers):
                yield self._result(waiting.popleft())
            self._send(number, argument)
            waiting.append(number)
        while waiting:
            yield self._result(waiting.popleft())

    def _send(self, number: int, argument: _T) -> None:
        try:
            self._workers[number][1].send(argument)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._died(number) from error

    def _result(self, number: int) -> _R:
        try:
            result, error, trace = self._workers[number][1].recv()
        except (EOFError, ConnectionResetError) as gone:
            raise self._died(number) from gone
        if error is not None:
            raise error from RuntimeError(f"in process {number}:\n{trace}")
        value: _R = result
        return value

    def _died(self, number: int) -> WorkerDiedError:
        process = self._workers[number][0]
        process.join(_GRACE_S)
        return WorkerDiedError.at(
            f"process {number} of the conversion (pid {process.pid}) ended with exit code {process.exitcode}",
            todo="if nobody killed it, memory ran out: use fewer processes; then resume",
            worker=number,
        )

    def close(self) -> None:
        """End the processes, even busy ones."""
        for process, conn in self._workers:
            conn.close()
            process.terminate()
        for process, _ in self._workers:
            process.join(_GRACE_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self._workers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _start(process: Any, method: str) -> None:
    try:
        with holding_signals(method):
            process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError.at(
            f"the conversion cannot be handed to other processes: {error}",
            todo="define functions at the top of a module, or pass start_method='fork' or processes=1",
        ) from error


def _work(function: Callable[[Any], object], conn: Connection, main_pid: int) -> None:
    """Run one process: results go out in the order in which arguments come in."""
    take_no_part_in_signals()  # the main process ends this one
    end_with(main_pid)
    arguments: SimpleQueue[Any] = SimpleQueue()

    def receive() -> None:
        # A separate thread: the main process never waits until this one can take the next argument.
        with suppress(EOFError, OSError):
            while True:
                arguments.put(conn.recv())

    threading.Thread(target=receive, daemon=True).start()
    with suppress(BrokenPipeError, ConnectionResetError):
        while True:
            answer: tuple[object, Exception | None, str]
            try:
                answer = (function(arguments.get()), None, "")
            except Exception as error:  # noqa: BLE001 - raised again in the main process
                answer = (None, _picklable(error), traceback.format_exc())
            try:
                conn.send(answer)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                unsendable = UsageError.at(
                    f"a result cannot be sent to the main process: {error}", todo="return plain values"
                )
                conn.send((None, unsendable, traceback.format_exc()))


def _picklable(error: Exception) -> Exception:
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):  # noqa: S301 - our own bytes
            return error
    except Exception:  # noqa: BLE001, S110 - the exception cannot be pickled
        pass
    return RuntimeError(f"{type(error).__name__}: {error}")
