"""Stages in an order that cannot work are refused with the stage, the item it got, and what goes before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchdata_ais import AISSourceLister
from torchdata_ais.errors import UsageError
from torchdata_ais.testing import example_shards


def shards() -> Any:
    return AISSourceLister(example_shards())


def samples() -> Any:
    return shards().load_tar().group_samples()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: shards().group_samples(),
            r"group_samples\(\) was given .* ObjectURL.*Put \.load_tar\(\) before",
        ),
        (lambda: samples().group_samples(), r"group_samples\(\) was given .* Sample"),
        (
            lambda: samples().decode().to_tuple("cls", "txt").group_samples(),
            r"group_samples\(\) was given .* tuple",
        ),
        (lambda: samples().to_tuple("cls").group_samples(), r"group_samples\(\) was given .* tuple"),
        (
            lambda: shards().load_tar().to_tuple("cls"),
            r"to_tuple\(\) was given .* tuple.*Put \.group_samples\(\) before",
        ),
        (lambda: shards().to_tuple("cls"), r"to_tuple\(\) was given .* ObjectURL"),
        (lambda: samples().to_tuple("cls").to_tuple("cls"), r"to_tuple\(\) only once"),
        (lambda: shards().to_tuple("cls", missing=0, on_error="skip"), r"to_tuple\(\) was given"),
        (lambda: samples().batched(2).decode(), r"given a batch.*Put \.decode\(\) before \.batched\(\)"),
        (lambda: samples().batched(2).decode(on_error="skip"), r"given a batch"),
        (lambda: samples().load_tar(), r"type Sample is no URL.*behind \.list_ais\(\)"),
    ],
)
def test_a_wrong_order_is_a_usage_error_that_says_the_right_one(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        list(make())


def test_a_stage_can_have_a_keyword_named_cls() -> None:
    """torch's own way to make stages has a parameter of that name, and WebDataset's commonest field has it, too."""
    assert [sample["cls"] for sample in samples().map_dict(cls=int)] == [0, 1, 2, 3, 4, 5]
