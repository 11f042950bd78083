"""Images are made in the rows of the batch to come: nothing copies them together, and no two are in one place."""

from __future__ import annotations

import gc
import io
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from torchdata_ais.errors import DecodeError
from torchdata_ais.pipes import Batcher, SampleDecoder, SampleMapper, TupleMaker
from torchdata_ais.pipes.base.collate import BatchRows
from torchdata_ais.workers.memory import Lender, _File, borrow, give_back_done
from torchdata_ais.workers.pickling import pack, unpack

SIZE = 16


def picture(number: int, mode: str = "RGB") -> bytes:
    rng = np.random.default_rng(number)
    shape = (20 + number % 7, 24 + number % 5, 3)[: 3 if mode == "RGB" else 2]
    stream = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, shape, np.uint8)).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def samples(count: int, **more: Callable[[int], bytes]) -> list[dict[str, Any]]:
    return [
        {"__key__": f"{number}", "jpg": picture(number), "cls": b"%d" % number}
        | {name: make(number) for name, make in more.items()}
        for number in range(count)
    ]


def batches(source: list[dict[str, Any]], count: int, *fields: str, **how: Any) -> list[Any]:
    decoded = SampleDecoder(source, "torchrgb8", **({"size": SIZE} | how))
    return list(Batcher(TupleMaker(decoded, *(fields or ("jpg", "cls"))), count))


def stacked(source: list[dict[str, Any]], count: int, *fields: str, **how: Any) -> list[Any]:
    """The same, with a stage between the two that nothing is known of."""
    decoded = SampleDecoder(source, "torchrgb8", **({"size": SIZE} | how))
    return list(Batcher(TupleMaker(SampleMapper(decoded, dict), *(fields or ("jpg", "cls"))), count))


def same(ours: list[Any], others: list[Any]) -> bool:
    return len(ours) == len(others) and all(
        torch.equal(mine, other) and mine.is_contiguous()
        for one, another in zip(ours, others, strict=True)
        for mine, other in zip(one, another, strict=True)
    )


