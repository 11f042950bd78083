"""``.batched(ragged=)``: what becomes of arrays of different shapes in one column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from torchdata_ais.errors import UsageError
from torchdata_ais.pipes import Batcher


def rows(kind: type[Any] = torch.Tensor) -> list[tuple[Any, int]]:
    values = [np.arange(1, 3).reshape(1, 2), np.arange(3, 6).reshape(3, 1), np.full((2, 2), 7)]
    return [
        (torch.from_numpy(value) if kind is torch.Tensor else value, place)
        for place, value in enumerate(values)
    ]


@pytest.mark.parametrize("kind", [torch.Tensor, np.ndarray])
def test_pad_appends_zeros_up_to_the_largest_extent_of_each_dimension(kind: type[Any]) -> None:
    ((padded, places),) = Batcher(rows(kind), 3, ragged="pad")
    assert padded.tolist() == [
        [[1, 2], [0, 0], [0, 0]],
        [[3, 0], [4, 0], [5, 0]],
        [[7, 7], [7, 7], [0, 0]],
    ]
    assert padded.dtype == torch.int64
    assert places.tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bool, torch.bfloat16])
def test_pad_keeps_the_type(dtype: torch.dtype) -> None:
    ((padded,),) = Batcher([(torch.ones(2, dtype=dtype),), (torch.ones(1, dtype=dtype),)], 2, ragged="pad")
    assert padded.dtype == dtype
    assert padded.to(torch.float32).tolist() == [[1, 1], [1, 0]]


@pytest.mark.parametrize("kind", [torch.Tensor, np.ndarray])
def test_list_gives_the_tensors_themselves(kind: type[Any]) -> None:
    ((values, places),) = Batcher(rows(kind), 3, ragged="list")
    assert isinstance(values, list)
    assert [value.tolist() for value in values] == [value.tolist() for value, _ in rows(kind)]
    assert all(isinstance(value, torch.Tensor) for value in values)
    assert torch.is_tensor(places)


@pytest.mark.parametrize("ragged", ["error", "list", "pad"])
def test_equal_shapes_are_stacked_in_any_case(ragged: Any) -> None:
    ((stacked,),) = Batcher([(torch.ones(2),), (torch.zeros(2),)], 2, ragged=ragged)
    assert stacked.tolist() == [[1, 1], [0, 0]]


def test_fields_of_dicts_and_nested_rows_are_padded_each_by_itself() -> None:
    samples = [{"a": torch.ones(n), "b": (torch.ones(2), torch.ones(1, n))} for n in (1, 3)]
    (batch,) = Batcher(samples, 2, ragged="pad")
    assert batch["a"].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert batch["b"][0].shape == (2, 2)
    assert batch["b"][1].tolist() == [[[1, 0, 0]], [[1, 1, 1]]]


@pytest.mark.parametrize("options", [{}, {"ragged": "error"}])
def test_without_it_they_are_an_error_that_names_the_column(options: dict[str, Any]) -> None:
    with pytest.raises(
        UsageError, match=r"different shapes.*\(1, 2\).*in column '0'.*ragged=|ragged=.*in column '0'"
    ):
        list(Batcher(rows(), 3, **options))


def test_other_numbers_of_dimensions_cannot_be_padded() -> None:
    values = [(torch.ones(2),), (torch.ones(2, 2),)]
    with pytest.raises(UsageError, match="different shapes"):
        list(Batcher(values, 2, ragged="pad"))
    ((made,),) = Batcher(values, 2, ragged="list")
    assert [value.ndim for value in made] == [1, 2]
    with pytest.raises(UsageError, match=r'ragged=.*Pass "error", "list" or "pad"'):
        Batcher([], 2, ragged="zeros")  # type: ignore[arg-type]
