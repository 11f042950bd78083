"""Resume: the rest of an epoch after a checkpoint, against the uninterrupted run."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import AISSourceLister
from torchdata_ais.errors import StateError
from torchdata_ais.loaders import ais_loader, merge_states, state_from_json, state_to_json
from torchdata_ais.testing import example_shards

pytestmark = pytest.mark.timeout(180)

COUNTS = (1, 9, 0, 14, 3, 6, 11, 2)
TOTAL = sum(COUNTS)


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    paths = example_shards(tmp_path_factory.mktemp("resume"), COUNTS)
    for index in (1, 4):  # two of them compressed: they cannot be entered in the middle
        packed = Path(paths[index] + ".gz")
        packed.write_bytes(gzip.compress(Path(paths[index]).read_bytes()))
        paths[index] = str(packed)
    return paths


def make_pipe(urls: list[str]) -> Any:
    return (
        AISSourceLister(urls).shuffle().load_tar(open_shards=2).group_samples().shuffled(9)
        .decode(threads=2).to_tuple("cls").batched(3)
    )  # fmt: skip


def rows(batches: Any) -> list[list[int]]:
    return [batch[0].tolist() for batch in batches]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("workers", "steps"),
    [
        (0, range(25)),
        (2, (2, 12)),
        pytest.param(2, (0, 1, 6, 7, 13, 16, 17), marks=pytest.mark.ci),
        pytest.param(3, (1, 5, 11), marks=pytest.mark.ci),
    ],
)
def test_promise_5_same_topology_continues_to_the_letter(urls: list[str], workers: int, steps: Any) -> None:
    with ais_loader(make_pipe(urls), num_workers=workers, seed=5) as loader:
        whole, following = rows(loader), rows(loader)
        assert sorted(sum(whole, [])) == sorted(sum(following, [])) == list(range(TOTAL))
        assert whole != following
    for step in steps:
        if step > len(whole):
            break
        with ais_loader(make_pipe(urls), num_workers=workers, seed=5) as loader:
            head = rows(itertools.islice(loader, step))
            state = loader.state_dict()
        with ais_loader(make_pipe(urls), num_workers=workers) as loader:
            loader.load_state_dict(state)
            assert head + rows(loader) == whole, f"step {step}"
            assert rows(loader) == following, f"the epoch after step {step}"


def test_promise_5_twice_in_a_row(urls: list[str]) -> None:
    with ais_loader(make_pipe(urls), num_workers=2, seed=5) as loader:
        whole = rows(loader)
    done: list[list[int]] = []
    state = None
    while len(done) < len(whole):
        with ais_loader(make_pipe(urls), num_workers=2, seed=5) as loader:
            if state is not None:
                loader.load_state_dict(state)
            done += rows(itertools.islice(loader, 4))
            state = loader.state_dict()
    assert done == whole


@pytest.mark.quick(1)
@pytest.mark.parametrize("steps", [(5,), pytest.param((1, 9), marks=pytest.mark.ci)], ids=["few", "more"])
@pytest.mark.parametrize(
    ("before", "after"),
    [(0, 2), (2, 3), (3, 1), *(pytest.param(*pair, marks=pytest.mark.ci) for pair in ((2, 0), (1, 4)))],
)
def test_promise_5_other_workers_give_the_rest_exactly_once(
    urls: list[str], before: int, after: int, steps: tuple[int, ...]
) -> None:
    for step in steps:
        with ais_loader(make_pipe(urls), num_workers=before, seed=1) as loader:
            head = rows(itertools.islice(loader, step))
            state = json.loads(json.dumps(state_to_json(loader.state_dict())))
        with ais_loader(make_pipe(urls), num_workers=after, seed=1) as loader:
            loader.load_state_dict(merge_states([state_from_json(state)]))
            middle = rows(itertools.islice(loader, 2))
            second = loader.state_dict()
        with ais_loader(make_pipe(urls), num_workers=before, seed=1) as loader:
            loader.load_state_dict(second)
            rest = rows(loader)
        assert sorted(sum(head + middle + rest, [])) == list(range(TOTAL)), f"step {step}"


def test_a_state_of_another_pipeline_names_the_stage(urls: list[str]) -> None:
    with ais_loader(make_pipe(urls)) as loader:
        next(iter(loader))
        state = loader.state_dict()
    other = AISSourceLister(urls).load_tar(open_shards=2).group_samples().decode().to_tuple("cls").batched(3)
    with (
        ais_loader(other) as loader,
        pytest.raises(StateError, match=r"it has shuffled\(9, .*\) where this one has decode"),
    ):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("changed", "says", "named"),
    [
        ([7, 1, 2, 3, 4, 5, 6], "Shard 0 of the epoch is another one", 7),
        ([0, 2, 1, 3, 4, 5, 6], "Shard 1 of the epoch is another one", 2),
        ([0], "had at least 2 shards when the checkpoint was taken, now 1", 0),
    ],
)
def test_changed_data_names_the_object(urls: list[str], changed: list[int], says: str, named: int) -> None:
    def pipe(numbers: Any) -> Any:
        return AISSourceLister([urls[n] for n in numbers]).load_tar().group_samples().to_tuple("cls")

    with ais_loader(pipe(range(7)), seed=2) as loader:
        assert len(list(itertools.islice(loader, COUNTS[0] + 1))) == COUNTS[0] + 1
        state = loader.state_dict()
    with ais_loader(pipe(changed), seed=2) as loader:
        loader.load_state_dict(state)
        with pytest.raises(StateError, match=says) as caught:
            list(loader)
    assert caught.value.url == urls[named]


def test_a_stage_outside_the_whitelist_is_named_when_state_is_asked_for(urls: list[str]) -> None:
    with pytest.warns(UserWarning, match=r"\.shuffled\(1000\)"):
        pipe = make_pipe(urls).shuffle()
    with ais_loader(pipe) as loader:
        assert sorted(sum(rows(loader), [])) == list(range(TOTAL))
        with pytest.raises(StateError, match="may hold items"):
            loader.state_dict()


def test_shuffling_after_the_place_is_lost_is_a_state_error(urls: list[str]) -> None:
    pipe = AISSourceLister(urls).load_tar().group_samples().to_tuple("cls").shuffled(5)
    with ais_loader(pipe, num_workers=1) as loader:
        assert len(list(itertools.islice(loader, 30))) == 30
        with pytest.raises(StateError, match="place in the data set"):
            loader.state_dict()