@pytest.fixture
def made_whole(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each column of images was the batch that its rows were made in."""
    seen: list[bool] = []
    whole = BatchRows.whole

    def noted(self: BatchRows, values: Any) -> torch.Tensor | None:
        found = whole(self, values)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(BatchRows, "whole", noted)
    return seen


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize(
    "how", [{}, {"size": None, "random_resized_crop": SIZE, "flip": 0.5}, {"size": None, "center_crop": SIZE}]
)
def test_batches_are_those_that_are_copied_together(
    how: dict[str, Any], threads: int, made_whole: list[bool]
) -> None:
    source = samples(37)
    torch.manual_seed(1)
    expected = stacked(source, 8, **how)
    assert made_whole == []
    torch.manual_seed(1)
    assert same(batches(source, 8, threads=threads, **how), expected)
    assert made_whole == [True] * 4 + [False]


def test_grey_pictures_and_masks_of_one_size_have_rows_too(made_whole: list[bool]) -> None:
    source = samples(10, **{"seg.jpg": lambda number: picture(number + 100)})
    assert same(batches(source, 4, "jpg", "seg.jpg"), stacked(source, 4, "jpg", "seg.jpg"))
    assert made_whole == [True] * 4 + [False] * 2
    grey = [{"__key__": "a", "jpg": picture(1, "L")}] * 3
    ours, others = (
        list(Batcher(make, 2)) for make in (SampleDecoder(grey, "torchl8", size=SIZE), grey_alone(grey))
    )
    assert [batch["jpg"].shape for batch in ours] == [(2, SIZE, SIZE), (1, SIZE, SIZE)]
    assert all(torch.equal(one["jpg"], other["jpg"]) for one, other in zip(ours, others, strict=True))


def grey_alone(source: list[dict[str, Any]]) -> Iterator[Any]:
    return iter(list(SampleDecoder(source, "torchl8", size=SIZE)))


def test_one_field_asked_for_twice_is_two_columns() -> None:
    for first, second in batches(samples(4), 2, "jpg", "jpg"):
        assert torch.equal(first, second)
        first.zero_()
        assert second.any()


def test_fields_that_take_turns_in_a_column_are_copied_together(made_whole: list[bool]) -> None:
    source = samples(6)
    for sample in source[::2]:
        sample["jpeg"] = sample.pop("jpg")
    assert same(batches(source, 3, "jpg;jpeg", "cls"), stacked(source, 3, "jpg;jpeg", "cls"))
    assert made_whole == [False, False]


@pytest.mark.parametrize("threads", [0, 2])
def test_a_sample_that_is_skipped_leaves_no_hole(threads: int, made_whole: list[bool]) -> None:
    source = samples(64)
    source[5]["jpg"] = b"\xff\xd8\xff broken"
    how = {"on_error": "skip", "threads": threads}
    assert same(batches(source, 8, **how), stacked(source, 8, on_error="skip"))
    if not threads:  # the next batch begins with a first row again
        assert made_whole == [False] + [True] * 6 + [False]


def test_an_error_names_the_sample_as_ever() -> None:
    source = samples(3)
    source[2]["jpg"] = b"\xff\xd8\xff broken"
    with pytest.raises(DecodeError, match="'2'"):
        batches(source, 2)


def test_a_batch_that_is_held_is_not_written_to_again() -> None:
    source = samples(40)
    pipe = Batcher(TupleMaker(SampleDecoder(source, "torchrgb8", size=SIZE), "jpg"), 4)
    held, seen = [], []
    for (images,) in pipe:
        held.append(images)
        seen.append(images.clone())
    assert all(torch.equal(one, other) for one, other in zip(held, seen, strict=True))
    assert len({images.data_ptr() for images in held}) == 10


def test_a_smaller_batch_has_no_memory_behind_it() -> None:
    *_, (images, _) = batches(samples(9), 8)
    assert images.shape[0] == 1
    assert images.untyped_storage().nbytes() == images.nbytes


def test_images_are_their_own_where_no_batch_is_made(made_whole: list[bool]) -> None:
    decoded = SampleDecoder(samples(4), "torchrgb8", size=SIZE)
    assert len(list(Batcher(TupleMaker(decoded, "jpg"), 2))) == 2
    images = [sample["jpg"] for sample in decoded]
    assert {image.untyped_storage().nbytes() for image in images} == {3 * SIZE * SIZE}
    assert made_whole == [True, True]


def test_lists_and_functions_of_the_user_get_images_of_their_own(made_whole: list[bool]) -> None:
    for collation in (None, list):
        decoded = SampleDecoder(samples(4), "torchrgb8", size=SIZE)
        for rows in Batcher(TupleMaker(decoded, "jpg"), 2, collation):
            assert {row[0].untyped_storage().nbytes() for row in rows} == {3 * SIZE * SIZE}
    assert made_whole == []


class _Memory:
    """The memory of a worker, and a receiver."""

    def __init__(self) -> None:
        self.lender = Lender()

    def made(self, fill: int, size: int = 1 << 16) -> torch.Tensor:
        block = self.lender.block(size)
        block[:] = fill
        return torch.from_numpy(block)

    def sent(self, tensor: torch.Tensor) -> torch.Tensor:
        received: torch.Tensor = unpack(pack(tensor, self.lender))
        return received


def address_of(tensor: torch.Tensor) -> int:
    return tensor.data_ptr()


def test_what_was_made_to_be_sent_is_sent_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = _Memory()
    tensor = memory.made(7)
    monkeypatch.setattr(Lender, "fill", lambda *_: pytest.fail("copied"))
    received = memory.sent(tensor)
    assert received.eq(7).all()
    tensor[0] = 9
    assert received[0] == 9  # the same pages


def test_it_is_used_again_only_when_both_sides_are_done() -> None:
    memory = _Memory()
    first = memory.made(1)
    place = address_of(first)
    received = memory.sent(first)
    second = memory.made(2)  # both hold the first
    del first
    gc.collect()
    third = memory.made(3)  # the receiver holds it
    assert place not in {address_of(second), address_of(third)}
    assert received.eq(1).all()
    del received
    gc.collect()
    give_back_done()
    assert address_of(memory.made(4)) == place
    assert second.eq(2).all()
    assert third.eq(3).all()


def test_the_sender_may_hold_it_longer_than_the_receiver() -> None:
    memory = _Memory()
    first = memory.made(1)
    del_me = memory.sent(first)
    del del_me
    gc.collect()
    give_back_done()
    assert address_of(memory.made(2)) != address_of(first)
    assert first.eq(1).all()


def test_what_is_not_sent_after_all_is_used_again() -> None:
    memory = _Memory()
    first = memory.made(1)
    place = address_of(first)
    del first
    assert address_of(memory.made(2)) == place


def test_sent_twice_it_is_two() -> None:
    memory = _Memory()
    tensor = memory.made(5)
    one, two = memory.sent(tensor), memory.sent(tensor)
    one.zero_()
    assert two.eq(5).all()


def test_a_part_of_it_travels_alone() -> None:
    memory = _Memory()
    tensor = memory.made(5, 1 << 20)
    few = memory.sent(tensor[:10])
    assert few.untyped_storage().nbytes() < 1 << 16
    assert few.eq(5).all()


def test_a_child_that_was_forked_keeps_what_it_sees() -> None:
    memory = _Memory()
    tensor = memory.made(6)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(write)
        os.read(read, 1)
        os._exit(0 if (tensor.numpy() == 6).all() else 1)  # torch's own threads are not here
    received = memory.sent(tensor)
    del tensor, received
    gc.collect()
    give_back_done()
    others = [memory.made(8) for _ in range(3)]  # one of them in the same place, if it were free
    os.write(write, b"x")
    assert len(others) == 3
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(read)
    os.close(write)


def none_left(*_: Any) -> Any:
    raise OSError(24, "Too many open files")


@pytest.mark.parametrize(
    "break_it",
    [
        lambda patch: patch.setattr(os, "memfd_create", none_left),
        lambda patch: patch.delattr(os, "memfd_create"),
        lambda patch: patch.setattr(_File, "map", none_left),
    ],
    ids=["descriptors", "memfd", "mappings"],
)
def test_without_what_it_needs_memory_is_ordinary(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    memory = _Memory()
    tensor = memory.made(3)
    assert tensor.eq(3).all()
    assert memory.lender.lend(tensor.data_ptr(), tensor.nbytes) is None
    monkeypatch.undo()
    assert memory.sent(tensor).eq(3).all()


def test_rows_in_such_memory_are_a_batch_in_it() -> None:
    memory = _Memory()
    rows = BatchRows(3, memory.lender.block)
    images = []
    for number in range(3):
        row = rows.take()("jpg", (3, 4, 4))
        assert row is not None
        row.fill_(number)
        images.append(row)
    batch = rows.whole(images)
    assert batch is not None
    received = memory.sent(batch)
    assert received[:, 0, 0, 0].tolist() == [0, 1, 2]
    received.zero_()
    assert not batch.any()
    assert rows.whole(images) is None  # it was given


def test_borrowed_memory_is_that_of_the_length_asked_for() -> None:
    lender = Lender()
    block: NDArray[np.uint8] = lender.block(70_001)
    fd = lender.lend(block.ctypes.data, block.nbytes)
    assert fd is not None
    assert lender.lend(block.ctypes.data, block.nbytes) is None
    assert borrow(fd).nbytes == 70_001
    os.close(fd)
    lender.close()
    assert block.nbytes == 70_001
