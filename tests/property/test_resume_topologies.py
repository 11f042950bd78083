"""Promise 5 on random pipelines: stop in any epoch, go on with any number of instances, twice; exactly once.

8 seeds in every run, 100 in ``.ci/run``, 2,000 with ``-m slow``.
"""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import AISSourceLister
from torchdata_ais.loaders.instance import InstancePlan, begin, state_packer
from torchdata_ais.ranks.listing import shard_instance
from torchdata_ais.state import SharedState, pack, unpack
from torchdata_ais.testing import example_shards

pytestmark = pytest.mark.timeout(1800)

SEEDS = pytest.mark.parametrize(
    "seeds", [5, pytest.param(100, marks=pytest.mark.ci), pytest.param(2000, marks=pytest.mark.slow)]
)

COUNTS = (3, 0, 11, 1, 7, 14, 2, 5, 9)
TOTAL = sum(COUNTS)


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    paths = example_shards(tmp_path_factory.mktemp("topologies"), COUNTS)
    for index, name in ((2, ".gz"), (5, "")):  # one of the compressed ones goes by the name of a plain tar
        packed = Path(paths[index] + name)
        packed.write_bytes(gzip.compress(Path(paths[index]).read_bytes()))
        paths[index] = str(packed)
    return paths


def same(item: Any) -> Any:
    return item


def keep(item: Any) -> bool:
    return True


def random_pipe(rng: random.Random, urls: list[str]) -> Any:
    """Return a maker of one random pipeline; each call makes a new one of the same stages."""
    shuffled_shards, between, unfused = rng.random() < 0.7, rng.random() < 0.3, rng.random() < 0.3
    open_shards, threads = rng.randint(1, 4), rng.choice([0, 0, 2])
    buffer, late = rng.choice([0, 1, 4, 30]), rng.random() < 0.3
    batch, core_batch = rng.choice([0, 1, 3]), rng.random() < 0.3
    mapped_shards = rng.random() < 0.4

    def make() -> Any:
        pipe: Any = AISSourceLister(urls)
        if shuffled_shards:
            pipe = pipe.shuffle()
        if mapped_shards:
            pipe = pipe.sharding_filter().map(same)
        pipe = pipe.load_tar(open_shards=open_shards)
        if unfused:
            pipe = pipe.map(same)
        pipe = pipe.group_samples()
        if between:
            pipe = pipe.filter(keep)
        if buffer and not late:
            pipe = pipe.shuffled(buffer)
        pipe = pipe.decode(threads=threads)
        if buffer and late:
            pipe = pipe.shuffled(buffer)
        pipe = pipe.to_tuple("cls")
        if batch:
            pipe = pipe.batch(batch) if core_batch else pipe.batched(batch)
        return pipe

    return make


def flat(items: list[Any]) -> list[int]:
    numbers: list[int] = []
    for item in items:
        rows = item if isinstance(item, list) else [item]
        for row in rows:
            value = row[0]
            numbers += [value] if isinstance(value, int) else value.tolist()
    return numbers


def advance(make: Any, plan: InstancePlan, steps: int) -> tuple[list[Any], bytes | None]:
    """Run one instance for at most `steps` items; return them and where it stands."""
    pipe = make()
    shard_instance(pipe, plan.number, plan.instance)
    begin(pipe, plan)
    items: list[Any] = []
    source = iter(pipe)
    for _ in range(steps):
        try:
            items.append(next(source))
        except StopIteration:
            break
    return items, state_packer(pipe)()


@SEEDS
def test_promise_5_stopped_anywhere_resumed_on_any_topology_twice(seeds: int, urls: list[str]) -> None:
    for seed in range(seeds):
        resume_twice(seed, urls)


def resume_twice(seed: int, urls: list[str]) -> None:
    rng = random.Random(seed)
    make = random_pipe(rng, urls)
    number, epoch = rng.randint(1, 4), rng.randint(0, 5)
    plans = [InstancePlan.of(seed, epoch, number, instance) for instance in range(number)]
    done: list[int] = []
    for _ in range(3):
        states = []
        for plan in plans:
            items, state = advance(make, plan, rng.choice([0, 0, 1, 2, 5, 9]))
            done += flat(items)
            states.append(unpack(state or plan.initial_state()))  # not begun: it still has all it was given
        number = rng.randint(1, 4)
        epoch_seed = plans[0].epoch_seed
        plans = [
            InstancePlan(epoch_seed, number, i, pack(SharedState(states, i, number))) for i in range(number)
        ]
    for plan in plans:
        done += flat(advance(make, plan, 10**6)[0])
    assert sorted(done) == list(range(TOTAL)), f"seed {seed}"
    following: list[int] = []
    for instance in range(number):
        following += flat(advance(make, InstancePlan.of(seed, epoch + 1, number, instance), 10**6)[0])
    assert sorted(following) == list(range(TOTAL)), f"seed {seed}"


@SEEDS
def test_promise_5_the_same_instance_continues_to_the_letter(seeds: int, urls: list[str]) -> None:
    for seed in range(seeds):
        continue_in_steps(seed, urls)


def continue_in_steps(seed: int, urls: list[str]) -> None:
    rng = random.Random(1000 + seed)
    make = random_pipe(rng, urls)
    number = rng.randint(1, 3)
    plan = InstancePlan.of(seed, rng.randint(0, 5), number, rng.randrange(number))
    whole, _ = advance(make, plan, 10**6)
    got: list[Any] = []
    while True:
        items, state = advance(make, plan, rng.randint(1, 4))
        got += items
        if not items or state is None:
            break
        plan = InstancePlan(plan.epoch_seed, plan.number, plan.instance, state)
    assert flat(got) == flat(whole), f"seed {seed}"
