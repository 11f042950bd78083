"""Promise 5 by index: ranks and workers are killed and begun anew on other topologies; the global order goes on.

1 seeded run in every run, 20 in ``.ci/run``; ``-m slow`` runs 500.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from itertools import islice
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from helpers.waiting import is_living

from torchdata_ais import SampleIndex, Schedule, ais_loader
from torchdata_ais.index import Mixture
from torchdata_ais.pipes import AISSampleReader
from torchdata_ais.testing import write_shard

pytestmark = [
    pytest.mark.kills,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

FORK = multiprocessing.get_context("fork")
SIZES = (11, 40, 23, 7)
WITHIN_S = 120.0

RUNS = pytest.mark.parametrize(
    ("first", "runs"),
    [
        (0, 1),
        pytest.param(0, 10, marks=pytest.mark.ci),
        pytest.param(10, 10, marks=pytest.mark.ci),
        pytest.param(0, 500, marks=pytest.mark.slow),
    ],
)

Row = tuple[str, int]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[SampleIndex]:
    folder = tmp_path_factory.mktemp("kills")
    return [
        SampleIndex.build(
            write_shard(folder / f"{source}.tar", {f"{source}-{n:03d}.cls": b"%d" % n for n in range(size)})
        )
        for source, size in enumerate(SIZES)
    ]


def with_draw(sample: Any, rng: random.Random) -> Any:
    return {**sample, "draw": rng.getrandbits(60)}


def rows(batch: Any) -> list[Row]:
    keys, draws = batch
    return list(zip(keys, draws.tolist(), strict=True))


class Job:
    """A drawn run: what is read and how, apart from ranks and workers."""

    def __init__(self, dice: random.Random, sources: list[SampleIndex]) -> None:
        chosen = dice.sample(sources, dice.randint(1, 4))
        weights = [dice.randint(1, 5) for _ in chosen]
        stop = dice.choice(["first", "all", "never"])
        self.mixture = Mixture(dict(zip(chosen, weights, strict=True)), stop=stop)
        self.how: dict[str, Any] = {
            "shuffle": dice.choice(["samples", "samples", "runs", None]),
            "tail": dice.choice(["short", "pad"]),
            "epoch_steps": dice.randint(2, 9) if stop == "never" else None,
        }
        self.batch = min(dice.randint(4, 13), *map(len, chosen))  # an epoch has at least that many
        self.seed = dice.randrange(1 << 30)
        self.steps = dice.randint(8, 40)
        self.schedule = self._schedule(dice) if dice.random() < 0.5 else Schedule()

    def _schedule(self, dice: random.Random) -> Schedule:
        steps = sorted(dice.sample(range(1, 40), 5))
        count = len(self.mixture.sources)
        return Schedule(
            global_batch={steps[0]: dice.randint(3, self.batch), steps[3]: dice.randint(3, self.batch)},
            weights={(steps[1], steps[2]): [dice.randint(1, 5) for _ in range(count)]},
            skip={(steps[4], steps[4] + 1): "drop" if self.how["epoch_steps"] else "defer"},
        )

    def given(self, state: Any) -> int:
        """How many steps were given before a state."""
        if state is None:
            return 0
        return int(state["step"]) - sum(state["step"] > begin for begin, _, _ in self.schedule.skips)

    def loader(self, **how: Any) -> Any:
        reader = AISSampleReader(self.mixture, **self.how).map_sample(with_draw, rng=True)
        pipe = reader.to_tuple("__key__", "draw").batched(4)
        if self.schedule:
            how["schedule"] = self.schedule
        return ais_loader(pipe, seed=self.seed, global_batch=self.batch, **how)

    def expected(self) -> list[Counter[Row]]:
        with self.loader() as loader:
            return [Counter(rows(batch)) for batch in islice(endless(loader), self.steps)]


def endless(loader: Any) -> Any:
    while True:
        yield from loader


def be_rank(job: Job, state: Any, log: Path, how: dict[str, Any]) -> None:
    """Train: of each step its samples and the state after it are written down."""
    os.setpgid(0, 0)
    forkserver._forkserver._forkserver_pid = None  # type: ignore[attr-defined]
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # that a worker was killed is no news
    done = job.given(state)
    with job.loader(**how) as loader, log.open("w") as file:
        if state is not None:
            loader.load_state_dict(state)
        for batch in islice(endless(loader), job.steps - done):
            print(json.dumps([rows(batch), loader.state_dict()]), file=file, flush=True)
            time.sleep(0.001)


def written(log: Path) -> int:
    """Return how many steps a log has so far."""
    return log.read_bytes().count(b"\n") if log.exists() else 0


def lines(log: Path) -> list[Any]:
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def children_of(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def kill(pid: int | None) -> None:
    if pid is not None and pid > 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def train(dice: random.Random, job: Job, state: Any, folder: Path, context: str) -> list[Path]:
    """Run some ranks until they end, or until some or all of them, or their workers, are killed; return their logs."""
    folder.mkdir()
    ranks = dice.randint(1, 3)
    workers: list[int] = []
    logs = [folder / str(rank) for rank in range(ranks)]
    processes = []
    for rank, log in enumerate(logs):
        how = {
            "rank": rank,
            "world_size": ranks,
            "num_workers": 1 if context != "fork" else dice.choice([0, 1, 2]),
            "multiprocessing_context": context,
            "prefetch": dice.choice([1, 4]),
        }
        processes.append(FORK.Process(target=be_rank, args=(job, state, log, how)))
    try:
        for process in processes:
            process.start()
        left = job.steps - job.given(state)
        watched, most = dice.randrange(ranks), dice.randint(0, left)
        there, deadline = -1, 0.0
        while (now := written(logs[watched])) < most and processes[watched].is_alive():
            if now > there:  # each epoch may begin with a process that imports torch
                there, deadline = now, time.monotonic() + WITHIN_S
            assert time.monotonic() < deadline, "a rank does not go on"
            time.sleep(0.002)
        victims = [process.pid for process in processes]
        workers = [pid for rank in victims for pid in children_of(rank or 0)]
        if workers and dice.random() < 0.3:
            kill(dice.choice(workers))  # its rank ends with an error, the others are killed a little later
            time.sleep(0.01 * dice.random())
        for victim in dice.sample(victims, len(victims)):
            kill(victim)
    finally:
        for process in processes:
            if process.pid is not None:
                kill(process.pid)
                process.join(WITHIN_S)
    deadline = time.monotonic() + WITHIN_S
    while any(is_living(pid) for pid in workers):
        assert time.monotonic() < deadline, "a worker lives on without its rank"
        time.sleep(0.01)
    return logs


@RUNS
def test_promise_5_killed_and_begun_anew_on_any_topology_the_same_global_order_goes_on(
    first: int, runs: int, sources: list[SampleIndex], tmp_path: Path
) -> None:
    first, runs = int(os.environ.get("CHAOS_FIRST", first)), int(os.environ.get("CHAOS_RUNS", runs))
    for number in range(first, first + runs):
        one_run(number, sources, tmp_path / str(number))


def one_run(number: int, sources: list[SampleIndex], folder: Path) -> None:
    folder.mkdir()
    dice = random.Random(number)
    job = Job(dice, sources)
    expected = job.expected()
    got: list[Counter[Row]] = []
    state: Any = None
    for attempt in range(100):
        context = dice.choice(["spawn", "forkserver"]) if number % 10 == 3 and attempt == 1 else "fork"
        logs = [lines(log) for log in train(dice, job, state, folder / str(attempt), context)]
        together = min(map(len, logs))
        for step in range(together):
            parts = [Counter(map(tuple, log[step][0])) for log in logs]
            whole = expected[len(got)]
            # Where fewer positions than ranks are left, a rank repeats one; else each sample comes once.
            assert set().union(*parts) == set(whole), f"run {number}, step {len(got)}"
            if whole.total() >= len(logs):
                assert sum(parts, Counter()) == whole, f"run {number}, step {len(got)}"
            got.append(whole)
        if together:
            states = [log[together - 1][1] for log in logs]
            assert all(one == states[0] for one in states), f"run {number}"
            state = dice.choice(states)
            assert len(json.dumps(state)) < 1000
        if len(got) == job.steps:
            return
    raise AssertionError(f"run {number} came to no end: {len(got)} of {job.steps} steps")
