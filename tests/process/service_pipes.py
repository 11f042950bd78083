"""Small pipes, and functions that worker processes can import, for the tests of the reading service."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_ais.errors import TruncatedShardError

COUNTS = [1, 7, 0, 3, 12, 2]
"""Items per shard: no two workers ever get as many."""

EVERY_ITEM = sorted((count, number) for count in COUNTS for number in range(count))


def expand(count: int) -> list[tuple[int, int]]:
    return [(count, number) for number in range(count)]


def uneven(counts: list[int] = COUNTS) -> IterDataPipe[Any]:
    """Shards of very different sizes, shuffled, split, expanded."""
    return IterableWrapper(counts).shuffle().sharding_filter().map(expand).unbatch()


def numbers(count: int) -> IterDataPipe[Any]:
    return IterableWrapper(range(count)).sharding_filter()


def double(number: int) -> int:
    return number * 2


def is_even(number: int) -> bool:
    return number % 2 == 0


def with_pid(number: int) -> tuple[int, int]:
    return number, os.getpid()


# What goes wrong at item 5 -------------------------------------------------------------------------------------------


def raise_at_five(number: int) -> int:
    if number == 5:
        raise ValueError("five")
    return number


def ais_error_at_five(number: int) -> int:
    if number == 5:
        raise TruncatedShardError.at("cut", url="ais://b/s.tar", offset=512)
    return number


def key_error_at_five(number: int) -> int:
    if number == 5:
        raise KeyError("the missing key")
    return number


class TwoArgumentsError(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)


def odd_error_at_five(number: int) -> int:
    if number == 5:
        raise TwoArgumentsError(1, 2)
    return number


class NotAnException(BaseException):
    pass


def base_exception_at_five(number: int) -> int:
    if number == 5:
        raise NotAnException("not an Exception")
    return number


def stop_iteration_at_five(number: int) -> int:
    if number == 5:
        raise StopIteration
    return number


def lambda_at_five(number: int) -> Any:
    return (lambda: number) if number == 5 else number


def open_file_at_five(number: int) -> Any:
    return Path(os.devnull).open() if number == 5 else number


def exit_at_five(number: int) -> int:
    if number == 5:
        sys.exit(3)
    return number


def kill_at_five(number: int) -> int:
    if number == 5:
        os.kill(os.getpid(), 9)
    return number


def hard_exit_at_five(number: int) -> int:
    if number == 5:
        os._exit(0)
    return number


def sleep_for_ever_at_six(number: int) -> int:
    if number == 6:
        time.sleep(3600)
    return number


def sleep_for_ever_at_six_and_say_so(number: int, said: Path) -> int:
    if number == 6:
        said.touch()
    return sleep_for_ever_at_six(number)


def short_sleep(number: int) -> int:
    time.sleep(0.002)
    return number


class ComesBackBroken:
    """Pickles, but does not unpickle."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ImportError("no such class here")


def broken_here_at_five(number: int) -> Any:
    return ComesBackBroken() if number == 5 else number


def failing_init(pipe: Any, info: Any) -> Any:
    raise ValueError(f"init of worker {info.worker_id}")


def stopping_init(pipe: Any, info: Any) -> Any:
    raise StopIteration("init")


def failing_reset(pipe: Any, info: Any, seeds: Any) -> Any:
    raise ValueError("reset")


class RefusesItsSeed(IterDataPipe):
    def __init__(self, source: Any) -> None:
        self.source = source

    def set_seed(self, seed: int) -> None:
        raise ValueError("set_seed")

    def __iter__(self) -> Iterator[Any]:
        yield from self.source


class RefusesToBegin(IterDataPipe):
    def __init__(self, source: Any) -> None:
        self.source = source

    def reset(self) -> None:
        raise ValueError("reset of a pipe")

    def __iter__(self) -> Iterator[Any]:
        yield from self.source


# Pipes that watch what is done to them -------------------------------------------------------------------------------


class NotReplicable(IterDataPipe):
    def __init__(self, source: Any) -> None:
        self.source = source

    def is_replicable(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            yield item, os.getpid()


class Diary(IterDataPipe):
    """Writes a line into a file for every item it makes, and for every pause and resume."""

    def __init__(self, source: Any, path: Path) -> None:
        self.source = source
        self.path = str(path)

    def note(self, word: str) -> None:
        with Path(self.path).open("a") as file:
            file.write(word + "\n")

    def pause(self) -> None:
        self.note("pause")

    def resume(self) -> None:
        self.note("resume")

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            self.note("item")
            yield item


class Tagged(IterDataPipe):
    """Yields what it is told at the start of an epoch, and sends its count along with every item."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.told: Any = None
        self.count = 0

    def _ais_reset(self, *, epoch: int, extras: Any) -> None:
        self.told, self.count = (epoch, extras), 0

    def _ais_envelope(self) -> Any:
        return {"count": self.count}

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            self.count += 1
            yield item, self.told


class WithThreads(IterDataPipe):
    """Leaves a thread behind that no one can stop."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        import threading

        threading.Thread(target=time.sleep, args=(3600,)).start()
        yield from self.source
