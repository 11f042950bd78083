"""Arguments of what reads by index that cannot be: told when they are given, by an error of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchdata_ais import AISSampleReader, Mixture, SampleIndex, Schedule, ais_loader
from torchdata_ais.errors import UsageError
from torchdata_ais.testing import example_shards, write_shard

NAN = float("nan")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> SampleIndex:
    return indexed(tmp_path_factory.mktemp("one"), 13)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> SampleIndex:
    return indexed(tmp_path_factory.mktemp("two"), 5)


def indexed(folder: Path, size: int) -> SampleIndex:
    return SampleIndex.build(write_shard(folder / "s.tar", {f"{n:02d}.cls": b"1" for n in range(size)}))


def loader(index: SampleIndex, **how: Any) -> Any:
    return ais_loader(AISSampleReader(index, shuffle="samples").to_tuple("__key__").batched(4), **how)


MIXTURES: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda one, two: {}, "A mixture of nothing"),
    (lambda one, two: 3, "A mixture without weights"),
    (lambda one, two: [one, two], "A mixture without weights"),
    (lambda one, two: [(0, one)], "A mixture without weights"),
    (lambda one, two: {one: NAN, two: 1}, "A weight of nan"),
    (lambda one, two: {one: np.float32(-1), two: 2.0}, "A weight of -1"),
    (lambda one, two: {one: True, two: 1}, "The weight True is no number"),
]


@pytest.mark.parametrize(("weights", "says"), MIXTURES)
def test_a_mixture_that_cannot_be_is_told(
    one: SampleIndex, two: SampleIndex, weights: Any, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        Mixture(weights(one, two))


def test_numbers_of_numpy_are_weights_and_positions(one: SampleIndex, two: SampleIndex) -> None:
    given: Any = {one: np.int32(1), two: np.uint8(3)}
    assert Mixture(given).weights == Mixture({one: 1, two: 3}).weights
    given = {one: np.float32(0.5), two: np.float64(0.5)}
    assert Mixture(given).weights == Mixture({one: 0.5, two: 0.5}).weights
    plain = Schedule(global_batch={7: 2}, weights={7: [1, 3]})
    assert Schedule(global_batch={np.int16(7): np.uint8(2)}, weights={np.int64(7): np.array([1, 3])}) == plain


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"tail": "long"}, "tail='long'"),
        ({"epoch_steps": 0}, "epoch_steps=0"),
        ({"epoch_steps": 1.5}, "epoch_steps=1.5"),
        ({"epoch_steps": True}, "epoch_steps=True"),
        ({"global_batch": "8"}, "global_batch='8'"),
        ({"seed": None}, "seed=None"),
        ({"rank_timeout_s": "x"}, "rank_timeout_s='x'"),
        ({"replica_check": "x"}, "replica_check='x'"),
        ({"mesh": 5}, "mesh= is a int"),
        ({"group": 5}, "group= is a int"),
    ],
)
def test_a_loader_that_cannot_be_is_told_when_it_is_made(
    one: SampleIndex, how: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        loader(one, **how)


@pytest.mark.parametrize(
    "how",
    [
        {"seed": "a"},
        {"seed": 1.5},
        {"epoch_steps": "4"},
        {"epoch_steps": 2.5},
        {"positions": [1.5]},
        {"positions": ["a"]},
        {"positions": [NAN]},
        {"positions": [True, False]},
        {"positions": np.zeros(0, dtype=np.int64)},
    ],
)
def test_a_reader_that_cannot_be_is_told_when_it_is_made(one: SampleIndex, how: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(how))}="):
        AISSampleReader(one, **how)


@pytest.mark.parametrize("allow", [5, None, ["x"], [5], {"seed"}])
def test_what_may_not_change_is_told(one: SampleIndex, allow: Any) -> None:
    with loader(one) as made, pytest.raises(UsageError, match="allow="):
        made.load_state_dict(made.state_dict(), allow=allow)


def test_numbers_too_large_to_count_are_told(one: SampleIndex) -> None:
    with loader(one) as made:
        made.set_epoch(1 << 62)
        with pytest.raises(UsageError, match="beyond what can be counted"):
            list(made)
        made.set_epoch(1 << 40)
        assert sum(len(keys) for (keys,) in made) == 13
    with (
        loader(one, global_batch=1 << 62, epoch_steps=1) as made,
        pytest.raises(UsageError, match="global_batch="),
    ):
        list(made)


def test_samples_that_two_indexes_have_are_refused_where_that_is_known(tmp_path: Path) -> None:
    index = SampleIndex.build(example_shards(tmp_path, (30, 20)))
    first, second, rest = index.select(range(30)), index.select(range(20, 40)), index.select(range(40, 50))
    for make in (
        lambda: Mixture({first: 1, second: 1}),
        lambda: Mixture({index: 1, rest: 1}),
    ):
        with pytest.raises(
            UsageError, match=r"1?0 samples are in two indexes of the mixture, numbers 0 and 1"
        ):
            make()
    with pytest.raises(
        UsageError, match=r"50 samples are in two of the indexes of concat\(\), numbers 0 and 1"
    ):
        SampleIndex.concat([index, index])
    with pytest.raises(UsageError, match="10 samples are in two"):
        Mixture({SampleIndex.concat([first, rest]): 1, second: 1})
    with pytest.raises(UsageError, match="10 samples are in two"):
        SampleIndex.concat([rest, first, second])
    assert len(SampleIndex.concat([first, rest])) == 40
    assert len(Mixture({first: 1, rest: 1}).sources) == 2
