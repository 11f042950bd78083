"""Our own DataLoader2, and what belongs to it, whatever torchdata is installed."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import queue
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.waiting import until
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from torch.utils.data.datapipes.map import SequenceWrapper

import torchdata_ais.dataloader2
from torchdata_ais.dataloader2 import communication
from torchdata_ais.dataloader2.own.distributed import ShardingRoundRobinDispatcher
from torchdata_ais.dataloader2.own.graph import (
    find_dispatched,
    find_replicable_branches,
    list_dps,
    remove_dp,
    replace_dp,
)
from torchdata_ais.dataloader2.own.loader import CacheTimeout, DataLoader2, PauseIteration, Shuffle
from torchdata_ais.dataloader2.own.prefetch import LookAhead, PinMemory, Prefetcher, pin_memory_fn
from torchdata_ais.dataloader2.own.random import SeedGenerator
from torchdata_ais.dataloader2.own.services import (
    CheckpointableReadingServiceInterface,
    InProcessReadingService,
    SequentialReadingService,
)
from torchdata_ais.errors import LoaderError, StateError, UsageError
from torchdata_ais.pipes.base.torch_pipes import traverse_dps


def look_aheads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


class Counted(IterDataPipe[int]):
    """Counts what was taken; item `bad` is an error."""

    def __init__(self, count: int, bad: int = -1) -> None:
        self.count, self.bad, self.taken = count, bad, 0

    def __iter__(self) -> Iterator[int]:
        for item in range(self.count):
            self.taken += 1
            if item == self.bad:
                raise KeyError(item)
            yield item


class Creates:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def plus_one(item: int) -> int:
    return item + 1


class TestPrefetch:
    def test_it_takes_its_room_and_no_more(self) -> None:
        source = Counted(100)
        items = iter(Prefetcher(source, 4))
        assert next(items) == 0
        until(lambda: source.taken == 5)
        assert list(items) == list(range(1, 100))
        assert not look_aheads()

    def test_an_error_comes_in_its_place(self) -> None:
        items = iter(Prefetcher(Counted(9, bad=3), 8))
        assert [next(items) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(KeyError):
            next(items)
        assert not look_aheads()

    def test_paused_it_takes_nothing_and_resumed_all(self) -> None:
        source = Counted(50)
        pipe = Prefetcher(Prefetcher(source, 2), 2)
        items = iter(pipe)
        assert next(items) == 0
        pipe.pause()
        pipe.source_datapipe.pause()
        taken = source.taken
        waited_until = time.monotonic() + 0.05
        while time.monotonic() < waited_until:
            assert source.taken == taken
        pipe.source_datapipe.resume()
        pipe.resume()
        assert list(items) == list(range(1, 50))

    @pytest.mark.parametrize("end", ["forgotten", "again", "shutdown"])
    def test_no_thread_is_left(self, end: str) -> None:
        pipe = Prefetcher(Counted(1000), 3)
        items = iter(pipe)
        next(items)
        assert len(look_aheads()) == 1
        if end == "again":
            assert list(pipe) == list(range(1000))
        elif end == "shutdown":
            pipe.shutdown()
        else:
            del items, pipe
            gc.collect()
        until(lambda: not look_aheads())

    @pytest.mark.parametrize("end", ["close", "pause"])
    def test_what_keeps_full_takes_one_more_wherever_it_ends(self, end: str) -> None:
        """As ranks under fullsync must: else one would wait for the other."""
        for _ in range(20):
            source = Counted(9)
            ahead = LookAhead(source, 1, keeps_full=True)
            assert ahead.get() == 0
            if end == "pause":
                ahead.pause()
                assert source.taken <= 2
            ahead.close()
            assert ahead.join(60)
            assert source.taken == 2

    def test_a_copy_is_fresh(self) -> None:
        pipe = Prefetcher(IterableWrapper(range(5)), 2)
        next(iter(pipe))
        assert list(pickle.loads(pickle.dumps(pipe))) == [0, 1, 2, 3, 4]
        assert len(pipe) == 5

    def test_room_for_nothing_is_refused(self) -> None:
        with pytest.raises(UsageError, match="buffer_size=0"):
            Prefetcher([], 0)


class TestPinMemory:
    def test_without_a_gpu_it_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(UsageError, match="needs a GPU"):
            PinMemory([])

    def test_items_are_pinned_in_the_thread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        devices = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "set_device", devices.append)
        pipe = PinMemory(IterableWrapper([1, 2, 3]), 7, lambda item, device: (item, device))
        assert list(pipe) == [(1, 7), (2, 7), (3, 7)]
        assert devices == [7]
        assert not pipe.is_replicable()

    def test_containers_keep_their_types(self) -> None:
        class Pinned:
            def pin_memory(self) -> str:
                return "pinned"

        item = {"a": (Pinned(), "text"), "b": [b"bytes", range(2), Pinned()]}
        assert pin_memory_fn(item) == {
            "a": ("pinned", "text"),
            "b": [b"bytes", [0, 1], "pinned"],
        }


class TestGraph:
    def test_pipes_are_exchanged_in_collections(self) -> None:
        old, new = IterableWrapper([1]), IterableWrapper([2])
        pipe = old.map(plus_one).concat(old, IterableWrapper([7]))
        replace_dp(traverse_dps(pipe), old, new)
        assert list(pipe) == [3, 2, 7]
        assert old not in list_dps(traverse_dps(pipe))

    def test_the_last_pipe_can_be_exchanged_and_removed(self) -> None:
        source = IterableWrapper([1])
        last = source.map(plus_one)
        assert list_dps(remove_dp(traverse_dps(last), last)) == [source]
        assert list_dps(replace_dp(traverse_dps(last), last, source)) == [source]
        with pytest.raises(LoaderError, match="source DataPipe"):
            remove_dp(traverse_dps(last), source)

    def test_branches_that_stand_one_in_another_are_one(self) -> None:
        one, two = IterableWrapper(range(4)).fork(2)
        two.is_replicable = lambda: False
        pipe = one.map(plus_one).zip(two)
        (branch,) = find_replicable_branches(traverse_dps(pipe))
        assert branch is one.main_datapipe

    def test_dispatchers_meet(self) -> None:
        def dispatched() -> Any:
            return ShardingRoundRobinDispatcher(IterableWrapper([1]), SHARDING_PRIORITIES.MULTIPROCESSING)

        one, two = dispatched(), dispatched()
        joined = one.zip(two)
        assert find_dispatched(traverse_dps(joined.map(plus_one)), ShardingRoundRobinDispatcher) is joined
        assert find_dispatched(traverse_dps(one.map(plus_one)), ShardingRoundRobinDispatcher) is one
        assert find_dispatched(traverse_dps(IterableWrapper([])), ShardingRoundRobinDispatcher) is None

    def test_a_dispatcher_over_ranks_is_refused(self) -> None:
        with pytest.raises(UsageError, match="MULTIPROCESSING"):
            ShardingRoundRobinDispatcher([], SHARDING_PRIORITIES.DISTRIBUTED)


class TestSeeds:
    def test_more_than_64_bits_are_refused(self) -> None:
        for seed in (SeedGenerator, DataLoader2(IterableWrapper([])).seed):
            with pytest.raises(UsageError, match="64 bits"):
                seed(2**64)
        with pytest.raises(UsageError, match="worker_id=-1"):
            SeedGenerator(1).spawn(-1)

    def test_looking_at_torchs_generator_leaves_it_as_it_was(self) -> None:
        torch.manual_seed(1)
        before = torch.get_rng_state()
        SeedGenerator()
        assert torch.equal(torch.get_rng_state(), before)


class TestLoader:
    def test_map_style_pipes_are_iterated(self) -> None:
        assert list(DataLoader2(SequenceWrapper([5, 6]))) == [5, 6]

    def test_what_does_not_pickle_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "dill", None)  # which makes a lock anew
        with pytest.raises(UsageError, match="cannot be sent to worker processes"):
            DataLoader2(Holds(threading.Lock()))

    def test_what_pickles_does_not_import_dill(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "dill", object())  # an AttributeError if it is used
        with pytest.raises(AttributeError, match="extend"):
            DataLoader2(Holds(threading.Lock()))
        assert list(DataLoader2(SequenceWrapper([5, 6]))) == [5, 6]

    @pytest.mark.parametrize(
        "state", [{}, {"serialized_datapipe": b"no pickle", "reading_service_state": None}, [], None]
    )
    def test_what_is_no_state_is_a_state_error(self, state: Any) -> None:
        with pytest.raises(StateError, match=r"Expected a state of a DataLoader2"):
            DataLoader2(None).load_state_dict(state, trust=True)

    @pytest.mark.parametrize("kind", [DataLoader2, torchdata_ais.dataloader2.DataLoader2])
    @pytest.mark.parametrize("field", ["serialized_datapipe", "randomness_state"])
    def test_promise_8_a_state_runs_no_code_unless_it_is_trusted(
        self, kind: Any, field: str, tmp_path: Path
    ) -> None:
        ran = tmp_path / "ran"
        code = pickle.dumps(Creates(str(ran)))
        state = kind(IterableWrapper([1])).state_dict()
        state[field] = code if field == "serialized_datapipe" else (0, True, code, pickle.dumps(None))
        for load in (
            lambda **named: kind(None).load_state_dict(state, **named),
            lambda **named: kind.from_state(state, None, **named),
        ):
            for named in ({}, {"trust": False}, {"trust": 1}):
                with pytest.raises(StateError, match="unpickling can run any code"):
                    load(**named)
            assert not ran.exists()
        with contextlib.suppress(StateError):
            kind(None).load_state_dict(state, trust=True)
        assert ran.exists()  # the state is one that runs code

    @pytest.mark.parametrize("kind", [DataLoader2, torchdata_ais.dataloader2.DataLoader2])
    @pytest.mark.parametrize(
        "state", [{}, {"serialized_datapipe": b"no pickle", "reading_service_state": None}]
    )
    def test_promise_5_a_damaged_state_is_a_state_error_under_every_torchdata(
        self, kind: Any, state: Any
    ) -> None:
        with pytest.raises(StateError, match=r"Expected a state of a DataLoader2"):
            kind(None).load_state_dict(state, trust=True)

    def test_a_state_cannot_be_loaded_into_a_running_loader(self) -> None:
        loader = DataLoader2(IterableWrapper([1]))
        state = loader.state_dict()
        iter(loader)
        with pytest.raises(LoaderError, match="started an epoch"):
            loader.load_state_dict(state, trust=True)

    def test_the_states_of_services_come_back(self) -> None:
        service = SequentialReadingService(Counts(), InProcessReadingService())
        loader = DataLoader2(IterableWrapper([1, 2]), reading_service=service)
        list(loader)
        with pytest.warns(UserWarning, match="no checkpoint"):
            state = loader.state_dict()
        again = DataLoader2.from_state(state, service, trust=True)
        with pytest.warns(UserWarning, match="no checkpoint"):
            assert list(again) == [1, 2]
        assert again.reading_service.reading_services[0].epochs == 2
        without = DataLoader2.from_state(state, InProcessReadingService(), trust=True)
        with pytest.raises(StateError, match="InProcessReadingService has none"):
            iter(without)
        empty = DataLoader2(None)
        with pytest.raises(LoaderError, match="has no pipe"):
            iter(empty)

    def test_after_the_end_it_says_that_it_is_shut_down(self) -> None:
        loader = DataLoader2(IterableWrapper([1]))
        items = iter(loader)
        loader.shutdown()
        for use in (lambda: iter(loader), lambda: next(items)):
            with pytest.raises(LoaderError, match="was shut down"):
                use()

    def test_an_error_of_the_pipe_shuts_the_loader_down(self) -> None:
        loader = DataLoader2(Counted(3, bad=1))
        items = iter(loader)
        next(items)
        with pytest.raises(KeyError):
            next(items)
        with pytest.raises(LoaderError, match="was shut down"):
            iter(loader)

    def test_a_pause_of_the_pipe_does_not_end_the_epoch(self) -> None:
        service = Counts()
        loader = DataLoader2(Pauses(), reading_service=service)
        items = iter(loader)
        assert list(items) == []
        assert loader.reading_service.ended == 0

    def test_without_a_service_it_cannot_pause(self) -> None:
        loader = DataLoader2(IterableWrapper([1]))
        with pytest.warns(UserWarning, match="no reading service cannot pause"):
            loader._pause()
        with pytest.warns(UserWarning, match="cannot limit"):
            iter(loader).limit(1)

    def test_its_service_uses_all_its_arguments(self) -> None:
        service = InProcessReadingService(2, init_fn=more, reset_fn=again)
        loader = DataLoader2(IterableWrapper([1, 2]), reading_service=service)
        assert [list(loader), list(loader)] == [[12, 13], [22, 23]]
        assert not look_aheads()


class Holds(IterDataPipe[Any]):
    def __init__(self, what: Any) -> None:
        self.what = what


class Pauses(IterDataPipe[Any]):
    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        raise PauseIteration

    def reset(self) -> None: ...


class Counts(CheckpointableReadingServiceInterface):
    """Its state is how many epochs were begun."""

    def __init__(self) -> None:
        self.epochs = self.ended = 0

    def initialize(self, datapipe: Any) -> Any:
        return datapipe

    def initialize_iteration(self, seed_generator: Any, iter_reset_fn: Any = None) -> Any:
        self.epochs += 1
        return iter_reset_fn

    def finalize_iteration(self) -> None:
        self.ended += 1

    def checkpoint(self) -> bytes:
        return pickle.dumps(self.epochs)

    def restore(self, datapipe: Any, serialized_state: bytes) -> Any:
        self.epochs = pickle.loads(serialized_state)
        return datapipe


def more(pipe: Any, info: Any) -> Any:
    assert (info.num_workers, info.worker_id) == (1, 0)
    return pipe.map(plus_one)


def again(pipe: Any, info: Any, seeds: Any) -> Any:
    assert 0 <= seeds.generate_seed() < 2**64
    return pipe.map(plus_ten)


def plus_ten(item: int) -> int:
    return item + 10


class Waits(IterDataPipe[int]):
    timeout = 300.0

    def set_timeout(self, timeout: float) -> None:
        self.timeout = timeout

    def __iter__(self) -> Iterator[int]:
        yield 1


def test_adapters_set_every_pipe_they_are_for() -> None:
    loader = DataLoader2(Waits().map(plus_one), [CacheTimeout(5), Shuffle(None)])
    assert loader.datapipe.datapipe.timeout == 5
    with pytest.raises(UsageError, match="no timeout"):
        CacheTimeout()


def test_queues_between_threads() -> None:
    line, shared = communication.queue.LocalQueue("a"), communication.queue.ThreadingQueue()
    with pytest.raises(queue.Empty):
        line.get()
    with pytest.raises(queue.Empty):
        shared.get(timeout=0.01)
    threading.Thread(target=shared.put, args=(1,)).start()
    assert shared.get() == 1
    assert line.name == "a"
    assert issubclass(communication.iter.TerminateRequired, Exception)
