"""Promises 1 and 2 by index, with proof "bytes": whatever a cluster answers, no sample is lost, swapped or wrong.

20 schedules in every run, 150 in ``.ci/run``, ``CHAOS_RUNS`` (10,000) with ``-m slow``.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from torchdata_ais import AISSampleReader, AISSourceLister, Retry, Sample, SampleIndex, StoreOptions
from torchdata_ais.errors import AISError
from torchdata_ais.local import (
    Action,
    Cut,
    DeadRedirect,
    Delay,
    EmptyEntry,
    EndBatch,
    FlipBit,
    LocalCluster,
    NewVersion,
    Placeholder,
    Reset,
    Stall,
    Status,
    SwapEntries,
    WholeObject,
)
from torchdata_ais.store import concurrency_limit_of, put_object
from torchdata_ais.testing import shard_bytes

RUNS = 150
MANY = int(os.environ.get("CHAOS_RUNS", "10000"))
FIRST = int(os.environ.get("CHAOS_FIRST", "100000"))
SHARDS, SAMPLES = 4, 30


class Faulty:
    """A cluster with an index, of which samples are read under random faults."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.options = StoreOptions(
            endpoint=cluster.endpoint, stall_timeout=0.2, first_byte_timeout=1.0,
            retry=Retry(attempts=3, backoff=0.001, max_backoff=0.01, deadline=10),
        )  # fmt: skip
        cluster.client().bucket("b").create()
        rng = random.Random(0)
        self.shards = {
            f"ais://b/s-{shard}.tar": shard_bytes(
                (f"{shard}-{number:02d}.{field}", rng.randbytes(rng.choice([3, 700, 5000])))
                for number in range(SAMPLES)
                for field in ("jpg", "cls")
            )
            for shard in range(SHARDS)
        }
        self.store()
        self.index = SampleIndex.build("ais://b/s-", method="read", cluster=self.options)
        self.samples: list[Sample] = list(
            AISSourceLister("ais://b/s-", cluster=cluster).load_tar().group_samples()
        )
        self.outcomes: Counter[str] = Counter()

    def store(self) -> None:
        for url, data in self.shards.items():
            put_object(url, data, self.options)

    def run(self, seed: int) -> None:
        rng = random.Random(seed)
        pace = concurrency_limit_of(self.cluster.endpoint)
        pace.batches, pace.limit, pace.inline = True, 4.0, seed % 2 == 0
        self.cluster.faults.clear()
        changed = False
        for _ in range(rng.randrange(1, 6)):
            action = _action(rng)
            changed = changed or isinstance(action, NewVersion)
            verb = rng.choice(["BATCH", "BATCH", "GET"])
            nth = None if rng.random() < 0.2 else rng.randrange(1, 4)
            self.cluster.faults.add(action, verb=verb, nth=nth, probability=rng.choice([1, 0.5]), seed=seed)
        order = [rng.randrange(len(self.index)) for _ in range(rng.randrange(1, 60))]
        goes_on = rng.random() < 0.5
        reader = AISSampleReader(
            self.index,
            positions=order,
            prefetch_bytes=rng.choice([1, 20_000, 1 << 20]),
            on_error="skip" if goes_on else "raise",
        )
        got: list[Sample] = []
        end = "whole"
        error: AISError | None = None
        try:
            for sample in reader:
                got.append(sample)
        except AISError as caught:
            error = caught
        if error is not None:
            assert not goes_on
            assert error.place.get("key"), error
            assert error.place.get("url"), error
            end = type(error).__name__
        missing = sum(reader.counts().skipped.values())
        if missing:
            end = "skipped " + "+".join(sorted(reader.counts().skipped))
        rest = iter(order)
        for sample in got:  # in the order wanted, each as the stream gives it
            found = next(number for number in rest if self.samples[number]["__key__"] == sample["__key__"])
            assert list(sample.items()) == list(self.samples[found].items())
            assert sample.offset == self.samples[found].offset
        if goes_on or end == "whole":
            assert len(got) + missing == len(order)
        else:
            assert [sample["__key__"] for sample in got] == [
                self.samples[number]["__key__"] for number in order[: len(got)]
            ]
        self.outcomes[end] += 1
        if changed:
            self.cluster.faults.clear()
            self.store()


def _action(rng: random.Random) -> Action:
    at = rng.choice([0, 1, 511, 512, 513, 1024, rng.randrange(60_000), rng.randrange(200_000)])
    entry = rng.randrange(12)
    return rng.choice(
        [
            Cut(at), Reset(at), FlipBit(at, rng.randrange(8)), EndBatch(entry), WholeObject(entry),
            Placeholder(entry), EmptyEntry(entry), SwapEntries(entry, rng.randrange(12)), Status(429, 0), Status(503),
            Status(rng.choice([400, 404, 500, 501])), DeadRedirect(), Delay(0.01), NewVersion(same_bytes=False),
            NewVersion(same_bytes=True), Stall(at) if rng.random() < 0.3 else Cut(at),
        ]
    )  # fmt: skip


@pytest.fixture(scope="module")
def faulty() -> Iterator[Faulty]:
    with LocalCluster(targets=2) as cluster:
        yield Faulty(cluster)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("runs", [20, pytest.param(RUNS, marks=pytest.mark.ci)])
def test_promise_1_and_2_by_index_no_sample_is_lost_swapped_or_wrong(faulty: Faulty, runs: int) -> None:
    for seed in range(runs):
        faulty.run(seed)
    assert faulty.outcomes["whole"] > runs // 4, faulty.outcomes
    assert len(faulty.outcomes) > 2, faulty.outcomes
    deadline = time.monotonic() + 60
    while fetching() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not fetching()


def fetching() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("torchdata_ais.fetch")]


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_thousands_of_schedules_by_index(faulty: Faulty) -> None:
    for seed in range(FIRST, FIRST + MANY):
        faulty.run(seed)
    print(f"\n{MANY} schedules by index:")
    for outcome, count in faulty.outcomes.most_common():
        print(f"{count:7d} {outcome}")
