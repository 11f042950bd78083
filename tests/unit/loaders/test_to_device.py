"""`ais_loader(device=)`: what is done on the way to a GPU, with a stand-in for its streams; and on one where it is."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import pytest
import torch
from helpers.waiting import until
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from torchdata_ais import AISSampleReader, AISSourceLister, Normalize, SampleIndex, ais_loader, explain
from torchdata_ais._util.device import AHEAD
from torchdata_ais.errors import UsageError, WorkerDiedError
from torchdata_ais.loaders import loader as loader_module
from torchdata_ais.loaders import to_device
from torchdata_ais.loaders.to_device import CudaCopies, ahead, tensors_in, with_tensors
from torchdata_ais.testing import example_shards

DEADLINE_S = 60.0
COUNTS = (6, 4, 7)

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Mark:
    def __init__(self, device: StandIn, name: Any) -> None:
        self.device, self.name = device, name

    def synchronize(self) -> None:
        self.device.log.append(("synchronize", self.name))


class StandIn:
    """A device whose memory is the host's, and which notes what it is asked to do, and by which thread."""

    def __init__(self, _device: Any = None, fail_at: int = -1) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.copied = self.given = 0
        self.threads: set[str] = set()
        self.may_copy = threading.Event()
        self.may_copy.set()
        self.fail_at = fail_at
        self.most = 0
        self.copies: list[weakref.ref[Any]] = []

    def copy(self, item: Any) -> tuple[Any, Mark]:
        assert self.may_copy.wait(DEADLINE_S)
        self.threads.add(threading.current_thread().name)
        number = self.copied
        if number == self.fail_at:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        self.copied += 1
        self.most = max(self.most, self.copied - self.given)
        self.log.append(("copy", number))
        return with_tensors(item, lambda one: one.clone()), Mark(self, number)

    def wait(self, copied: Any, mark: Any) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.copies += [weakref.ref(tensor) for tensor in tensors_in(copied)]
        self.log.append(("wait", mark.name))

    def record(self) -> Mark:
        self.log.append(("record", self.given))
        self.given += 1
        return Mark(self, self.given - 1)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Return what stands in for the GPU of the loaders of a test."""
    stand_in = StandIn()
    monkeypatch.setattr(to_device, "CudaCopies", lambda _gpu: stand_in)
    monkeypatch.setattr(
        loader_module, "gpu_named", lambda name: torch.device(name) if name == "cuda" else None
    )
    return stand_in


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    assert not threads()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "to_device"]


def steps_of(count: int, error: Exception | None = None) -> Iterator[Any]:
    for number in range(count):
        yield torch.tensor([number]), number % 2, b"%d" % number
    if error is not None:
        raise error


def streamed(shards: list[str]) -> Any:
    return (
        AISSourceLister(shards)
        .shuffle()
        .load_tar()
        .group_samples()
        .decode()
        .to_tuple("__key__", "cls")
        .batched(2)
    )


def by_index(shards: list[str]) -> Any:
    index = SampleIndex.build(shards)
    return AISSampleReader(index, shuffle="samples").decode().to_tuple("__key__", "cls").batched(2)


def plain(batches: Any) -> list[Any]:
    return [(keys, labels.tolist()) for keys, labels in batches]


# The order of things, without a loader.


def test_each_batch_is_copied_by_the_thread_and_waited_for_by_itself_when_it_is_given() -> None:
    device = StandIn()
    got = []
    for item, worker, state in ahead(steps_of(9), lambda: True, lambda: device):
        number = int(item)
        assert (worker, state) == (number % 2, b"%d" % number)
        waits = [name for what, name in device.log if what == "wait"]
        assert waits == list(range(number + 1))  # its own copy, and no later one
        got.append(number)
    assert got == list(range(9))
    assert device.threads == {"to_device"}
    for number in range(9):
        assert device.log.index(("copy", number)) < device.log.index(("wait", number))
        assert device.log.index(("wait", number)) < device.log.index(("record", number))


def test_no_more_is_copied_ahead_than_is_said() -> None:
    device, taken = StandIn(), 0

    def counted() -> Iterator[Any]:
        nonlocal taken
        for step in steps_of(20):
            taken += 1
            yield step

    for number, _ in enumerate(ahead(counted(), lambda: True, lambda: device)):
        until(lambda number=number: device.copied == min(20, number + 1 + AHEAD))  # type: ignore[misc]
        assert taken == device.copied
    assert device.most <= AHEAD + 1
    # A batch is only copied once the work on the one whose place it takes is done, as the device says.
    for number in range(AHEAD + 2, 20):
        before = device.log.index(("synchronize", number - AHEAD - 2))
        assert device.log.index(("record", number - AHEAD - 2)) < before < device.log.index(("copy", number))
    assert ("synchronize", 20 - AHEAD - 2) not in device.log


def test_nothing_is_waited_for_but_the_batch_that_is_needed() -> None:
    device, asked = StandIn(), []

    def slow() -> Iterator[Any]:
        for step in steps_of(4):
            asked.append(step[2])
            yield step

    steps = ahead(slow(), lambda: False, lambda: device)
    for number in range(4):
        item, _, _ = next(steps)
        assert int(item) == number
        assert len(asked) == number + 1  # the next one was not there: nobody asked for it
    assert next(steps, None) is None


def test_of_the_batches_given_only_the_last_is_held() -> None:
    device, held = StandIn(), []

    def ready() -> bool:
        held.append(sum(copy() is not None for copy in device.copies))
        return True

    steps = ahead(steps_of(8), ready, lambda: device)
    for number in range(8):
        assert int(next(steps)[0]) == number
        assert [copy() is None for copy in device.copies] == [True] * number + [False]
    assert next(steps, None) is None
    assert [copy() is None for copy in device.copies] == [True] * 8
    assert not any(held)  # nor that one, once the next is asked for


def test_what_came_is_given_before_the_error_that_follows_it() -> None:
    device = StandIn()
    error = WorkerDiedError.at("worker 1 ended", todo="look")
    steps = ahead(steps_of(3, error), lambda: True, lambda: device)
    assert [int(item) for item, _, _ in islice(steps, 3)] == [0, 1, 2]
    with pytest.raises(WorkerDiedError, match="Worker 1"):
        next(steps)


def test_a_copy_that_fails_is_told_in_its_place() -> None:
    device = StandIn(fail_at=3)
    steps = ahead(steps_of(9), lambda: True, lambda: device)
    assert [int(item) for item, _, _ in islice(steps, 3)] == [0, 1, 2]
    with pytest.raises(torch.cuda.OutOfMemoryError):
        next(steps)


def test_ctrl_c_while_waiting_is_raised_at_once() -> None:
    def interrupted() -> Iterator[Any]:
        yield from steps_of(1)
        raise KeyboardInterrupt

    steps = ahead(interrupted(), lambda: True, StandIn)
    with pytest.raises(KeyboardInterrupt):
        list(steps)


def test_nothing_is_begun_for_an_epoch_without_batches() -> None:
    assert list(ahead(iter(()), lambda: True, lambda: pytest.fail("begun"))) == []


@pytest.mark.parametrize("given", [0, 1, 5])
def test_a_loop_that_is_left_early_leaves_no_thread(given: int) -> None:
    steps = ahead(steps_of(9), lambda: True, StandIn)
    for _ in range(given):
        next(steps)
    assert len(threads()) == bool(given)
    steps.close()  # type: ignore[attr-defined]
    assert threads() == []


def test_a_loop_that_is_forgotten_leaves_no_thread() -> None:
    steps = ahead(steps_of(9), lambda: True, StandIn)
    next(steps)
    del steps
    gc.collect()
    assert threads() == []


# Under a loader.


WORKERS = {"num_workers": 2}
HOW = [
    ({}, streamed),
    ({}, by_index),
    (WORKERS, streamed),
    pytest.param(WORKERS, by_index, marks=pytest.mark.ci),
]


@pytest.mark.parametrize(("how", "make"), HOW)
def test_the_same_batches_states_and_counts_on_the_device(
    device: StandIn, make: Any, how: dict[str, Any]
) -> None:
    shards = example_shards(counts=COUNTS)

    def run(name: str) -> tuple[list[Any], list[Any], int, int]:
        got, states = [], []
        with ais_loader(make(shards), seed=5, trace=True, device=name, **how) as loader:
            for batch in loader:
                got += plain([batch])
                states.append(loader.state_dict())
            return got, states, len(loader._observed().recorder.taken), loader.stats()["batched"].items

    expected = run("cpu")
    assert device.copied == 0
    assert run("cuda") == expected
    assert device.copied == len(expected[0])


@pytest.mark.parametrize(("how", "make"), HOW)
def test_a_state_counts_what_the_loop_was_given(device: StandIn, make: Any, how: dict[str, Any]) -> None:
    pipe = make(example_shards(counts=COUNTS))
    with ais_loader(pipe, seed=5, **how) as loader:
        whole = plain(loader)
    with ais_loader(pipe, seed=5, device="cuda", trace=True, **how) as loader:
        batches = iter(loader)
        got = plain([next(batches)])
        while how and device.copied <= len(got):  # until the workers' next is copied ahead
            until(loader._runner._engine.ready)  # type: ignore[union-attr]
            got += plain([next(batches)])
        state = loader.state_dict()
        loader._observed().recorder.collect()
        assert len(loader._observed().recorder.taken) == len(got)
        del batches
        loader.load_state_dict(state)
        assert got + plain(loader) == whole


def test_what_the_workers_have_made_is_copied_ahead(device: StandIn) -> None:
    with ais_loader(streamed(example_shards(counts=COUNTS)), num_workers=2, device="cuda") as loader:
        batches = iter(loader)
        next(batches)
        engine, given = loader._runner._engine, 1
        assert engine is not None
        while device.copied <= given:
            until(engine.ready)
            next(batches)
            given += 1
        assert device.copied <= given + AHEAD
        loader.close()
        assert not engine.ready()
        assert next(batches, None) is None


def test_an_error_in_a_worker_comes_after_the_batches_before_it(device: StandIn) -> None:
    shards = example_shards(counts=(8,))
    samples = AISSourceLister(shards).load_tar().group_samples().decode().to_tuple("cls")
    pipe = samples.map_tuple(refuse_six).batched(2)
    for name in ("cpu", "cuda"):
        with ais_loader(pipe, num_workers=1, device=name) as loader:
            batches = iter(loader)
            assert [labels.tolist() for (labels,) in islice(batches, 3)] == [[0, 1], [2, 3], [4, 5]]
            with pytest.raises(ValueError, match="six"):
                next(batches)


def refuse_six(label: int) -> int:
    if label == 6:
        raise ValueError("six")
    return label


def test_epochs_of_fixed_steps_go_on_where_the_last_one_stopped(device: StandIn) -> None:
    shards = example_shards(counts=COUNTS)
    runs = []
    for name in ("cpu", "cuda"):
        with ais_loader(streamed(shards), num_workers=2, seed=3, epoch_steps=4, device=name) as loader:
            runs.append([plain(loader) for _ in range(3)])
            assert len(threads()) == (name == "cuda")
        del loader
    assert runs[0] == runs[1]


# On the CPU, and names of devices.


def test_on_the_cpu_nothing_of_it_is_imported_or_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torchdata_ais.loaders.to_device")
    for name in (None, "cpu", torch.device("cpu")):
        with ais_loader(streamed(example_shards()), device=name) as loader:
            for _ in loader:
                assert threads() == []
    assert "torchdata_ais.loaders.to_device" not in sys.modules
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "device='gpu' is no device"),
        ("mps", "copied to CUDA devices alone"),
        ("meta", "copied to CUDA devices alone"),
        (True, "is a bool"),
        (1.5, "is a float"),
        (-1, "device=-1 is no device"),
        ("cuda:x", "is no device"),
        (b"cuda", "is a bytes"),
    ],
)
def test_a_wrong_device_is_refused_when_the_loader_is_made(name: Any, message: str) -> None:
    pipe = streamed(example_shards())
    with pytest.raises(UsageError, match=message):
        ais_loader(pipe, device=name)
    with pytest.raises(UsageError, match=message):
        explain(pipe, device=name)


def test_without_a_gpu_it_is_said_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    pipe = streamed(example_shards())
    with pytest.raises(UsageError, match=r"device='cuda', and .*\. Pass device=\"cpu\""):
        ais_loader(pipe, device="cuda")
    with ais_loader(pipe, pin_memory=True) as loader:
        assert len(list(loader)) > 0
    assert "pin_memory=True does nothing here: torch sees no GPU" in caplog.text
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(UsageError, match="built without CUDA"):
        ais_loader(pipe, device=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match=r"sees 2 GPUs\. Use cuda:0 to cuda:1"):
        ais_loader(pipe, device="cuda:2")


def test_explain_says_what_is_held_where() -> None:
    pipe = streamed(example_shards())
    assert "device cuda:1: at most 4 batches in its memory" in str(explain(pipe, device="cuda:1"))
    assert "page-locked" in str(explain(by_index(example_shards()), device="cuda"))
    assert "device" not in str(explain(pipe, device="cpu"))


# What batches are made of.


class Pair(NamedTuple):
    image: torch.Tensor
    text: str


def nested() -> Any:
    packed = pack_sequence([torch.ones(3), torch.ones(1)])
    return OrderedDict(
        a=(torch.arange(3), "text", [torch.zeros(1), None]),
        b=Pair(torch.ones(2, 2), "p"),
        c=b"raw",
        d=7,
        e=packed,
    )


def test_tensors_are_found_in_whatever_a_batch_is_made_of() -> None:
    item = nested()
    copied = with_tensors(item, lambda one: one.to(torch.int64))
    assert type(copied) is OrderedDict
    assert type(copied["a"]) is tuple
    assert type(copied["b"]) is Pair
    assert type(copied["e"]) is PackedSequence
    assert copied["a"][2][0].dtype == torch.int64
    assert [tensor.tolist() for tensor in tensors_in(copied)] == [
        tensor.tolist() for tensor in tensors_in(item)
    ]
    assert (copied["a"][1], copied["a"][2][1], copied["b"].text, copied["c"], copied["d"]) == (
        "text",
        None,
        "p",
        b"raw",
        7,
    )
    assert len(list(tensors_in(item))) == 5  # the sizes of a packed sequence are a tensor, too


def test_images_are_normalised_where_they_are_given_and_nothing_else_is() -> None:
    normalize = Normalize(mean=[0.5] * 3, std=[0.25] * 3)
    image = torch.full((4, 3, 2, 2), 255, dtype=torch.uint8)
    masks = torch.full((3, 2, 2), 255, dtype=torch.uint8)  # as many masks as images have channels
    grey = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    with ais_loader(Batches([(image, masks, grey, "text")]), device="cpu", normalize=normalize) as loader:
        ((images, same, grey, text),) = list(loader)
    assert images.unique().tolist() == [2.0]
    assert same is masks
    assert (grey.dtype, text) == (torch.uint8, "text")
    with (
        ais_loader(Batches([(masks,)]), normalize=normalize) as loader,
        pytest.raises(UsageError, match=r"without images: it has \(3, 2, 2\) of torch.uint8"),
    ):
        list(loader)
    with pytest.raises(UsageError, match=r"Pass Normalize\(\)"):
        ais_loader(Batches([]), normalize=True)


def Batches(items: list[Any]) -> Any:  # noqa: N802 - as a pipe is named
    from torch.utils.data.datapipes.iter import IterableWrapper

    return IterableWrapper(items, deepcopy=False).sharding_filter()


# What a GPU is asked to do, on a machine without one: each call once, in its order.


class FakeTensor(torch.Tensor):
    """A tensor that says what is done with it."""

    calls: list[str]
    is_cuda = False

    def pin_memory(self, *_: Any) -> Any:
        self.calls.append("pin")
        return self

    def to(self, device: Any, non_blocking: bool = False) -> Any:
        self.calls.append(f"to {device} {non_blocking}")
        copied = self.clone().as_subclass(FakeTensor)
        copied.calls, copied.is_cuda = self.calls, True  # type: ignore[misc]
        return copied

    def record_stream(self, stream: Any) -> None:
        self.calls.append(f"held for {stream}")


def test_a_gpu_is_asked_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Stream:
        def __init__(self, device: Any = None) -> None:
            self.name = f"side of {device}"

        def __str__(self) -> str:
            return self.name

        def wait_event(self, event: Any) -> None:
            calls.append(f"{self} waits")

        def record_event(self) -> Any:
            event = Event()
            event.record(self)
            return event

        def __enter__(self) -> None:
            calls.append(f"on {self}")

        def __exit__(self, *_: object) -> None:
            calls.append(f"off {self}")

    class Event:
        def record(self, stream: Any) -> None:
            calls.append(f"event on {stream}")

        def synchronize(self) -> None:
            calls.append("host waits")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(f"loop on {device}"))
    image = torch.zeros(2).as_subclass(FakeTensor)
    image.calls = calls
    copies = CudaCopies(torch.device("cuda"))
    copied, mark = copies.copy({"image": image, "text": "x"})
    copies.wait(copied, mark)
    copies.record().synchronize()
    assert copied["text"] == "x"
    assert calls == [
        "on side of cuda:3",
        "pin",
        "to cuda:3 True",
        "event on side of cuda:3",
        "off side of cuda:3",
        "side of loop on cuda:3 waits",
        "held for side of loop on cuda:3",
        "event on side of loop on cuda:3",
        "host waits",
    ]


# On a GPU.


@on_gpu
@pytest.mark.parametrize("how", [{}, {"num_workers": 2}], ids=str)
@pytest.mark.parametrize("make", [streamed, by_index])
def test_on_a_gpu_the_same_batches(make: Any, how: dict[str, Any]) -> None:
    shards = example_shards(counts=COUNTS)
    with ais_loader(make(shards), seed=5, **how) as loader:
        expected = [plain(loader) for _ in range(2)]
    with ais_loader(make(shards), seed=5, device="cuda", pin_memory=True, **how) as loader:
        got = [[(keys, labels) for keys, labels in loader] for _ in range(2)]
    assert all(labels.is_cuda for epoch in got for _, labels in epoch)
    assert [plain(epoch) for epoch in got] == expected


@on_gpu
def test_on_a_gpu_no_batch_is_used_before_it_is_there_or_written_over_before_it_was_used() -> None:
    size = 4 << 20
    batches = [torch.full((size,), number, dtype=torch.int32) for number in range(24)]
    busy = torch.randn(4096, 4096, device="cuda")
    sums = []
    with ais_loader(Batches(batches), device="cuda") as loader:
        for batch in loader:
            for _ in range(8):
                busy = busy @ busy / busy.norm()  # the loop's stream is behind the host
            sums.append((batch == batch[0]).sum() * 1000 + batch[0])
            del batch
    assert torch.stack(sums).tolist() == [size * 1000 + number for number in range(24)]


@on_gpu
def test_on_a_gpu_memory_is_as_is_said() -> None:
    size = 16 << 20
    with ais_loader(Batches([torch.zeros(size, dtype=torch.uint8)] * 40), device="cuda") as loader:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        busy = torch.randn(4096, 4096, device="cuda")
        for batch in loader:
            for _ in range(4):
                busy = busy @ busy / busy.norm()
            busy[0, 0] += batch[0]
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before - 4 * busy.numel() * busy.element_size()
    assert peak <= (AHEAD + 2) * size


@on_gpu
def test_on_a_gpu_what_batches_are_made_of_stays() -> None:
    with ais_loader(Batches([nested()]), device="cuda") as loader:
        (copied,) = list(loader)
    assert type(copied["b"]) is Pair
    assert copied["e"].is_cuda
    assert not copied["e"].batch_sizes.is_cuda
    assert copied["a"][2][0].is_cuda
    assert (copied["a"][1], copied["c"], copied["d"]) == ("text", b"raw", 7)


@on_gpu
def test_on_a_gpu_images_are_normalised_there() -> None:
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    with ais_loader(Batches([(images, torch.arange(4))]), device="cuda", normalize=Normalize()) as loader:
        ((normal, labels),) = list(loader)
    assert normal.is_cuda
    assert labels.is_cuda
    torch.testing.assert_close(normal.cpu(), Normalize()(images))
