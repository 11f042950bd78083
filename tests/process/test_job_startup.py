"""The start of a large job: pages listed once, ranks that begin one after the other, requests shared out on a node."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import run_forked

from torchdata_ais import AISSourceLister, ais_loader, as_dataset, explain
from torchdata_ais._util.world import World
from torchdata_ais.errors import UsageError, WorkerDiedError
from torchdata_ais.local import LocalCluster, Status
from torchdata_ais.pipes.base.pipe import Pipe
from torchdata_ais.pipes.base.upstream import upstream
from torchdata_ais.ranks.intervals import delay_of, spread_of
from torchdata_ais.ranks.rendezvous import wait_for_turn
from torchdata_ais.store import StoreOptions
from torchdata_ais.testing import shard_bytes

pytestmark = pytest.mark.kills

SHARDS = 8


@pytest.fixture(scope="module")
def running() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        bucket = running.client().bucket("start").create()
        for number in range(SHARDS):
            content = shard_bytes({f"{number}-{sample}.cls": b"1" for sample in range(4)})
            bucket.object(f"s-{number}.tar").get_writer().put_content(content)
        yield running


@pytest.fixture
def cluster(running: LocalCluster) -> Iterator[LocalCluster]:
    running.reset_stats()
    yield running
    running.faults.clear()


def chain(endpoint: str, **more: Any) -> Any:
    pipe: Any = AISSourceLister("ais://start/s-", cluster=StoreOptions(endpoint, **more))
    return pipe.shuffle().load_tar().group_samples().extract_keys("__key__").batched(1)


def lists(cluster: LocalCluster) -> list[int]:
    return [record.status for record in cluster.requests() if "/v1/buckets/start" in record.url]


def keys(items: Any) -> list[str]:
    return [key for (batch,) in items for key in batch]


def two_epochs(rank: int, job: dict[str, Any]) -> list[str]:
    with ais_loader(chain(job["endpoint"]), num_workers=2) as loader:
        return keys(loader) + keys(loader)


@pytest.mark.ci
def test_a_page_that_fails_is_asked_for_again_and_none_twice(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.faults.add(Status(503), verb="LIST", nth=1)
    answers = run_forked(two_epochs, 3, tmp_path, endpoint=cluster.endpoint)
    assert sum(len(answer["value"]) for answer in answers) == 2 * 4 * SHARDS, answers
    assert lists(cluster) == [503, 200]


def test_workers_that_begin_anew_after_one_was_killed_list_nothing(cluster: LocalCluster) -> None:
    with ais_loader(chain(cluster.endpoint), num_workers=2) as loader:
        items = iter(loader)
        next(items)
        (pid, *_) = [
            process.pid for process in loader._runner._engine._loader.reading_service._pool.processes
        ]
        assert pid > 1
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError):
            keys(items)
        assert len(keys(loader)) == 4 * SHARDS
    assert lists(cluster) == [200]


def when(rank: int, job: dict[str, Any]) -> tuple[float, list[str]]:
    with ais_loader(chain(job["endpoint"]), start_spread_s=job["spread_s"], rank_timeout_s=60) as loader:
        found = keys(loader)
    return time.time(), found


@pytest.mark.ci
def test_ranks_begin_one_after_the_other(cluster: LocalCluster, tmp_path: Path) -> None:
    answers = run_forked(when, 3, tmp_path, endpoint=cluster.endpoint, spread_s=3.0)
    times = [answer["value"][0] for answer in answers]
    assert times[0] + 0.5 < times[1]
    assert times[1] + 0.5 < times[2] < times[0] + 3.0 + 20
    assert sorted(key for answer in answers for key in answer["value"][1]) == sorted(
        f"{shard}-{sample}" for shard in range(SHARDS) for sample in range(4)
    )


def quick(rank: int, job: dict[str, Any]) -> float:
    begun = time.monotonic()
    as_dataset(chain(job["endpoint"]), start_spread_s=job["spread_s"])
    return time.monotonic() - begun


@pytest.mark.ci
def test_a_dataset_waits_where_it_is_made(cluster: LocalCluster, tmp_path: Path) -> None:
    answers = run_forked(quick, 2, tmp_path, endpoint=cluster.endpoint, spread_s=2.0)
    assert answers[1]["value"] > 0.9


def test_a_small_job_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("torchdata_ais.ranks.rendezvous.time.sleep", slept.append)
    for size in (1, 2, 64):
        wait_for_turn(World(size - 1, size), 64, None, None)
    assert not slept
    wait_for_turn(World(99, 100), 10, None, None)
    assert slept == [pytest.approx(1.98)]
    wait_for_turn(World(99, 100), 10, 0.0, None)
    wait_for_turn(World(0, 100), 10, None, None)
    assert len(slept) == 1


@pytest.mark.parametrize("processes", [65, 1000, 100_000])
def test_the_moments_are_spread_evenly_and_bounded(processes: int) -> None:
    spread = spread_of(processes, 8)
    assert 0 < spread <= 30
    delays = [delay_of(process, processes, spread) for process in range(processes)]
    assert delays == sorted(delays)
    assert delays[0] == 0
    assert max(delays) < spread
    if spread < 30:
        assert processes * 8 / spread <= 500  # workers a second


def test_what_is_waited_for_is_explained(cluster: LocalCluster) -> None:
    pipe = chain(cluster.endpoint)
    assert "start:" not in str(explain(pipe, num_workers=8, world=64))
    assert "start: the ranks begin within 16.0 s (start_spread_s=)" in str(
        explain(pipe, num_workers=8, world=1000)
    )


@pytest.mark.parametrize("seconds", [-1, 1e6, float("nan")])
def test_spreads_that_cannot_work_are_refused(cluster: LocalCluster, seconds: float) -> None:
    with pytest.raises(UsageError, match="start_spread_s"):
        ais_loader(chain(cluster.endpoint), start_spread_s=seconds)


class _Share(Pipe[int]):
    """Yields what a stage above may have in flight."""

    def _items(self) -> Iterator[int]:
        for _ in self._source:
            stage = next(one for one in upstream(self) if one.functional_name == "load_tar")
            yield stage.transport.resolve(stage).node_requests


@pytest.mark.parametrize(("ranks", "workers", "each"), [(1, 2, 128), (8, 2, 16), (200, 2, 1)])
def test_requests_are_shared_out_over_the_processes_of_a_node(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, ranks: int, workers: int, each: int
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    pipe: Any = AISSourceLister("ais://start/s-", cluster=StoreOptions(cluster.endpoint)).load_tar()
    with ais_loader(_Share(pipe.group_samples()), num_workers=workers) as loader:
        assert set(loader) == {each}
