"""Below ``.read_samples()``: batches as the plan has laid them down, whatever is left out of them."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers.global_batches import steps_of
from torch.utils.data.datapipes.iter import Batcher as CoreBatcher
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.iter import Shuffler as CoreShuffler

from torchdata_ais import SampleIndex, Schedule, ais_loader
from torchdata_ais.dataloader2 import DataLoader2
from torchdata_ais.errors import EmptyBatchError, UsageError
from torchdata_ais.index import Mixture
from torchdata_ais.loaders import MultiProcessingReadingService, as_dataset
from torchdata_ais.pipes import AISSampleReader, RandomMix, Shuffler
from torchdata_ais.pipes.base.torch_pipes import all_pipes
from torchdata_ais.pipes.planned.batches import plan_of, separate
from torchdata_ais.testing import example_shards, shard_bytes

COUNTS = (30, 1, 20, 0, 12)
TOTAL = sum(COUNTS)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SampleIndex:
    return SampleIndex.build(example_shards(tmp_path_factory.mktemp("planned"), COUNTS))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[SampleIndex]:
    """Four sources of 7, 19, 40 and 11 samples; the number of a sample is 1,000 times its source and its own."""
    folder = tmp_path_factory.mktemp("sources")
    found = []
    for source, count in enumerate((7, 19, 40, 11)):
        path = Path(folder, f"{source}.tar")
        path.write_bytes(
            shard_bytes({f"{source}-{n:03d}.cls": b"%d" % (1000 * source + n) for n in range(count)})
        )
        found.append(SampleIndex.build(str(path)))
    return found


def numbers(batch: Any) -> list[int]:
    (column,) = batch
    found: list[int] = column.tolist()
    return found


def plain(index: Any, batch: int = 8, **how: Any) -> Any:
    return AISSampleReader(index, shuffle="samples", **how).decode().to_tuple("cls").batched(batch)


def is_even(row: Any) -> bool:
    return bool(row[0] % 2 == 0)


def is_small(row: Any) -> bool:
    return bool(row[0] < 3)


def is_tenth(row: Any) -> bool:
    return bool(row[0] % 10 == 0)


def never(row: Any) -> bool:
    return bool(row[0] < 0)


def doubled(rows: Any) -> Any:
    for row in rows:
        yield row
        yield row


# Topologies


@pytest.mark.parametrize("tail", ["short", "drop", "pad"])
@pytest.mark.parametrize("shuffle", ["samples", "runs", None])
@pytest.mark.parametrize("some", [True, pytest.param(False, marks=pytest.mark.ci)])
def test_promise_4_global_batches_are_equal_sets_on_any_topology(
    index: SampleIndex, shuffle: Any, tail: Any, some: bool
) -> None:
    def make() -> Any:
        return AISSampleReader(index, shuffle=shuffle, tail=tail).decode().to_tuple("cls").batched(3)

    for batch in (11,) if some else (8, 11):
        whole = [set(numbers(one)) for one in steps_of(make, 1, 0, batch)[0]]
        assert len(whole) == TOTAL // batch + (tail != "drop")
        for world in (1, 2, 3, 6) if some else (1, 2, 3, 4, 6, 8):
            for workers in (world % 4,) if some else range(4):
                ranks = [list(map(numbers, one)) for one in steps_of(make, world, workers, batch)]
                assert {len(one) for one in ranks} == {len(whole)}  # equal steps
                assert [set().union(*parts) for parts in zip(*ranks, strict=True)] == whole
                seen = Counter(number for one in ranks for batch_of in one for number in batch_of)
                assert len(seen) == (TOTAL if tail != "drop" else TOTAL // batch * batch)
                if tail == "short":
                    rest = TOTAL % batch
                    assert sum(seen.values()) - TOTAL == max(0, world - rest)


def test_more_workers_than_shards_are_all_busy_and_shares_differ_by_a_batch(index: SampleIndex) -> None:
    ranks = steps_of(lambda: plain(index), 4, 3, 4)  # 12 workers, 4 shards with samples
    sizes = [sum(len(numbers(batch)) for batch in rank) for rank in ranks]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) > 0


# Lengths


@pytest.mark.parametrize("tail", ["short", "drop", "pad"])
def test_lengths_are_known_before_a_byte_is_read(index: SampleIndex, tail: Any) -> None:
    for ranks in (1, 2, 3):
        for rank in range(ranks):
            pipe = AISSampleReader(index, shuffle="samples", tail=tail).decode().to_tuple("cls")
            batched = pipe.batched(5)
            with ais_loader(batched, rank=rank, world_size=ranks) as loader:
                assert len(loader) == len(list(loader))
            dataset = as_dataset(batched, rank=rank, world_size=ranks)
            items = list(dataset)
            assert len(dataset) == len(batched) == len(items)
            assert len(pipe) == sum(len(numbers(item)) for item in items)
            assert dataset
            assert pipe


@pytest.mark.filterwarnings("ignore:.*below .read_samples")
def test_a_pipe_whose_length_is_not_known_says_so_and_is_still_true(index: SampleIndex) -> None:
    reader = AISSampleReader(index)
    assert len(reader) == len(reader.decode()) == len(reader.map(str).map_sample(str)) == TOTAL
    assert len(reader.decode().batched(4)) == len(reader.decode(on_error="skip").batched(4).map(len)) == 16
    unknown = (reader.decode(on_error="skip"), reader.rsample(0.5), reader.pipe_through(doubled))
    for pipe in (*unknown, reader.batched(4).unbatched()):
        assert pipe
        with pytest.raises(TypeError, match="known when they have come"):
            len(pipe)
    with pytest.raises(TypeError):
        len(IterableWrapper([{"a": 1}]).map_sample(str))  # a stream: ranks and workers may share it


# What is left out


def test_filters_and_skips_make_a_batch_smaller_and_never_pull_from_the_next(index: SampleIndex) -> None:
    whole = [set(range(start, start + 12)) for start in range(0, TOTAL - 11, 12)]

    def make() -> Any:
        return AISSampleReader(index, tail="drop").decode().to_tuple("cls").filter(is_even).batched(8)

    for world, workers in ((1, 0), (2, 2), (3, 1)):
        ranks = [list(map(numbers, one)) for one in steps_of(make, world, workers, 12)]
        got = [set().union(*parts) for parts in zip(*ranks, strict=True)]
        assert got == [{number for number in batch if number % 2 == 0} for batch in whole]


@pytest.mark.parametrize("threads", [0, 2])
def test_samples_that_cannot_be_decoded_are_left_out_of_their_batch_alone(
    tmp_path: Path, threads: int
) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(shard_bytes({f"{n:03d}.cls": b"x" if n in (3, 4, 17) else b"%d" % n for n in range(30)}))
    pipe = AISSampleReader(SampleIndex.build(str(path))).decode(on_error="skip", threads=threads)
    got = [numbers(batch) for batch in pipe.to_tuple("cls").batched(4)]
    assert got[:2] == [[0, 1, 2], [5, 6, 7]]
    assert got[4] == [16, 18, 19]
    assert list(map(len, got)) == [3, 3, 4, 4, 3, 4, 4, 2]


def test_an_empty_batch_is_an_error_that_names_positions_and_keys(index: SampleIndex) -> None:
    pipe = AISSampleReader(index).decode().to_tuple("cls").filter(is_small).batched(3)
    batches = iter(pipe)
    assert numbers(next(batches)) == [0, 1, 2]
    with pytest.raises(EmptyBatchError, match=r"positions \[3, 4, 5\].*'00003', '00004', '00005'"):
        next(batches)


def test_an_empty_batch_may_repeat_the_last_one(index: SampleIndex) -> None:
    pipe = AISSampleReader(index, empty="repeat").decode().to_tuple("cls").filter(is_small).batched(2)
    got = [numbers(batch) for batch in pipe]
    assert got == [[0, 1], *([[2]] * (len(pipe) - 1))]
    assert pipe.counts().skipped == {"EmptyBatchError": len(pipe) - 2}
    nothing = AISSampleReader(index, empty="repeat").decode().to_tuple("cls").filter(never).batched(2)
    with pytest.raises(EmptyBatchError, match=f"{len(nothing)} batches left in this epoch"):
        next(iter(nothing))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.ci)])
def test_an_empty_batch_with_none_before_it_is_the_next_one_also_after_a_resume(
    index: SampleIndex, workers: int
) -> None:
    def loader() -> Any:
        pipe = AISSampleReader(index, empty="repeat").decode().to_tuple("cls").filter(is_tenth).batched(2)
        return ais_loader(pipe, num_workers=workers)

    with loader() as whole:
        states, got = [whole.state_dict()], []
        for batch in whole:
            got.append(numbers(batch))
            states.append(whole.state_dict())
    assert len(got) == (TOTAL + 1) // 2
    assert {number for batch in got for number in batch} == set(range(0, TOTAL, 10))
    for step in range(0, len(got) - 10, 3):  # behind that a worker may have nothing left
        with loader() as resumed:
            resumed.load_state_dict(states[step])
            rest = [numbers(batch) for batch in resumed]
        assert len(rest) == len(got) - step
        assert rest[10:] == got[step + 10 :]


def test_an_empty_pack_with_none_before_it_is_the_next_one(index: SampleIndex) -> None:
    pipe = AISSampleReader(index, empty="repeat").decode().to_tuple("cls").filter(is_tenth)
    got = list(pipe.pack(length=[1] * TOTAL, budget=2))
    assert len(got) == (TOTAL + 1) // 2
    assert {row[0] for packs in got for pack in packs for row in pack} == set(range(0, TOTAL, 10))


def test_a_copy_that_runs_next_to_a_graph_shares_no_pipe_and_has_no_more() -> None:
    source = IterableWrapper([1, 2])
    pipe = source.map(str).concat(source.map(str))
    pipes, copies = all_pipes(pipe), all_pipes(separate(pipe))
    assert list(map(type, copies)) == list(map(type, pipes))
    assert not set(map(id, copies)) & set(map(id, pipes))


def test_a_stage_that_gives_more_makes_its_batch_larger(index: SampleIndex) -> None:
    pipe = AISSampleReader(index).decode().to_tuple("cls").pipe_through(doubled).batched(4)
    assert [numbers(batch) for batch in pipe][:2] == [[0, 0, 1, 1, 2, 2, 3, 3], [4, 4, 5, 5, 6, 6, 7, 7]]


def test_an_error_policy_that_ends_the_epoch_keeps_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(shard_bytes({f"{n:03d}.cls": b"x" if n == 6 else b"%d" % n for n in range(30)}))
    pipe = AISSampleReader(SampleIndex.build(str(path))).decode(on_error=lambda error: False)
    assert [numbers(batch) for batch in pipe.to_tuple("cls").batched(4)] == [[0, 1, 2, 3], [4, 5]]


# What cannot stand below a plan


REFUSED = {
    "shuffled": lambda pipe: pipe.shuffled(10),
    "shuffled below batches": lambda pipe: pipe.batched(2).shuffled(10),
    "shuffled, by its class": lambda pipe: Shuffler(pipe, 10),
    "shuffle": lambda pipe: pipe.shuffle(),
    "shuffle below map": lambda pipe: pipe.map(str).shuffle().batched(4),
    "batch": lambda pipe: pipe.batch(4),
    "batch below map": lambda pipe: pipe.map(str).batch(4).map_sample(str),
    "listed": lambda pipe: pipe.listed(4),
    "sharding_filter": lambda pipe: pipe.sharding_filter(),
    "sharding_filter below map": lambda pipe: pipe.map(str).sharding_filter().batched(4),
    "split_by_node": lambda pipe: pipe.split_by_node(),
    "load_tar": lambda pipe: pipe.load_tar(open_shards=4),
    "group_samples": lambda pipe: pipe.group_samples(),
    "resampled": lambda pipe: pipe.resampled(),
    "with_epoch": lambda pipe: pipe.with_epoch(100),
    "slice_samples": lambda pipe: pipe.slice_samples(10),
    "repeated": lambda pipe: pipe.repeated(2),
    "mix_random": lambda pipe: pipe.mix_random(pipe),
    "mix_random, by its class": lambda pipe: RandomMix([pipe, pipe]),
    "zip": lambda pipe: pipe.map(str).zip(pipe.filter(is_even)).batched(4),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_means_nothing_below_a_plan_is_refused_in_words_when_it_is_made(
    index: SampleIndex, name: str
) -> None:
    for pipe in (AISSampleReader(index), AISSampleReader(index, shuffle="samples").decode().to_tuple("cls")):
        with pytest.raises(UsageError, match=r"\.read_samples\(\)") as caught:
            REFUSED[name](pipe)
        assert caught.value.todo


def as_dataset_over(pipe: Any) -> Any:
    return as_dataset(pipe)


def service_over(pipe: Any) -> Any:
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(0)) as loader:
        return list(loader)


@pytest.mark.parametrize("loader", [ais_loader, as_dataset_over, service_over])
@pytest.mark.parametrize("core", [CoreShuffler, lambda pipe: CoreBatcher(pipe, 4)])
def test_torchs_own_stages_are_refused_by_every_loader(index: SampleIndex, loader: Any, core: Any) -> None:
    pipe = core(AISSampleReader(index).map(str))
    with pytest.raises(UsageError, match=r"\.(shuffle|batch)\(\) below"):
        loader(pipe)


def test_a_partial_batch_is_kept_or_dropped_by_the_plan(index: SampleIndex) -> None:
    with pytest.raises(UsageError, match='tail="drop"'):
        AISSampleReader(index).batched(4, partial=False)


@pytest.mark.parametrize("more", ["unbatched", "unlisted", "repeated"])
def test_stages_that_give_more_than_steps_say_so_when_they_are_made(index: SampleIndex, more: str) -> None:
    with pytest.warns(UserWarning, match=rf"\.{more}\(\) below .*len\(\) is not known"):
        getattr(plain(index), more)()


def test_batches_may_be_repeated_in_other_orders(index: SampleIndex) -> None:
    with pytest.warns(UserWarning, match="repeated"):
        pipe = plain(index).repeated(2)
    with ais_loader(pipe, seed=3, global_batch=12, rank=0, world_size=1) as loader:
        got = [number for batch in loader for number in numbers(batch)]
    assert sorted(got[:TOTAL]) == sorted(got[TOTAL:]) == list(range(TOTAL))
    assert got[:TOTAL] != got[TOTAL:]


@pytest.mark.filterwarnings("ignore:.*below .read_samples")
def test_what_is_not_one_item_a_step_has_no_length_and_no_state_within_an_epoch(index: SampleIndex) -> None:
    pipe = plain(index).unbatched()
    with ais_loader(pipe) as loader:
        with pytest.raises(TypeError, match=r"unbatched.*more or fewer"):
            len(loader)
        loader.state_dict()
        items = iter(loader)
        next(items)
        with pytest.raises(ValueError, match="The position in this epoch is not known"):
            loader.state_dict()
        assert len(list(items)) == TOTAL - 1
        state = loader.state_dict()
        assert state["epoch"][0] == 1
        second = [row[0].item() for row in loader]
    with ais_loader(plain(index).unbatched()) as resumed:
        resumed.load_state_dict(state)
        assert [row[0].item() for row in resumed] == second


def test_batches_that_a_stage_below_leaves_out_are_noticed(index: SampleIndex) -> None:
    def some(batch: Any) -> Any:
        return batch if numbers(batch)[0] % 2 else None

    with (
        ais_loader(plain(index).map_sample(some)) as loader,
        pytest.raises(UsageError, match="batches came of"),
    ):
        list(loader)


# Random draws


def with_number(sample: Any, rng: random.Random) -> Any:
    return {**sample, "draw": rng.getrandbits(60)}


def noisy(index: Any, threads: int = 0) -> Any:
    reader = AISSampleReader(index, shuffle="samples").decode(threads=threads)
    return reader.map_sample(with_number, rng=True).to_tuple("cls", "draw").batched(3)


def draws_of(items: list[Any]) -> dict[int, int]:
    found: dict[int, int] = {}
    for classes, values in items:
        found.update(zip(classes.tolist(), values.tolist(), strict=True))
    return found


@pytest.mark.parametrize("threads", [0, 2])
def test_promise_4_random_draws_are_the_same_on_any_topology_and_new_in_each_epoch(
    index: SampleIndex, threads: int
) -> None:
    def epoch(number: int, world: int, workers: int, seed: int = 0) -> dict[int, int]:
        ranks = steps_of(lambda: noisy(index, threads), world, workers, 9, seed=seed, epoch=number)
        return draws_of([item for rank in ranks for item in rank])

    first = epoch(0, 1, 0)
    assert len(set(first.values())) == TOTAL
    assert epoch(0, 2, 3) == epoch(0, 3, 1) == first
    second = epoch(1, 2, 2)
    assert second == epoch(1, 1, 0)
    assert not set(second.values()) & set(first.values())
    assert not set(epoch(0, 1, 0, seed=1).values()) & set(first.values())


def as_row(sample: Any) -> Any:
    return {"cls": sample["cls"]}  # a plain dict: no sample any more


@pytest.mark.parametrize("threads", [0, 2])
def test_promise_4_draws_for_items_that_are_no_samples_any_more_follow_the_draw(
    index: SampleIndex, threads: int
) -> None:
    def make() -> Any:
        reader = AISSampleReader(index, shuffle="samples").decode(threads=threads).map(as_row)
        return reader.map_sample(with_number, rng=True).to_tuple("cls", "draw").batched(3)

    first = draws_of(steps_of(make, 1, 0, 6)[0])
    assert len(set(first.values())) == TOTAL
    assert draws_of([item for rank in steps_of(make, 3, 2, 6) for item in rank]) == first


def test_promise_4_rsample_keeps_the_same_samples_on_any_topology_and_others_in_each_epoch(
    index: SampleIndex,
) -> None:
    def make() -> Any:
        reader = AISSampleReader(index, shuffle="samples", empty="repeat").rsample(0.5)
        return reader.decode().to_tuple("cls").batched(3)

    def kept(epoch: int, world: int, workers: int) -> set[int]:
        ranks = steps_of(make, world, workers, 12, epoch=epoch)
        return {number for rank in ranks for item in rank for number in numbers(item)}

    first = kept(0, 1, 0)
    assert TOTAL / 4 < len(first) < TOTAL * 3 / 4
    assert kept(0, 2, 2) == kept(0, 3, 1) == first
    assert kept(1, 1, 0) not in (first, set())


def test_draws_for_batches_are_their_own(index: SampleIndex) -> None:
    def mixup(batch: Any, rng: random.Random) -> Any:
        return (*batch, rng.getrandbits(60))

    def values(workers: int, epoch: int) -> list[int]:
        made = steps_of(lambda: plain(index).map_sample(mixup, rng=True), 1, workers, 8, epoch=epoch)
        return [value for _, value in made[0]]

    first = values(0, 0)
    assert len(set(first)) == len(first)
    assert values(3, 0) == first
    assert not set(values(2, 1)) & set(first)


# Mixtures


@pytest.mark.parametrize("stop", ["first", "all"])
def test_a_mixture_gives_its_weights_and_says_which_source(sources: list[SampleIndex], stop: Any) -> None:
    weights = [1, 3, 8, 4]
    mixture = Mixture(dict(zip(sources, weights, strict=True)), stop=stop)
    seen: list[int] = []
    keys: Counter[str] = Counter()
    for sample in AISSampleReader(mixture, shuffle="samples"):
        assert sample["__key__"].startswith(f"{sample.source}-")
        seen.append(sample.source)
        keys[sample["__key__"]] += 1
        for source, weight in enumerate(weights):
            assert abs(seen.count(source) - len(seen) * weight / 16) < 1
    for source, index in enumerate(sources):
        of_source = [count for key, count in keys.items() if key.startswith(f"{source}-")]
        if stop == "all":
            assert len(of_source) == len(index)  # all of it
            assert max(of_source) - min(of_source) <= 1  # before any again
        else:
            assert max(of_source) == 1


def test_a_mixture_without_end_and_a_schedule(sources: list[SampleIndex]) -> None:
    one, two, *_ = sources
    mixture = Mixture({one: 1, two: 1}, stop="never")
    with pytest.raises(UsageError, match="epoch_steps="):
        len(AISSampleReader(mixture))
    pipe = AISSampleReader(mixture, epoch_steps=5, shuffle="samples").decode()
    batched = pipe.map(lambda sample: (sample.source, sample["cls"])).batched(6)
    with ais_loader(batched, schedule=Schedule(weights={0: [1, 0], 1: [0.5, 0.5], 4: [0, 1]})) as loader:
        first, second = ([source for batch in loader for source in batch[0].tolist()] for _ in range(2))
    assert len(first) == len(second) == 30
    assert first[:6] == [0] * 6
    assert sorted(first[6:24]) == [0] * 9 + [1] * 9
    assert first[24:] == [1] * 6
    assert second == [1] * 30  # steps count over the whole run


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ([-1, 2], "a weight of -1"),
        ([0, 1], "a weight of 0"),
        ([float("nan"), 1.0], "a weight of nan"),
        ([float("inf"), 1.0], "a weight of inf"),
        ([0.5, 0.6], "sum to 1.1"),
        (["1", 1], "no number"),
        ([True, 1], "no number"),
    ],
)
def test_weights_that_cannot_be_are_refused(sources: list[SampleIndex], weights: list, says: str) -> None:
    with pytest.raises(UsageError, match=f"(?i){says}"):
        Mixture(dict(zip(sources, weights, strict=False)))


def test_bad_input_is_refused_in_words(index: SampleIndex, sources: list[SampleIndex]) -> None:
    empty = index.select([])
    for wrong, says in [
        (lambda: AISSampleReader(empty), "no sample"),
        (lambda: Mixture({empty: 1}), "no sample"),
        (lambda: Mixture({}), "a mixture of nothing"),
        (lambda: Mixture([(3, {index: 1})]), "a mixture without weights"),  # type: ignore[arg-type]
        (lambda: Mixture({index: 1}, stop="last"), "stop='last'"),  # type: ignore[arg-type]
        (lambda: AISSampleReader(index, positions=[TOTAL]), f"has {TOTAL} to {TOTAL}, the index {TOTAL}"),
        (lambda: AISSampleReader(index, positions=[-1]), "has -1"),
        (lambda: AISSampleReader(index, positions=[]), "shape"),
        (lambda: AISSampleReader(Mixture({sources[0]: 1, sources[1]: 1}), positions=[0]), "of a mixture"),
        (lambda: AISSampleReader(index, batch_size=0), "batch_size"),
        (lambda: AISSampleReader(index, empty="skip"), "empty='skip'"),  # type: ignore[arg-type]
        (lambda: AISSampleReader(index, tail="cut"), "tail='cut'"),  # type: ignore[arg-type]
        (lambda: AISSampleReader(index, epoch_steps=0), "epoch_steps=0"),
        (
            lambda: list(ais_loader(plain(index), global_batch=2, rank=0, world_size=3)),
            "leaves a rank without",
        ),
        (lambda: ais_loader(plain(index), global_batch=0), "global_batch"),
        (lambda: ais_loader(plain(index), epoch_steps="pad"), "take equal steps anyway"),
        (lambda: ais_loader(plain(index)).samples_of(-1), "step=-1"),
    ]:
        with pytest.raises((UsageError, IndexError), match=f"(?i){says}"):
            wrong()


@pytest.mark.parametrize("tail", ["short", "drop", "pad"])
def test_a_batch_larger_than_the_data_is_refused_on_every_rank_with_both_numbers(
    index: SampleIndex, sources: list[SampleIndex], tail: Any
) -> None:
    whole = TOTAL // 3 + 1
    for rank in range(3):
        here: Any = {"rank": rank, "world_size": 3}
        says = f"global batch of {3 * whole} samples is larger than the epoch, which has {TOTAL}"
        for wrong in (
            lambda: list(ais_loader(plain(index, whole, tail=tail), **here)),  # noqa: B023
            lambda: len(ais_loader(plain(index, whole, tail=tail), **here)),  # noqa: B023
            lambda: list(ais_loader(plain(index), global_batch=3 * whole, tail=tail, **here)),  # noqa: B023
            lambda: list(as_dataset(plain(index, whole, tail=tail), **here)),  # noqa: B023
        ):
            with pytest.raises(UsageError, match=says) as caught:
                wrong()
            assert "epoch_steps=" in caught.value.todo
    assert len(list(ais_loader(plain(index, TOTAL, tail=tail)))) == 1
    steps = list(ais_loader(plain(index, 2 * TOTAL, tail=tail), epoch_steps=2))  # told how long an epoch is
    assert Counter(number for step in steps for number in numbers(step)) == dict.fromkeys(range(TOTAL), 4)
    few = Mixture({sources[0]: 1, sources[2]: 1})  # the first ends when the seven of source 0 were seen
    with pytest.raises(UsageError, match=r"20 samples is larger than the epoch, which has 14"):
        list(ais_loader(plain(few, 20, tail=tail)))
    assert len(list(plain(index, 9, tail=tail))) > 0
    assert len(list(AISSampleReader(index, tail=tail))) == TOTAL  # without batches there is none too large


def test_several_ranks_need_to_know_what_a_batch_is(index: SampleIndex) -> None:
    reader = AISSampleReader(index)
    with pytest.raises(UsageError, match="nothing says what a batch is"):
        list(ais_loader(reader, rank=0, world_size=2))
    with pytest.raises(UsageError, match="nothing says what a batch is"):
        list(as_dataset(reader, rank=0, world_size=2))
    got = [list(as_dataset(AISSampleReader(index, batch_size=4), rank=r, world_size=2)) for r in range(2)]
    assert sorted(s["__key__"] for one in got for s in one) == [f"{n:05d}" for n in range(TOTAL)]
    assert got[0][4]["__key__"] == "00008"  # slices of 4 of global batches of 8


def test_the_order_is_that_of_the_readers_seed_and_epoch_where_no_loader_says(index: SampleIndex) -> None:
    def order(pipe: Any) -> list[int]:
        return [number for batch in pipe for number in numbers(batch)]

    pipe = plain(index, seed=4)
    first, second = order(pipe), order(pipe)
    assert first != second
    again = plain(index, seed=4)
    reader: Any = plan_of(again)
    reader.set_epoch(1)
    assert order(again) == second
    reader.set_epoch(0)
    assert order(again) == first
    for seed, expected in ((4, first), (5, None)):
        with ais_loader(plain(index, seed=99), seed=seed) as loader:
            assert (order(loader) == first) == (expected is not None)
    sent = plain(index, seed=4)
    reader = plan_of(sent)
    reader.set_seed(17)
    of_seed = order(sent)
    assert of_seed not in (first, second)
    assert order(sent) == of_seed  # the same seed, until another one comes
    reader.set_epoch(0)
    assert order(sent) == first  # the program's word counts more than the loader's seed
