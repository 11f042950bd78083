"""Random stages: reproducible, new in each epoch, and the same whoever does the work."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.graph_settings import apply_random_seed, apply_sharding

from torchdata_ais.errors import StateError, UsageError
from torchdata_ais.loaders import ais_loader, load_state_dict, state_dict
from torchdata_ais.pipes.group_samples import TarSampleGrouper
from torchdata_ais.pipes.load_tar import AISFileLoader
from torchdata_ais.pipes.mapped import SampleMapper
from torchdata_ais.pipes.mixed import RandomMix, RoundRobin
from torchdata_ais.pipes.planned.shared_seed import SharedSeed, with_shared_seed
from torchdata_ais.pipes.repeated import Repeater
from torchdata_ais.pipes.resampled import Resampler
from torchdata_ais.pipes.select import Subsampler
from torchdata_ais.pipes.shuffled import Shuffler
from torchdata_ais.testing import check_resume, example_shards

KEYED = [{"__key__": f"{n}"} for n in range(200)]


flat = chain.from_iterable


def draw(sample: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    return {"draw": rng.random()}


def pair(sample: dict[str, Any]) -> tuple[str, float]:
    return sample["__key__"], sample["draw"]


def key(sample: dict[str, Any]) -> str:
    return sample["__key__"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return example_shards(tmp_path_factory.mktemp("shards"), [3, 5, 2, 4, 1, 5])


def samples(shards: list[str]) -> Any:
    return TarSampleGrouper(AISFileLoader(IterableWrapper(shards).shuffle()))


def load(pipe: Any, num_workers: int, seed: int = 3) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return list(DataLoader(pipe, batch_size=None, num_workers=num_workers, generator=generator))


def parts(pipe: Any, instances: int, seed: int = 5) -> list[Any]:
    """Return what each of `instances` workers yields, by the calls loaders make in them."""
    found = []
    for instance in range(instances):
        copy = pickle.loads(pickle.dumps(pipe))
        apply_sharding(copy, instances, instance)
        apply_random_seed(copy, torch.Generator().manual_seed(seed))
        found.append(list(copy))
    return found


class TestMapSampleRng:
    def test_draws_are_a_function_of_the_key_not_of_the_order(self) -> None:
        forth = list(SampleMapper(KEYED, draw, rng=True))
        back = list(SampleMapper(KEYED[::-1], draw, rng=True))
        assert forth == back[::-1]
        assert len({s["draw"] for s in forth}) == len(KEYED)

    def test_epochs_and_seeds_differ_and_come_again(self) -> None:
        pipe = SampleMapper(KEYED, draw, rng=True)
        first, second = list(pipe), list(pipe)
        assert first != second
        again = SampleMapper(KEYED, draw, rng=True)
        assert [list(again), list(again)] == [first, second]
        assert list(SampleMapper(KEYED, draw, rng=True, seed=1)) != first

    def test_a_loaders_seed_decides(self) -> None:
        pipe = SampleMapper(KEYED, draw, rng=True)
        seeds = [1, 2, 1]
        found = [list(apply_random_seed(pipe, torch.Generator().manual_seed(seed))) for seed in seeds]
        assert found[0] == found[2] != found[1]

    @pytest.mark.parametrize("instances", [1, 2, 3, 4])
    def test_draws_do_not_depend_on_the_number_of_instances(self, shards: list[str], instances: int) -> None:
        pipe = SampleMapper(samples(shards), draw, rng=True)
        found = [pair(sample) for part in parts(pipe, instances) for sample in part]
        (alone,) = parts(pipe, 1)
        assert sorted(found) == sorted(map(pair, alone))

    def test_draws_do_not_depend_on_the_workers_of_a_dataloader(self, shards: list[str]) -> None:
        pipe = SampleMapper(samples(shards), draw, rng=True).map(pair)
        assert sorted(load(pipe, 0)) == sorted(load(pipe, 2)) != sorted(load(pipe, 0, seed=4))

    def test_draws_do_not_depend_on_the_workers_of_a_reading_service(self, shards: list[str]) -> None:
        from torchdata_ais.dataloader2 import DataLoader2
        from torchdata_ais.loaders import MultiProcessingReadingService

        found = []
        for num_workers in (1, 2):
            pipe = SampleMapper(samples(shards), draw, rng=True).map(pair)
            service = MultiProcessingReadingService(num_workers=num_workers)
            loader = DataLoader2(pipe, reading_service=service)
            try:
                loader.seed(7)
                found.append([sorted(loader), sorted(loader)])
            finally:
                loader.shutdown()
        assert found[0] == found[1]
        assert found[0][0] != found[0][1]

    def test_draws_outlive_a_resume_on_other_workers(self, shards: list[str]) -> None:
        def make(num_workers: int) -> Any:
            kept = Subsampler(Shuffler(samples(shards), 4), 0.8)
            return ais_loader(SampleMapper(kept, draw, rng=True).map(pair), num_workers=num_workers, seed=1)

        with make(0) as loader:
            first, second = sorted(loader), sorted(loader)
        with make(2) as loader:
            running = iter(loader)
            head = [next(running) for _ in range(5)]
            state = loader.state_dict()
        with make(1) as loader:
            loader.load_state_dict(state)
            assert sorted([*head, *loader]) == first
            assert sorted(loader) == second

    def test_a_sample_that_comes_again_is_drawn_for_again(self, shards: list[str]) -> None:
        urls = Repeater(shards[:2], 3)
        pipe = SampleMapper(TarSampleGrouper(AISFileLoader(urls)), draw, rng=True)
        draws = [sample["draw"] for sample in pipe]
        assert len(set(draws)) == len(draws) == 3 * 8

    def test_each_pass_is_drawn_for_anew(self, shards: list[str]) -> None:
        upstream = Repeater(TarSampleGrouper(AISFileLoader(shards[:2])), 3)
        downstream = Repeater(SampleMapper(TarSampleGrouper(AISFileLoader(shards[:2])), draw, rng=True), 3)
        for pipe in (SampleMapper(upstream, draw, rng=True), downstream):
            draws = [sample["draw"] for sample in pipe]
            assert len(set(draws)) == len(draws) == 3 * 8

    def test_a_checkpoint_brings_the_same_draws_back(self, shards: list[str]) -> None:
        def make() -> Any:
            return SampleMapper(Shuffler(samples(shards), 4), draw, rng=True)

        assert check_resume(make) == 20


class TestSharedSeed:
    def test_it_stands_before_the_sharding_filter_once(self, shards: list[str]) -> None:
        given = samples(shards)
        grouped = with_shared_seed(given)
        assert with_shared_seed(grouped) is grouped
        assert (
            type(given._source._source.source_datapipe) is not SharedSeed
        )  # the user's pipes are as they were
        sharder = grouped._source._source
        assert type(sharder.source_datapipe) is SharedSeed
        assert type(sharder.source_datapipe._source) is not SharedSeed


class TestRsample:
    def test_the_share_is_about_p(self) -> None:
        assert 60 < len(list(Subsampler(KEYED, 0.5))) < 140

    def test_zero_is_none_and_one_is_all(self) -> None:
        assert list(Subsampler(KEYED, 0.0)) == []
        assert list(Subsampler(KEYED, 1.0)) == KEYED

    @pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
    def test_another_share_is_a_usage_error(self, p: float) -> None:
        with pytest.raises(UsageError, match="from 0 to 1"):
            Subsampler([], p)

    @pytest.mark.parametrize("instances", [2, 3])
    def test_the_same_samples_for_any_number_of_instances(self, shards: list[str], instances: int) -> None:
        pipe = Subsampler(samples(shards), 0.5).map(key)
        (alone,) = parts(pipe, 1)
        assert 0 < len(alone) < 20
        assert sorted(flat(parts(pipe, instances))) == sorted(alone)

    @pytest.mark.parametrize("instances", [2, 3])
    def test_shards_drawn_before_the_split_are_read_once(
        self, shards: list[str], instances: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(Path(shards[0]).parent)
        names = [
            Path(shard).name for shard in shards
        ]  # what is drawn follows from them: the folder differs each time
        pipe = AISFileLoader(Subsampler(IterableWrapper(names).shuffle(), 0.5)).map(str)
        (alone,) = parts(pipe, 1)
        assert 0 < len(alone) < len(list(AISFileLoader(names)))
        assert sorted(flat(parts(pipe, instances))) == sorted(alone)

    def test_a_checkpoint_keeps_the_same_samples(self, shards: list[str]) -> None:
        assert check_resume(lambda: Subsampler(Shuffler(samples(shards), 4), 0.5)) > 4
        assert check_resume(lambda: Shuffler(Subsampler(samples(shards), 0.5), 4)) > 4

    def test_items_without_key_are_drawn_one_by_one(self) -> None:
        kept = list(Subsampler([1] * 1000, 0.3))
        assert 200 < len(kept) < 400

    def test_draws_by_count_cannot_be_saved(self) -> None:
        pipe = Subsampler([1, 2, 3], 1.0)
        running = iter(pipe)
        next(running)
        with pytest.raises(StateError, match="without a key"):
            pipe.save_state()
        running.close()


class TestResampled:
    def test_draws_are_a_function_of_seed_and_epoch(self) -> None:
        pipe = Resampler(range(10), 30)
        first, second = list(pipe), list(pipe)
        assert first != second
        assert list(Resampler(range(10), 30)) == first != list(Resampler(range(10), 30, seed=1))

    def test_every_item_is_drawn_about_as_often(self) -> None:
        counts = Counter(Resampler(range(4), 4000))
        assert all(800 < counts[n] < 1200 for n in range(4))

    def test_without_deterministic_two_runs_differ(self) -> None:
        one, two = (list(Resampler(range(10), 40, deterministic=False)) for _ in range(2))
        assert one != two

    @pytest.mark.parametrize("instances", [2, 3])
    def test_one_sequence_is_dealt_out_to_all_instances(self, shards: list[str], instances: int) -> None:
        pipe = AISFileLoader(Resampler(shards, 12)).map(str)
        (alone,) = parts(pipe, 1)
        found = parts(pipe, instances)
        assert Counter(flat(found)) == Counter(alone)
        assert all(found)

    def test_behind_a_split_each_instance_draws_from_its_own(self) -> None:
        found = parts(Resampler(IterableWrapper(range(8)).sharding_filter(), 50), 2)
        assert set(found[0]) == {0, 2, 4, 6}
        assert set(found[1]) == {1, 3, 5, 7}
        assert [n // 2 for n in found[0]] != [n // 2 for n in found[1]]


class TestMixing:
    def test_round_robin_stops_with_the_shortest_or_goes_on(self) -> None:
        assert list(RoundRobin([[2, 2], [1], [3, 3, 3]])) == [2, 1, 3, 2]
        assert list(RoundRobin([[2, 2], [1], [3, 3, 3]], longest=True)) == [2, 1, 3, 2, 3, 3]

    def test_functional_form_mixes_pipes(self) -> None:
        pipe = IterableWrapper([1, 2]).mix_round_robin(IterableWrapper([10, 20]))
        assert list(pipe) == [1, 10, 2, 20]

    def test_a_pipe_can_be_given_twice(self) -> None:
        pipe = IterableWrapper([1, 2, 3])
        assert list(RoundRobin([pipe, pipe])) == [1, 1, 2, 2, 3, 3]

    def test_random_mix_is_reproducible_and_new_in_each_epoch(self) -> None:
        def make() -> RandomMix:
            return RandomMix([range(100), range(100, 200)], longest=True)

        pipe = make()
        first, second = list(pipe), list(pipe)
        assert first != second
        assert sorted(first) == sorted(second) == list(range(200))
        assert list(make()) == first

    def test_weights_decide_how_often(self) -> None:
        taken = list(RandomMix([["a"] * 10_000, ["b"] * 10_000], probs=[3, 1]))[:4000]
        assert 2800 < taken.count("a") < 3200

    def test_a_pipe_of_weight_zero_is_never_taken_from(self) -> None:
        assert list(RandomMix([[1, 2], [3]], probs=[1, 0], longest=True)) == [1, 2]

    @pytest.mark.parametrize("probs", [[1], [1, 2, 3], [0, 0], [-1, 2], [float("nan"), 1], [float("inf"), 1]])
    def test_weights_that_are_none_are_a_usage_error(self, probs: list[float]) -> None:
        with pytest.raises(UsageError, match="probs"):
            RandomMix([[1], [2]], probs=probs)

    def test_nothing_to_mix_is_a_usage_error(self) -> None:
        with pytest.raises(UsageError, match="nothing to mix"):
            RoundRobin([])

    def test_each_branch_of_a_mix_is_split_once(self, shards: list[str]) -> None:
        one, two = AISFileLoader(shards[:3]), AISFileLoader(shards[3:])
        pipe = RoundRobin([one, two], longest=True).map(str)
        (alone,) = parts(pipe, 1)
        assert sorted(flat(parts(pipe, 2))) == sorted(alone)


def test_the_pipe_that_has_ended_leaves_the_mix_and_no_other() -> None:
    for seed in range(8):
        mixed = RandomMix([1], range(10, 40), range(100, 130), longest=True, seed=seed)
        assert sorted(mixed) == [1, *range(10, 40), *range(100, 130)]


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.ci)])
@pytest.mark.parametrize("where", ["shuffled", "shuffle"])
def test_shuffle_of_torchs_loader_turns_shuffling_off_and_on(
    shards: list[str], where: str, num_workers: int
) -> None:
    """Of ``.shuffled()``, and of ``.shuffle()`` over shards."""

    def order(**given: Any) -> list[str]:
        pipe: Any = IterableWrapper(shards)
        pipe = TarSampleGrouper(AISFileLoader(pipe.shuffle() if where == "shuffle" else pipe))
        pipe = SampleMapper(pipe.shuffled(20) if where == "shuffled" else pipe, key)
        generator = torch.Generator().manual_seed(1)
        loader = DataLoader(pipe, batch_size=None, num_workers=num_workers, generator=generator, **given)
        return [found for _ in range(2) for found in loader]

    written = [f"{n:05}" for n in range(20)]
    assert order(shuffle=False) == written * 2
    for given in ({}, {"shuffle": None}, {"shuffle": True}):
        found = order(**given)
        assert found[:20] != written
        assert sorted(found[:20]) == sorted(found[20:]) == written


def test_promise_5_a_state_of_an_epoch_without_shuffling_names_no_samples_of_the_one_before(
    shards: list[str],
) -> None:
    def make() -> Any:
        return TarSampleGrouper(AISFileLoader(shards)).shuffled(20, initial=10)

    pipe = make()
    left = iter(pipe)
    assert len([next(left) for _ in range(3)]) == 3  # others are in the buffer
    pipe.set_shuffle(False)
    items = iter(pipe)
    head = [next(items)["__key__"] for _ in range(4)]
    state = state_dict(pipe)
    for shuffle in (False, True):
        resumed = make().set_shuffle(shuffle)
        load_state_dict(resumed, state)
        rest = [sample["__key__"] for sample in resumed]
        assert sorted(head + rest) == [f"{n:05}" for n in range(20)]
        assert shuffle or head + rest == sorted(rest + head)


@pytest.mark.parametrize(("bufsize", "initial"), [(1, None), (10, None), (10, 500), (150, None), (150, 20)])
def test_a_shuffle_holds_at_most_its_buffer(bufsize: int, initial: int | None) -> None:
    pipe = Shuffler(range(1000), bufsize, initial)
    held = [len(pipe.held_places()) for _ in pipe]
    assert max(held) <= bufsize
    assert len(held) == 1000


def test_the_identity_of_a_shuffle_has_all_that_decides_its_order() -> None:
    shuffles = [Shuffler([], 10), Shuffler([], 11), Shuffler([], 10, 5), Shuffler([], 10, seed=1)]
    assert len({shuffle.identity() for shuffle in shuffles}) == len(shuffles)
