"""``set_epoch(n)`` gives epoch n, every time, or raises; ``len`` is of the whole epoch, ``steps_left`` of the rest."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from torch.utils.data import DataLoader

from torchdata_ais import AISSampleReader, AISSourceLister, Mixture, SampleIndex, ais_loader, as_dataset
from torchdata_ais.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.planned.batches import plan_of
from torchdata_ais.testing import example_shards

ORDER = (0, 0, 2, 1, 1, 0)


@pytest.fixture(scope="module")
def index() -> SampleIndex:
    return SampleIndex.build(example_shards(counts=(12, 20, 9)))


SHARDS: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    SHARDS[:] = example_shards(tmp_path_factory.mktemp("shards"), (4, 4, 4))
    yield
    SHARDS.clear()


def planned(index: Any, **how: Any) -> Any:
    return AISSampleReader(index, shuffle="samples", **how).decode().to_tuple("cls").batched(4)


def stream() -> Any:
    return AISSourceLister(SHARDS).shuffle().load_tar().group_samples().decode().to_tuple("cls").batched(2)


def rows(batches: Any) -> list[list[int]]:
    return [batch[0].tolist() for batch in batches]


def epochs_of(loader: Any, setter: Any, order: Any = ORDER) -> Iterator[tuple[int, list[list[int]]]]:
    """Yield the epochs; in the middle of each another one is set, which the next call takes back."""
    for epoch in order:
        setter.set_epoch(epoch)
        got = []
        for batch in loader:
            got.append(batch[0].tolist())
            if len(got) == 2:
                setter.set_epoch(7)
        yield epoch, got


CASES = [
    pytest.param(*case, marks=[] if case[0] == 0 or case == (1, "index") else pytest.mark.ci)
    for case in product((0, 1, 2), ("index", "mixture", "stream"))
]


@pytest.mark.parametrize(("workers", "kind"), CASES)
def test_ais_loader(index: SampleIndex, workers: int, kind: str) -> None:
    other = SampleIndex.build(example_shards(counts=(9,)))

    def make() -> Any:
        if kind == "stream":
            return stream()
        return planned(index if kind == "index" else Mixture({index: 1, other: 1}))

    how: dict[str, Any] = {"num_workers": workers, "seed": 3}
    with ais_loader(make(), **how) as loader:
        plain = [rows(loader) for _ in range(3)]
        assert plain[0] != plain[1]
        for epoch, got in epochs_of(loader, loader):
            assert got == plain[epoch]
            assert loader.epoch == epoch
        loader.set_epoch(1)
        next(iter(loader))  # an epoch that is left
        loader.set_epoch(1)
        assert rows(loader) == plain[1]


LOADERS: dict[str, Any] = {
    "bare": lambda pipe: pipe,
    "DataLoader2": DataLoader2,
    "service of 0": lambda pipe: DataLoader2(pipe, reading_service=MultiProcessingReadingService(0)),
    "service of 2": lambda pipe: DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)),
    "service of 1, spawn": lambda pipe: DataLoader2(
        pipe, reading_service=MultiProcessingReadingService(1, "spawn")
    ),
    "torch, 0": lambda pipe: DataLoader(pipe, batch_size=None),
    "torch, 2": lambda pipe: DataLoader(pipe, batch_size=None, num_workers=2),
    "torch, 2 that stay": lambda pipe: DataLoader(
        pipe, batch_size=None, num_workers=2, persistent_workers=True
    ),
    "torch, spawn, 1 that stays": lambda pipe: DataLoader(
        pipe, batch_size=None, num_workers=1, persistent_workers=True, multiprocessing_context="spawn"
    ),
    "dataset, 2 that stay": lambda pipe: DataLoader(
        as_dataset(pipe), batch_size=None, num_workers=2, persistent_workers=True
    ),
}
LONG = ("service of 1, spawn", "torch, 2", "torch, spawn, 1 that stays", "dataset, 2 that stay")


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.ci) if one in LONG else one for one in LOADERS]
)
def test_the_reader_under_other_loaders(index: SampleIndex, name: str) -> None:
    plain = planned(index)
    expected = [rows(plain) for _ in range(3)]
    pipe = planned(index)
    loader = LOADERS[name](pipe)
    try:
        for epoch, got in epochs_of(loader, plan_of(pipe)):
            assert got == expected[epoch]
    finally:
        if isinstance(loader, DataLoader2):
            loader.shutdown()


@pytest.mark.quick(3)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("make", [stream, None])
def test_as_dataset(index: SampleIndex, workers: int, keep: bool, make: Any) -> None:
    if keep and not workers:
        return

    def loader() -> Any:
        data = as_dataset(make() if make else planned(index), seed=5)
        return DataLoader(data, batch_size=None, num_workers=workers, persistent_workers=keep), data

    expected = []
    for epoch in range(3):
        running, data = loader()
        data.set_epoch(epoch)
        expected.append(rows(running))
    running, data = loader()
    for epoch, got in epochs_of(running, data):
        assert got == expected[epoch]


# After a state was loaded


@pytest.mark.parametrize("kind", ["index", "stream", "steps of an index", "steps of a stream"])
def test_after_load_state_dict_another_epoch_is_an_error_until_that_one_is_finished(
    index: SampleIndex, kind: str
) -> None:
    how = {"epoch_steps": 5} if "steps" in kind else {}

    def make() -> Any:
        return stream() if "stream" in kind else planned(index)

    with ais_loader(make(), **how) as loader:
        plain = [rows(loader), rows(loader)]
    with ais_loader(make(), **how) as loader:
        items = iter(loader)
        next(items)
        state = loader.state_dict()
        items.close()
        rest = plain[0][1:]
    with ais_loader(make(), **how) as loader:
        loader.load_state_dict(state)
        with pytest.raises(UsageError, match=r"set_epoch\(5\).* of epoch 0, .*set_epoch\(0\)"):
            loader.set_epoch(5)
        loader.set_epoch(0)
        assert rows(loader) == rest
        assert loader.epoch == 0
        assert rows(loader) == plain[1]
        if kind == "steps of a stream":
            loader.set_epoch(2)
            with pytest.raises(UsageError, match=r"set_epoch\(1\) of a stream .* next epoch is 2"):
                loader.set_epoch(1)
        else:
            loader.set_epoch(1)
            assert rows(loader) == plain[1]
            loader.set_epoch(0)
            assert rows(loader) == plain[0]


@pytest.mark.parametrize("kind", ["index", "stream"])
def test_after_a_state_between_epochs_any_epoch_can_be_set(index: SampleIndex, kind: str) -> None:
    def make() -> Any:
        return stream() if kind == "stream" else planned(index)

    with ais_loader(make()) as loader:
        plain = [rows(loader)]
        state = loader.state_dict()
        plain += [rows(loader), rows(loader)]
    for epoch in (0, 1, 2):
        with ais_loader(make()) as loader:
            loader.load_state_dict(state)
            loader.set_epoch(epoch)
            assert rows(loader) == plain[epoch]
            assert loader.epoch == epoch


def test_after_load_state_dict_a_dataset_takes_its_own_epoch_only(index: SampleIndex) -> None:
    for make in (lambda: planned(index), stream):
        data = as_dataset(make())
        data.set_epoch(3)
        whole = rows(data)
        items = iter(data)
        next(items)
        state = data.state_dict()
        items.close()
        data = as_dataset(make())
        data.load_state_dict(state)
        data.set_epoch(4)
        with pytest.raises(UsageError, match=r"set_epoch\(4\)"):
            rows(data)
        data = as_dataset(make())
        data.load_state_dict(state)
        data.set_epoch(3)
        assert rows(data) == whole[1:]
        assert rows(data) == whole
    pipe = planned(index)
    data = as_dataset(pipe)
    items = iter(data)
    next(items)
    state = data.state_dict()
    items.close()
    data.load_state_dict(state)
    plan_of(pipe).set_epoch(2)  # type: ignore[union-attr]
    with pytest.raises(UsageError, match=r"set_epoch\(2\)"):
        rows(data)


def test_an_epoch_that_began_before_a_change_cannot_be_given_again(index: SampleIndex) -> None:
    with ais_loader(planned(index)) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with ais_loader(planned(index), global_batch=3) as loader:
        loader.load_state_dict(state, allow={"batch"})
        rest = rows(loader)
        loader.set_epoch(0)
        with pytest.raises(UsageError, match="Epoch 0 begins before the change at the resume"):
            next(iter(loader))
        loader.set_epoch(1)
        assert len(rows(loader)) == 14
    assert len(rest) == 13


# How many


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.ci)])
def test_len_is_of_the_whole_epoch_and_steps_left_of_what_is_left(index: SampleIndex, workers: int) -> None:
    def make(batch: int = 4, **how: Any) -> Any:
        return ais_loader(planned(index), global_batch=batch, num_workers=workers, **how)

    with make() as loader:  # 41 samples: 11 steps
        assert (len(loader), loader.steps_left) == (11, 11)
        states = []
        for number, _ in enumerate(loader):
            assert (len(loader), loader.steps_left) == (11, 10 - number if number < 10 else 0)
            states.append(loader.state_dict())
        assert (len(loader), loader.steps_left) == (11, 11)
    for done in (1, 4, 10):
        with make() as loader:
            loader.load_state_dict(states[done - 1])
            assert (len(loader), loader.steps_left) == (11, 11 - done)
            assert len(rows(loader)) == 11 - done
        with make(7) as loader:
            loader.load_state_dict(states[done - 1], allow={"batch"})
            left = -(-(41 - 4 * done) // 7)
            assert (len(loader), loader.steps_left) == (done + left, left)
            items = iter(loader)
            next(items)
            assert (len(loader), loader.steps_left) == (done + left, left - 1)
            state = loader.state_dict()
            assert len(rows(items)) == left - 1
            assert (len(loader), loader.steps_left) == (6, 6)
        with make(7) as loader:
            loader.load_state_dict(state)
            assert (len(loader), loader.steps_left) == ((done + left, left - 1) if left > 1 else (6, 6))


def test_steps_left_of_a_stream_with_a_number_of_steps() -> None:
    with ais_loader(stream(), epoch_steps=4) as loader:
        assert (len(loader), loader.steps_left) == (4, 4)
        items = iter(loader)
        next(items)
        assert loader.steps_left == 3
        state = loader.state_dict()
    with ais_loader(stream(), epoch_steps=4) as loader:
        loader.load_state_dict(state)
        assert (len(loader), loader.steps_left) == (4, 3)
        assert len(rows(loader)) == 3
        assert loader.steps_left == 4
    with ais_loader(stream()) as loader, pytest.raises(TypeError, match="not known before"):
        _ = loader.steps_left
