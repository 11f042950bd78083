"""Values that are as good as the kind that an annotation names are taken; others are told."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from torchdata_ais._util.arguments import checked
from torchdata_ais.errors import ArgumentError


@checked
def take(
    *,
    text: str = "",
    number: int = 0,
    share: float = 0.0,
    numbers: Sequence[int] = (),
    names: list[str] | None = None,
    table: dict[str, Any] | None = None,
    data: bytes = b"",
    items: Iterable[Any] = (),
    function: Callable[[Any], Any] | None = None,
    options: Mapping[str, int] | None = None,
) -> str:
    return os.fspath(text)


@pytest.mark.parametrize(
    "given",
    [
        {"text": Path("a")},
        {"text": np.str_("a")},
        {"number": np.int64(1), "share": np.float32(0.5)},
        {"number": torch.tensor(1), "share": 1},
        {"numbers": np.arange(3)},
        {"numbers": torch.arange(3)},
        {"numbers": range(3), "names": ("a", "b")},
        {"table": MappingProxyType({}), "options": MappingProxyType({})},
        {"data": bytearray(b"1")},
        {"data": memoryview(b"1")},
        {"items": iter([1])},
        {"items": {1: 2}.values(), "function": len},
    ],
    ids=lambda given: " ".join(f"{name}={type(value).__name__}" for name, value in given.items()),
)
def test_what_is_as_good_is_taken(given: dict[str, Any]) -> None:
    take(**given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"text": 5}, "text"),
        ({"number": "5"}, "a whole number"),
        ({"numbers": 5}, "a list"),
        ({"names": "ab"}, "a list"),
        ({"table": [1]}, "a dict"),
        ({"function": 5}, "a function"),
    ],
    ids=str,
)
def test_what_is_not_is_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ArgumentError, match=f"Pass {told}"):
        take(**given)


@checked
def broken(path: str, error: type[Exception]) -> None:
    raise error(f"{path} is full")


@pytest.mark.parametrize("error", [OSError, ValueError, RuntimeError])
def test_what_fails_for_another_reason_says_its_own(error: type[Exception]) -> None:
    with pytest.raises(error, match="is full"):
        broken(PurePosixPath("x"), error)  # type: ignore[arg-type]


def test_what_fails_by_the_kind_says_the_kind() -> None:
    with pytest.raises(ArgumentError, match="this is a PurePosixPath"):
        broken(PurePosixPath("x"), TypeError)  # type: ignore[arg-type]
