"""How items cross from a worker to the main process: tensors in shared memory, equal values, nothing left open."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from service_pipes import numbers
from service_sessions import session

from torchdata_ais.dataloader2 import DataLoader2
from torchdata_ais.loaders import MultiProcessingReadingService
from torchdata_ais.workers.channel import Channel, HungUpError, Kind
from torchdata_ais.workers.memory import Lender, give_back_done
from torchdata_ais.workers.pickling import pack, unpack


def descriptors() -> int:
    give_back_done()
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def there_and_back(value: Any) -> Any:
    return unpack(pack(value))


def views_of_one() -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.arange(1000.0)
    return whole[:500], whole[500:]


VALUES: list[Callable[[], Any]] = [
    lambda: None,
    lambda: ("text", 3, 2.5, b"bytes", [1, {2: 3}]),
    lambda: b"x" * 3_000_000,
    lambda: {"text": "y" * 200_000, "more": list(range(50_000))},
    lambda: torch.arange(10),
    lambda: torch.zeros(0, 3),
    lambda: torch.tensor(1.5),
    lambda: torch.rand(3, 500, 500).transpose(0, 2),
    lambda: torch.rand(4, 4).to(torch.bfloat16),
    lambda: torch.rand(10_000)[17],
    lambda: torch.rand(1000, 1000)[::7, 3:5],
    lambda: torch.rand(8).share_memory_(),
    views_of_one,
    lambda: [torch.full((2,), index) for index in range(300)],
    lambda: torch.nn.Parameter(torch.rand(3)),
    lambda: torch.rand(3, requires_grad=True),
    lambda: torch.rand(5).to_sparse(),
    lambda: torch.ones(3, dtype=torch.bool),
    lambda: np.arange(5),
    lambda: np.random.default_rng(0).random((300, 300)),
    lambda: np.asfortranarray(np.random.default_rng(0).random((300, 300))),
    lambda: np.random.default_rng(0).random((500, 500))[::3, ::2],
    lambda: np.array(["a", None, 3], dtype=object),
    lambda: {
        "image": torch.rand(64, 3, 32, 32),
        "mask": np.zeros((64, 32, 32), np.uint8),
        "name": ["a"] * 64,
    },
]


def same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.requires_grad == right.requires_grad and _equal(left, right)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def _equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(
        left.to_dense() if left.is_sparse else left, right.to_dense() if right.is_sparse else right
    )


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("make", VALUES)
def test_any_value_comes_back_equal_and_no_descriptor_stays_open(make: Callable[[], Any]) -> None:
    value = make()
    same(there_and_back(value), value)  # torch and the allocator open what they keep
    before = descriptors()
    assert same(there_and_back(value), value)
    assert descriptors() <= before  # the collector may have closed some of an earlier test


def test_tensors_and_arrays_arrive_without_a_copy_and_can_be_written() -> None:
    before = mapped()
    tensor, array = there_and_back((torch.zeros(100_000), np.zeros(100_000)))
    assert mapped() == before + 2
    tensor += 1
    array += 1
    assert tensor.sum() == array.sum() == 100_000
    del tensor, array
    assert mapped() == before


def mapped() -> int:
    give_back_done()
    return Path("/proc/self/maps").read_text().count("memfd:torchdata_ais")


def states(lender: Lender) -> list[int]:
    return [file.head[0] for file in lender._files]


def test_memory_is_used_again_when_nothing_refers_to_it_and_not_before() -> None:
    lender = Lender()
    first = unpack(pack(torch.zeros(100_000), lender))
    part = first[7:9].numpy()
    del first
    second = unpack(pack(torch.ones(100_000), lender))
    assert len(states(lender)) == 2
    assert part.tolist() == [0, 0]
    del part
    give_back_done()
    third = unpack(pack(torch.full((100_000,), 2.0), lender))
    assert len(states(lender)) == 2
    assert second.unique().tolist() == [1]
    assert third.unique().tolist() == [2]
    lender.close()
    assert second.unique().tolist() == [1]  # what is lent stays


def test_arrays_inside_others_keep_their_memory() -> None:
    lender = Lender()
    array = unpack(pack({"a": np.arange(100_000)}, lender))["a"].reshape(100, 1000)[3:5]
    unpack(pack(np.zeros(100_000), lender))
    assert array.ravel().tolist() == list(range(3000, 5000))


def test_what_is_copied_or_dropped_goes_back_at_once() -> None:
    lender = Lender()
    for _ in range(3):
        assert unpack(pack([b"x" * 50_000] * 3, lender)) == [b"x" * 50_000] * 3
        pack(torch.zeros(50_000), lender).drop()
    assert states(lender) == [0, 0]


def test_what_a_forked_child_may_see_is_never_written_again() -> None:
    lender = Lender()
    held = [unpack(pack(torch.zeros(100_000), lender))]
    ready, done = multiprocessing.Pipe(), multiprocessing.Pipe()

    def child() -> None:
        ready[1].recv()  # the parent has let go and sent something else
        done[1].send(held[0].numpy().sum())  # torch's threads do not exist in a fork

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    held.clear()
    give_back_done()
    other = unpack(pack(torch.ones(100_000), lender))
    ready[0].send(None)
    assert done[0].poll(60)
    assert done[0].recv() == 0
    process.join(60)
    assert process.exitcode == 0
    assert other.sum() == 100_000


def test_few_free_files_are_kept() -> None:
    lender = Lender()
    held = [unpack(pack(torch.full((20_000 * (number + 1),), number), lender)) for number in range(20)]
    assert all(tensor.eq(number).all() for number, tensor in enumerate(held))
    del held
    give_back_done()
    unpack(pack(torch.zeros(20_000), lender))
    assert len(lender._files) <= 9


def give_back_until_interrupted(answers: Any) -> None:
    lost: list[Any] = []
    sys.unraisablehook = lost.append
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    lender, met, dice = Lender(), 0, random.Random(0)
    for _ in range(150):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.001 + dice.random() / 1000)
            for _ in range(10_000):
                unpack(pack(torch.zeros(2000), lender))
                give_back_done()
        except KeyboardInterrupt:
            met += 1
    answers.put((met, len(lost)))


def test_promise_6_a_ctrl_c_while_memory_is_given_back_is_not_lost() -> None:
    with session(give_back_until_interrupted) as process:
        assert process.answers.get() == (150, 0)


def test_a_small_view_does_not_drag_its_whole_storage_along() -> None:
    view = torch.zeros(1_000_000)[:10]
    assert there_and_back(view).untyped_storage().nbytes() == 40
    assert view.untyped_storage().nbytes() == 4_000_000


def test_a_value_that_does_not_pickle_leaves_no_descriptor_open() -> None:
    before = descriptors()
    with pytest.raises(Exception, match="pickle"):
        pack([torch.zeros(1000), np.zeros(100_000), lambda: 1])
    assert descriptors() <= before  # the collector may have closed some of an earlier test


def test_a_dropped_message_frees_its_memory() -> None:
    before = descriptors()
    left, sock = Channel.pair()
    right = Channel(sock)
    for _ in range(3):
        left.post(Kind.ITEM, load=torch.zeros(1000))
    first = right.receive()
    assert first is not None
    first.drop()
    right.close()  # two were never taken
    left.close()
    assert descriptors() <= before  # the collector may have closed some of an earlier test


def test_messages_keep_their_order_and_their_own_descriptors() -> None:
    left, sock = Channel.pair()
    right = Channel(sock)
    sent = [
        torch.full((3,), index) if index % 3 else ("plain", index, b"z" * index * 1000) for index in range(60)
    ]
    received = []
    for index, value in enumerate(sent):
        left.post(Kind.ITEM, load=value)
        if index % 7 == 6:
            while (message := right.receive()) is not None:
                received.append(message.load())
    while (message := right.receive()) is not None:
        received.append(message.load())
    assert same(received, sent)
    left.hang_up()
    with pytest.raises(EOFError):
        right.receive()
    with pytest.raises(HungUpError):
        right.post(Kind.ITEM, load=1)
    right.close()


@pytest.mark.parametrize("cut_at", [1, 10, 21, 22, 23, 40])
def test_a_message_cut_off_at_any_byte_is_the_end_and_not_an_item(cut_at: int) -> None:
    left, sock = Channel.pair()
    whole_left, whole_sock = Channel.pair()
    whole_left.post(Kind.ITEM, load="some text of an item that is long enough")
    whole = whole_sock.recv(4096)
    sock.sendall(whole[:cut_at])
    sock.close()
    with pytest.raises(EOFError):
        left.receive()
    for end in (left, whole_left, whole_sock):
        end.close()


def batch(number: int) -> dict[str, Any]:
    return {
        "image": torch.full((16, 3, 64, 64), number, dtype=torch.uint8),
        "array": np.full((300, 300), number),
        "bytes": bytes([number]) * 200_000,
        "number": number,
    }


@pytest.mark.parametrize("prefetch", [0, 10])
def test_large_batches_arrive_whole_and_nothing_is_left_open(prefetch: int) -> None:
    before = descriptors()
    with DataLoader2(
        numbers(20).map(batch), reading_service=MultiProcessingReadingService(2, None, prefetch, prefetch)
    ) as loader:
        for _ in range(2):
            for number, item in enumerate(loader):
                assert same(item, batch(number))
        assert mapped() > 0
        iterator = iter(loader)
        next(iterator)
    del item, iterator, loader  # torch's hook around every generator keeps the last item
    assert descriptors() <= before  # the collector may have closed some of an earlier test


def test_items_in_shared_memory_outlive_their_worker() -> None:
    with DataLoader2(numbers(4).map(batch), reading_service=MultiProcessingReadingService(2)) as loader:
        items = list(loader)
    assert all(same(item, batch(number)) for number, item in enumerate(items))


def append_line(number: int) -> int:
    with Path(os.environ["SERVICE_TEST_DIARY"]).open("a") as file:
        file.write(f"{number}\n")
    return number


@pytest.mark.parametrize(("worker_cnt", "main_cnt"), [(0, 0), (3, 0), (0, 4), (5, 5)])
def test_no_worker_runs_further_ahead_than_its_prefetch_counts_allow(
    worker_cnt: int, main_cnt: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diary = tmp_path / "made"
    monkeypatch.setenv("SERVICE_TEST_DIARY", str(diary))
    service = MultiProcessingReadingService(2, None, worker_cnt, main_cnt)
    with DataLoader2(numbers(200).map(append_line), reading_service=service) as loader:
        items = iter(loader)
        for taken in range(1, 40):
            next(items)
            made = len(diary.read_text().splitlines())
            assert made <= taken + 2 * (worker_cnt + -(-main_cnt // 2) + 1)
