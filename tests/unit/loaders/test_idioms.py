"""What people write who come from torch's DataLoader: it works, or the message says what to write."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from torchdata_ais import AISSampleReader, AISSourceLister, Mixture, SampleDataset, SampleIndex, ais_loader
from torchdata_ais.errors import LoaderError, StateError, UsageError
from torchdata_ais.testing import example_shards


def stream(paths: list[str]) -> Any:
    return AISSourceLister(paths).shuffle().load_tar().group_samples().decode().to_tuple("cls").batched(4)


def by_index(paths: list[str]) -> Any:
    reader = AISSampleReader(SampleIndex.build(paths), shuffle="samples")
    return reader.decode().to_tuple("cls").batched(4)


@pytest.mark.quick(2)
@pytest.mark.parametrize("make", [stream, by_index])
@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_resumes_sets_epochs_and_ends(make: Any, workers: int) -> None:
    paths = example_shards(counts=(10, 10))

    def taken(loader: Any, count: int, stop: int | None = None) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for epoch in loader.epochs(count):
            for step, (batch,) in enumerate(loader):
                found.setdefault(epoch, []).extend(batch.tolist())
                if epoch == 1 and step == stop:
                    return found
        return found

    with ais_loader(make(paths), seed=3, num_workers=workers) as loader:
        whole = taken(loader, 3)
        assert list(loader.epochs(3)) == []
    assert list(whole) == [0, 1, 2]
    assert all(sorted(epoch) == list(range(20)) for epoch in whole.values())
    with ais_loader(make(paths), seed=3, num_workers=workers) as loader:
        first = taken(loader, 3, stop=1)
        state = loader.state_dict()
    with ais_loader(make(paths), seed=3, num_workers=workers) as loader:
        loader.load_state_dict(state)
        rest = taken(loader, 3)
    assert list(rest) == [1, 2]
    assert first[0] == whole[0]
    assert sorted(first[1] + rest[1]) == list(range(20))
    assert rest[2] == whole[2]


def test_a_loop_over_epochs_that_forgets_the_loader_is_an_error() -> None:
    with (
        ais_loader(stream(example_shards())) as loader,
        pytest.raises(LoaderError, match="Epoch 0 was not iterated"),
    ):
        for _ in loader.epochs(2):
            pass


def test_words_of_torchs_loader_are_answered(caplog: pytest.LogCaptureFixture) -> None:
    paths = example_shards()
    index = SampleIndex.build(paths)
    with ais_loader(stream(paths)) as loader:
        with pytest.raises(
            TypeError, match=r"no iterator itself\. Take the first batch by next\(iter\(loader\)\)"
        ):
            next(loader)
        with pytest.raises(AttributeError, match="an index has a SampleDataset"):
            _ = loader.dataset
        with pytest.raises(AttributeError, match=r"\.batched\(n, partial=False\)"):
            _ = loader.drop_last
        assert not hasattr(loader, "no_such_name")
        with pytest.raises(StateError, match=r"given 'ck\.pt', not a state\. Read it first"):
            loader.load_state_dict("ck.pt")
    with pytest.raises(UsageError, match=r"type SampleDataset, not a pipe\. Pass AISSampleReader\(index\)"):
        ais_loader(SampleDataset(index))
    with pytest.raises(
        UsageError, match=r"The stage load_tar was named, and not called\. Write \.load_tar\(\)"
    ):
        AISSourceLister(paths).load_tar.group_samples()
    with pytest.raises(UsageError, match=r"split\(0\.8, 0\.2\) was given two fractions\. Pass one"):
        index.split(0.8, 0.2)
    with pytest.raises(UsageError, match=r"fraction='0\.8' is no number\. Pass a number"):
        index.split("0.8")
    with caplog.at_level(logging.WARNING, "torchdata_ais"):
        stream(paths).shuffled(10)
    assert ".shuffled(10) mixes whole batches: put it before .batched()" in caplog.text


def test_a_loader_made_again_for_each_epoch_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    pipe = stream(example_shards(counts=(10, 10)))
    plain = AISSourceLister(example_shards()).load_tar().group_samples().decode().to_tuple("cls").batched(4)
    with caplog.at_level(logging.WARNING, "torchdata_ais"):
        for _ in range(4):
            for one, seed in ((pipe, 0), (plain, 0)):
                with ais_loader(one, seed=seed) as loader:
                    list(loader)
                    list(loader)
    texts = [record.getMessage() for record in caplog.records]
    assert [text[:35] for text in texts] == ["a second loader of this pipe and se"]
    caplog.clear()
    for seed in (1, 2):
        with ais_loader(pipe, seed=seed) as loader:
            list(loader)
    with ais_loader(pipe, seed=3) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with ais_loader(pipe, seed=3) as loader:
        loader.load_state_dict(state)
        list(loader)
    with ais_loader(pipe, seed=3) as loader:
        loader.set_epoch(1)
        list(loader)
    assert not caplog.records


@pytest.mark.quick(1)
@pytest.mark.parametrize("join", ["mix_random", "concat", "mix_round_robin", "zip"])
def test_a_stream_of_several_pipes_names_the_ways_that_have_a_state(join: str) -> None:
    shards = example_shards()

    def samples() -> Any:
        return AISSourceLister(shards).load_tar().group_samples()

    with ais_loader(getattr(samples(), join)(samples()).batched(2)) as loader:
        next(iter(loader))
        with pytest.raises(StateError, match=rf"^\.{join}\(\) reads 2 pipes.*Mixture.*SampleIndex\.concat"):
            loader.state_dict()
    first, second = (SampleIndex.build(example_shards(counts=counts)) for counts in ((6,), (4, 3)))
    ways: list[Any] = [
        AISSourceLister([*shards, *example_shards(counts=(4,))]).load_tar().group_samples(),
        AISSampleReader(Mixture({first: 0.7, second: 0.3})),
        AISSampleReader(SampleIndex.concat([first, second])),
    ]
    for way in ways:
        with ais_loader(way.batched(2)) as loader:
            next(iter(loader))
            assert loader.state_dict()
