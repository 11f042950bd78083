"""Batches to items and lists to items, and stages about length and number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.batched import Batcher, ListBatcher, Unbatcher, Unlister
from torchdata_ais.pipes.select import Slicer
from torchdata_ais.pipes.unchanged import LengthSetter, NonEmpty, SingleNodeOnly
from torchdata_ais.state import StageState


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_unbatched_is_the_reverse_of_batched(size: int) -> None:
    rows = [{"n": n, "txt": str(n), "box": {"w": n * 2}} for n in range(7)]
    made = list(Unbatcher(Batcher(rows, size)))
    assert [{"n": int(m["n"]), "txt": m["txt"], "box": {"w": int(m["box"]["w"])}} for m in made] == rows


def test_unbatched_takes_arrays_and_tensors_apart() -> None:
    images, labels = torch.arange(6).reshape(3, 2), np.array([7, 8, 9])
    made = list(Unbatcher([(images, labels)]))
    assert [(image.tolist(), int(label)) for image, label in made] == [([0, 1], 7), ([2, 3], 8), ([4, 5], 9)]
    assert [row.tolist() for row in Unbatcher([images])] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (([1, 2], [1]), "different lengths"),
        ({"a": [1], "b": {"c": [1, 2]}}, "different lengths"),
        ((), "no columns"),
        (5, "no column"),
        ((torch.tensor(5),), "no column"),
    ],
)
def test_what_is_no_batch_is_an_error(batch: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        list(Unbatcher([batch]))


@pytest.mark.parametrize(("partial", "expected"), [(True, [[0, 1], [2, 3], [4]]), (False, [[0, 1], [2, 3]])])
def test_listed_makes_lists_and_obeys_partial(partial: bool, expected: list[list[int]]) -> None:
    assert list(ListBatcher(range(5), 2, partial)) == expected


def test_unlisted_is_the_reverse_of_listed() -> None:
    assert list(Unlister(ListBatcher(range(7), 3))) == list(range(7))


def test_unlisted_refuses_what_is_no_list() -> None:
    with pytest.raises(UsageError, match="not a list"):
        list(Unlister([(1, 2)]))


@pytest.mark.parametrize("bounds", [(3,), (2, None), (None,), (1, 8, 3), (0,), (20, 30)])
def test_a_slice_is_that_of_a_list(bounds: tuple[int | None, ...]) -> None:
    assert list(Slicer(range(10), *bounds)) == list(range(10))[slice(*bounds)]


@pytest.mark.parametrize("bounds", [(), (-1,), (1, 2, 0), ("3",), (1, 2, 3, 4)])
def test_bounds_that_are_none_are_a_usage_error(bounds: Any) -> None:
    with pytest.raises(UsageError, match="slice_samples"):
        Slicer([], *bounds)


def test_a_full_slice_takes_nothing_more_from_its_source() -> None:
    taken = []

    def source() -> Any:
        for n in range(10):
            taken.append(n)
            yield n

    assert list(Slicer(source(), 2)) == [0, 1]
    assert taken == [0, 1]


def test_with_length_changes_the_length_and_nothing_else() -> None:
    pipe = LengthSetter(range(3), 1000)
    assert len(pipe) == 1000
    assert list(pipe) == [0, 1, 2]


def test_non_empty_after_a_resume_has_had_its_items() -> None:
    pipe = NonEmpty([])
    pipe.load_state(StageState(0), 0)
    assert list(pipe) == []
    with pytest.raises(UsageError, match="no items at all"):
        list(pipe)


def test_single_node_only_raises_in_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="2 ranks"):
        list(SingleNodeOnly([1]))


def test_single_node_only_remembers_the_ranks_where_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    pipe = SingleNodeOnly([1])
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(UsageError, match="2 ranks"):
        list(pipe)


def test_a_function_of_the_user_that_fails_on_a_batch_has_the_stage_in_its_note() -> None:
    def fail(rows: Any) -> Any:
        raise KeyError("nothing")

    with pytest.raises(KeyError) as caught:
        list(Batcher([{"__key__": "a", "__url__": "s.tar", "cls": 1}], 2, fail))
    assert caught.value.__notes__ == ["in .batched(), in the sample with key 'a', url 's.tar'"]
