"""Loaders that read by index, over drawn shuffles, tails, batches, ranks and epochs, compared with one rank.

The order is a function of the data, the seed, the epoch and the global batch: so what ranks give together, before and
after a state is resumed by another number of ranks, is what one rank gives that was never stopped.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.utils.data.distributed import DistributedSampler

from torchdata_ais import AISSampleReader, Mixture, SampleDataset, SampleIndex, ais_loader
from torchdata_ais.dataloader2 import DataLoader2, InProcessReadingService
from torchdata_ais.loaders import as_dataset
from torchdata_ais.pipes.planned.batches import plan_of
from torchdata_ais.testing import write_shard

SIZES = (13, 23, 40)
EPOCHS = 3
QUIET: Any = {"deadline": None, "suppress_health_check": list(HealthCheck), "phases": [Phase.generate]}

Batch = list[str]


class Data(NamedTuple):
    """Indexes of each size, and the texts to join with them."""

    indexes: list[SampleIndex]
    joined: list[SampleIndex]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    def write(name: str, size: int, field: str) -> SampleIndex:
        folder = tmp_path_factory.mktemp(f"{name}{size}")
        paths = []
        for shard, begin in enumerate(range(0, size, 9)):
            numbers = range(begin, min(begin + 9, size))
            members = {f"{size}-{n:02}.{field}": b"x" * (1 + 5 * n % 17) for n in numbers}
            paths.append(write_shard(Path(folder, f"{shard}.tar"), members))
        return SampleIndex.build(paths)

    indexes = [write("a", size, "txt") for size in SIZES]
    return Data(
        indexes, [one.join(write("b", size, "cap")) for one, size in zip(indexes, SIZES, strict=True)]
    )


class Case(NamedTuple):
    """What is read, and how."""

    sizes: tuple[int, ...]
    shuffle: Any
    tail: Any
    stop: Any
    kind: str
    batch: int
    seed: int

    @property
    def total(self) -> int:
        return sum(self.sizes)

    def pipe(self, data: Data) -> Any:
        indexes = data.joined if self.kind == "join" else data.indexes
        chosen = [indexes[SIZES.index(size)] for size in self.sizes]
        source: Any = chosen[0]
        if len(chosen) > 1:
            source = Mixture(dict.fromkeys(chosen, 1), stop=self.stop)
        reader = AISSampleReader(source, shuffle=self.shuffle, tail=self.tail, batch_size=self.batch)
        if self.kind == "pack":
            return reader.to_tuple("__key__").pack("txt", 20)
        return reader.to_tuple("__key__").batched(self.batch, collation_fn=list)

    def loader(self, data: Data, rank: int = 0, ranks: int = 1) -> Any:
        return ais_loader(
            self.pipe(data), seed=self.seed, rank=rank, world_size=ranks, global_batch=self.batch
        )


def keys_of(item: Any) -> Batch:
    """Return the keys in a batch, or in the packs of a step."""
    if isinstance(item, tuple):
        return [item[0]]
    return [key for part in item for key in keys_of(part)]


KINDS = st.sampled_from(["samples", "samples", "pack", "join"])


@st.composite
def cases(draw: st.DrawFn, *, most_sources: int = 2) -> Case:
    kind = draw(KINDS)
    most = 1 if kind == "pack" else most_sources
    sizes = tuple(draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=most, unique=True)))
    return Case(
        sizes,
        draw(st.sampled_from(["samples", "runs", None])),
        draw(st.sampled_from(["short", "drop", "pad"])),
        draw(st.sampled_from(["first", "all"])),
        kind,
        4 if kind == "pack" else draw(st.sampled_from([4, 8, 12])),
        draw(st.integers(0, 2**31)),
    )


def epochs_of(loader: Any, count: int = EPOCHS) -> list[list[Batch]]:
    return [[keys_of(item) for item in loader] for _ in range(count)]


def together(parts: list[list[Batch]]) -> list[Batch]:
    """Return what ranks gave as global batches; all must have had as many steps."""
    assert len({len(part) for part in parts}) == 1
    return [sum(step, []) for step in zip(*parts, strict=True)]


def check_same(found: list[Batch], wanted: list[Batch], *, last: bool) -> None:
    """Compare global batches. Of the last of an epoch, ranks may have repeated samples so that each has one."""
    assert len(found) == len(wanted)
    if not last or not found:
        assert found == wanted
        return
    assert found[:-1] == wanted[:-1]
    assert set(found[-1]) == set(wanted[-1])


@settings(max_examples=examples(100), **QUIET)
@given(case=cases(), ranks=st.sampled_from([1, 2, 4]), after=st.sampled_from([1, 2, 4]), draw=st.data())
def test_promise_5_any_ranks_resume_any_epoch_with_what_is_left_of_it(
    data: Data, case: Case, ranks: int, after: int, draw: st.DataObject
) -> None:
    with case.loader(data) as alone:
        whole = epochs_of(alone)
    epoch = draw.draw(st.integers(0, EPOCHS - 2), "epoch")
    stopped = draw.draw(st.integers(0, len(whole[epoch])), "steps")
    states, parts = [], []
    for rank in range(ranks):
        with case.loader(data, rank, ranks) as running:
            for wanted in range(epoch):
                assert len(list(running)) == len(whole[wanted])
            items = iter(running)
            parts.append([keys_of(item) for item in islice(items, stopped)])
            states.append(running.state_dict())
            del items
    assert all(state == states[0] for state in states)
    check_same(together(parts), whole[epoch][:stopped], last=stopped == len(whole[epoch]))
    rest, following = [], []
    for rank in range(after):
        with case.loader(data, rank, after) as resumed:
            resumed.load_state_dict(states[0])
            rest.append([keys_of(item) for item in resumed])
            following.append([keys_of(item) for item in resumed])
    if stopped in (0, len(whole[epoch])) and len(rest[0]) != len(whole[epoch]) - stopped:
        # A state of the end of an epoch goes on with the next one.
        assert stopped == len(whole[epoch])
        check_same(together(rest), whole[epoch + 1], last=True)
        return
    check_same(together(rest), whole[epoch][stopped:], last=True)
    check_same(together(following), whole[epoch + 1], last=True)


@settings(max_examples=examples(60), **QUIET)
@given(case=cases(most_sources=1), after=st.sampled_from([4, 8, 12]), draw=st.data())
def test_promise_3_another_batch_on_resume_gives_each_sample_of_the_epoch_once(
    data: Data, case: Case, after: int, draw: st.DataObject
) -> None:
    case = case._replace(tail="short")
    changed = case._replace(batch=case.batch if case.kind == "pack" else after)
    everything = Counter(key for item in case.pipe(data) for key in keys_of(item))
    assert set(everything.values()) == {1}
    assert len(everything) == case.total
    epoch = draw.draw(st.integers(0, 2), "epoch")
    with case.loader(data) as running:
        for _ in range(epoch):
            assert Counter(sum(map(keys_of, running), [])) == everything
        stopped = draw.draw(st.integers(0, max(0, len(running) - 1)), "steps")
        head = sum(map(keys_of, islice(iter(running), stopped)), [])
        state = running.state_dict()
    ranks = draw.draw(st.sampled_from([1, 2]), "ranks")
    rest: list[str] = []
    following: list[str] = []
    for rank in range(ranks):
        with changed.loader(data, rank, ranks) as resumed:
            resumed.load_state_dict(state, allow={"batch"})
            rest += sum(map(keys_of, resumed), [])
            following += sum(map(keys_of, resumed), [])
    if ranks == 1:
        assert Counter(head + rest) == everything
        assert Counter(following) == everything
    else:  # the last batch of an epoch may be repeated in part
        assert set(head + rest) == set(following) == set(everything)
        assert not set(head) & set(rest)


@settings(max_examples=examples(60), **QUIET)
@given(
    sizes=st.permutations(SIZES).map(lambda sizes: tuple(sizes[:2])),
    weights=st.lists(st.sampled_from([1, 2, 5]), min_size=4, max_size=4),
    batches=st.tuples(*[st.sampled_from([4, 8, 12])] * 2),
    ranks=st.tuples(*[st.sampled_from([1, 2])] * 2),
    stop=st.sampled_from(["first", "all"]),
    draw=st.data(),
)
def test_promise_3_other_weights_and_another_batch_on_resume_keep_the_epoch(
    data: Data, sizes: Any, weights: list[int], batches: Any, ranks: Any, stop: Any, draw: st.DataObject
) -> None:
    """Two ranks each, before and after; the state is taken in any epoch, the next one is read as well."""

    def loader(part: int, rank: int) -> Any:
        shares = weights[:2] if part == 0 else weights[2:]
        sources = {data.indexes[SIZES.index(size)]: w for size, w in zip(sizes, shares, strict=True)}
        reader = AISSampleReader(Mixture(sources, stop=stop), batch_size=batches[part])
        pipe = reader.to_tuple("__key__").batched(batches[part], collation_fn=list)
        return ais_loader(pipe, rank=rank, world_size=ranks[part], global_batch=batches[part])

    everything = {f"{size}-{number:02}" for size in sizes for number in range(size)}
    epoch = draw.draw(st.integers(0, 2), "epoch")
    stopped = 0
    head: list[str] = []
    for rank in range(ranks[0]):
        with loader(0, rank) as running:
            for _ in range(epoch):
                list(running)
            stopped = draw.draw(st.integers(0, len(running) - 1), "steps") if rank == 0 else stopped
            head += sum(map(keys_of, islice(iter(running), stopped)), [])
            state = running.state_dict()
    rest: list[str] = []
    following: list[str] = []
    for rank in range(ranks[1]):
        with loader(1, rank) as resumed:
            resumed.load_state_dict(state, allow={"batch", "weights"})
            if not stopped or resumed.under_way:  # else nothing is left of the epoch with these weights
                rest += sum(map(keys_of, resumed), [])
            following += sum(map(keys_of, resumed), [])
    repeats = 0 if ranks[1] == 1 else ranks[1] - 1  # the last batch of an epoch may be repeated in part
    if stop == "all":
        assert set(head + rest) == set(following) == everything
    else:
        assert max(Counter(following).values()) == 1 or len(following) - len(set(following)) <= repeats
        assert len(head + rest) - len(set(head + rest)) <= repeats


@settings(max_examples=examples(60), **QUIET)
@given(case=cases(), epoch=st.integers(0, 3), draw=st.data())
def test_promise_4_and_5_as_dataset_and_dataloader2_give_the_order_of_the_loader(
    data: Data, case: Case, epoch: int, draw: st.DataObject
) -> None:
    def pipe() -> Any:
        made = case.pipe(data)
        plan_of(made).set_epoch(epoch)
        return made

    wanted = [keys_of(item) for item in pipe()]
    dataset = as_dataset(pipe(), seed=case.seed, rank=0, world_size=1)
    items = iter(dataset)
    stopped = draw.draw(st.integers(0, max(0, len(wanted) - 1)), "items")
    head = [keys_of(item) for item in islice(items, stopped)]
    assert head == wanted[:stopped]
    state = dataset.state_dict()
    resumed = as_dataset(pipe(), seed=case.seed, rank=0, world_size=1)
    resumed.load_state_dict(state)
    if stopped:
        assert head + [keys_of(item) for item in resumed] == wanted
    service = draw.draw(st.sampled_from([lambda: None, InProcessReadingService]))()
    with DataLoader2(pipe(), reading_service=service) as two:
        assert [keys_of(item) for item in two] == wanted


@settings(max_examples=examples(100), **QUIET)
@given(
    size=st.sampled_from(SIZES),
    join=st.booleans(),
    chosen=st.booleans(),
    ranks=st.integers(1, 4),
    epoch=st.integers(0, 3),
    draw=st.data(),
)
def test_promise_3_a_sample_dataset_gives_what_is_asked_for_in_any_epoch(
    data: Data, size: int, join: bool, chosen: bool, ranks: int, epoch: int, draw: st.DataObject
) -> None:
    index: Any = (data.joined if join else data.indexes)[SIZES.index(size)]
    names = [f"{size}-{n:02}" for n in range(size)]
    if chosen:
        numbers = draw.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=9, unique=True))
        index = index.select(np.array(numbers))
        names = [names[number] for number in sorted(numbers)]
    dataset = SampleDataset(index)
    assert len(dataset) == len(names)
    wanted = draw.draw(st.lists(st.integers(0, len(names) - 1), max_size=12))
    assert [sample["__key__"] for sample in dataset.__getitems__(wanted)] == [names[n] for n in wanted]
    assert [dataset[n]["__key__"] for n in wanted[:3]] == [names[n] for n in wanted[:3]]
    found: list[str] = []
    for rank in range(ranks):
        sampler: Any = DistributedSampler(dataset, ranks, rank, seed=epoch)
        sampler.set_epoch(epoch)
        found += [sample["__key__"] for sample in dataset.__getitems__(list(sampler))]
    assert set(found) == set(names)
    assert len(found) == -(-len(names) // ranks) * ranks
