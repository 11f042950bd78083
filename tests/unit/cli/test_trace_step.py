"""``torchdata-ais trace-step`` and ``simulate``: what they say is what a loader does."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from helpers.command import run

from torchdata_ais import AISSampleReader, LocalCluster, Mixture, SampleIndex, ais_loader
from torchdata_ais.cli.checks.simulate import Simulation, simulated
from torchdata_ais.errors import UsageError
from torchdata_ais.local import Delay
from torchdata_ais.ranks.intervals import delay_of, spread_of
from torchdata_ais.ranks.start_heartbeat import interval_of
from torchdata_ais.testing import example_shards, shard_bytes

SHARDS, EACH = 5, 40
SAMPLE = 2 << 10  # one member of up to 1.5 KiB, with its header


# trace-step


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Indexes of 51 and of 12 samples."""
    found = []
    for name, counts in (("a", (30, 1, 20)), ("b", (12,))):
        folder = tmp_path_factory.mktemp(name)
        where = str(folder)
        SampleIndex.build(example_shards(folder, counts)).save(where)
        found.append(where)
    return found


@pytest.mark.parametrize("shuffle", ["samples", "runs", None])
@pytest.mark.parametrize("step", [0, 3, 4, 17])
def test_a_step_has_the_samples_that_the_loader_gives_in_it(
    folders: list[str], shuffle: Any, step: int
) -> None:
    words = ("--step", step, "--seed", 7, "--global-batch", 11, *(("--shuffle", shuffle) if shuffle else ()))
    found = json.loads(run("trace-step", folders[0], *words, "--json").stdout)
    keys = []
    index = SampleIndex.open(folders[0])
    pipe = AISSampleReader(index, shuffle=shuffle).batched(11, collation_fn=None)
    with ais_loader(pipe, seed=7, global_batch=11) as loader:
        for _ in range(4):
            keys += [[sample["__key__"] for sample in batch] for batch in loader]
    assert [one["key"] for one in found["samples"]] == keys[step]
    lines = run("trace-step", folders[0], *words).stdout.splitlines()
    assert lines == [f"{one['key']}\t{one['shard']}" for one in found["samples"]]


def test_a_step_of_a_mixture_is_that_of_its_weights(folders: list[str]) -> None:
    words = ("--step", 2, "--global-batch", 8, "--shuffle", "samples", "--weights", "3,1", "--stop", "all")
    found = json.loads(run("trace-step", *folders, *words, "--json").stdout)["samples"]
    opened = [SampleIndex.open(where) for where in folders]
    reader = AISSampleReader(Mixture(dict(zip(opened, (3, 1), strict=True)), "all"), shuffle="samples")
    with ais_loader(reader, global_batch=8) as loader:
        assert loader.samples_of(2) == [(one["key"], one["shard"]) for one in found]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--weights", "1"), 2, "for 2 indexes"),
        (("--weights", "1,x"), 2, "0.7,0.3"),
        (("--weights", "0.5,0.4"), 2, "sum to 0.9"),
        (("--weights", "1,1", "--stop", "never"), 2, "no end"),
        (("--weights", "1,-1"), 2, "above 0"),
    ],
)
def test_wrong_words_are_told(folders: list[str], words: tuple[str, ...], code: int, said: str) -> None:
    result = run("trace-step", *folders, "--step", 0, "--global-batch", 4, *words)
    assert (result.exit_code, said in result.stderr) == (code, True), result.stderr


def test_an_index_that_is_not_there_is_told(tmp_path: Path) -> None:
    result = run("trace-step", tmp_path / "none", "--step", 0, "--global-batch", 4)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")


# simulate


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=1) as started:
        yield started


@pytest.fixture(scope="module")
def stored(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> SampleIndex:
    """Shards of samples of equal size, in the cluster."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(SHARDS):
        members = {f"{shard}-{number:03d}.cls": b"%1500d" % number for number in range(EACH)}
        (folder / f"{shard}.tar").write_bytes(shard_bytes(members))
    cluster.put_dir(folder, "ais://simulated")
    return SampleIndex.build("ais://simulated/", cluster=cluster.endpoint, method="read")


@pytest.mark.parametrize("shuffle", ["samples", "runs", None])
@pytest.mark.parametrize(("ranks", "batch"), [(1, 50), (3, 64)])
def test_a_small_run_makes_the_requests_that_were_foretold(
    cluster: LocalCluster, stored: SampleIndex, shuffle: Any, ranks: int, batch: int
) -> None:
    said = simulated(
        ranks=ranks, workers=0, shards=SHARDS, samples=SHARDS * EACH, sample_bytes=SAMPLE,
        global_batch=batch, shuffle=shuffle, window_bytes=256 << 10,
    )  # fmt: skip
    assert said.traffic.exact
    cluster.reset_stats()
    got = 0
    for rank in range(ranks):
        reader = AISSampleReader(stored, shuffle=shuffle, prefetch_bytes=256 << 10, cluster=cluster.endpoint)
        pipe = reader.batched(8, collation_fn=None)
        with ais_loader(pipe, rank=rank, world_size=ranks, global_batch=batch) as loader:
            batches = list(loader)
            assert len(batches) == said.steps
            assert {len(one) for one in batches[:-1]} <= {said.batch[0], said.batch[1]}
            got += sum(map(len, batches))
            state = loader.state_dict()
    assert got == SHARDS * EACH + said.repeated
    asked = [one for one in cluster.requests() if one.role == "target" and one.method == "GET"]
    assert len(asked) == said.traffic.requests
    ranged = [one for one in asked if "/v1/objects/" in one.url]
    assert all(one.status == 206 for one in ranged)
    if len(ranged) == len(asked):
        assert sum(one.bytes_sent for one in asked) == said.traffic.bytes
    listed = [one for one in cluster.requests() if "/v1/buckets/" in one.url]
    assert len(listed) == said.listing_pages == 0
    assert abs(len(json.dumps(state)) - said.state_bytes) <= 8


def connected(cluster: LocalCluster) -> int:
    """Return how many connections to targets are established here."""
    ports = {int(url.rpartition(":")[2]) for url in cluster.target_urls}
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return sum(row[3] == "01" and int(row[2].rpartition(":")[2], 16) in ports for row in rows)


def most_connected(cluster: LocalCluster, over: threading.Event) -> int:
    """Return how many there were at most until the event."""
    most = 0
    while not over.wait(0.001):
        most = max(most, connected(cluster))
    return most


@pytest.mark.ci
@pytest.mark.parametrize("window", [64 << 10, pytest.param(1 << 20, marks=pytest.mark.ci)])
@pytest.mark.parametrize("shuffle", ["samples", None])
def test_connections_and_bytes_are_no_more_than_foretold(shuffle: Any, window: int) -> None:
    with LocalCluster(targets=1) as slow, ThreadPoolExecutor(1) as beside:
        bucket = slow.client().bucket("simulated").create()
        for shard in range(SHARDS):
            members = {f"{shard}-{number:03d}.cls": b"%1500d" % number for number in range(EACH)}
            bucket.object(f"{shard}.tar").get_writer().put_content(shard_bytes(members))
        index = SampleIndex.build("ais://simulated/", cluster=slow.endpoint, method="read")
        said = simulated(
            ranks=1, workers=0, shards=SHARDS, samples=SHARDS * EACH, sample_bytes=SAMPLE, global_batch=40,
            shuffle=shuffle, window_bytes=window,
        )  # fmt: skip
        slow.faults.add(Delay(0.05))  # so that all that is asked for is under way at the same time
        idle = connected(slow)
        slow.reset_stats()
        over = threading.Event()
        most = beside.submit(most_connected, slow, over)
        try:
            reader = AISSampleReader(index, shuffle=shuffle, prefetch_bytes=window, cluster=slow.endpoint)
            with ais_loader(reader.batched(40, collation_fn=None)) as loader:
                assert sum(map(len, loader)) == SHARDS * EACH
        finally:
            over.set()
        asked = [one for one in slow.requests() if one.role == "target" and one.method == "GET"]
        assert len(asked) == said.traffic.requests
        assert max(1, said.connections // 2) <= most.result(60) <= said.connections + idle
        sent = sum(one.bytes_sent for one in asked)
        if said.traffic.requests == said.traffic.ranges:
            assert sent == said.traffic.bytes
        else:  # many ranges in an answer: each has a header and padding in its archive
            extra = 2048 * said.traffic.ranges + 10240 * len(asked)
            assert said.traffic.bytes < sent <= said.traffic.bytes + extra


def test_pages_of_the_listing_are_those_that_were_foretold(
    cluster: LocalCluster, stored: SampleIndex
) -> None:
    by_cluster = SampleIndex.build("ais://simulated/", cluster=cluster.endpoint, method="cluster")
    for index, proof in ((by_cluster, "headers"), (stored, "bytes")):
        assert index.proof == proof
        said = simulated(
            ranks=2, workers=0, shards=SHARDS, samples=SHARDS * EACH, global_batch=50, proof=index.proof
        )
        cluster.reset_stats()
        loaders = [
            ais_loader(AISSampleReader(index, cluster=cluster.endpoint).batched(25), rank=rank, world_size=2)
            for rank in range(2)
        ]
        for loader in loaders[:1]:  # the first rank asks for all
            next(iter(loader))
            loader.close()
        listed = [one for one in cluster.requests() if one.role == "proxy" and "/v1/buckets/" in one.url]
        assert len(listed) == said.listing_pages == (proof == "headers")


@pytest.mark.ci
def test_the_run_of_the_help_page_is_simulated() -> None:
    words = ("--ranks", 10000, "--workers", 8, "--shards", "1e6", "--samples", "1e9")
    found = json.loads(run("simulate", *words, "--json").stdout)
    assert found["steps"] == 391
    assert found["global_batch"] == 2_560_000
    assert found["state_bytes"] < 1024
    assert found["stream"]["requests"] == 10**6
    assert found["traffic"]["exact"] is False
    assert found["traffic"]["ranges"] == pytest.approx(1e9, rel=0.01)
    assert found["traffic"]["bytes"] == pytest.approx(1.1e14, rel=0.01)
    assert 200 <= found["rank_shards"] <= 256
    # Of a million shards, 2,560,000 draws should miss a share of 1/e^2.56.
    assert found["batch_shards"] == pytest.approx(1e6 * (1 - 2.718281828**-2.56), rel=0.01)


def test_an_estimate_is_near_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def simulate(shuffle: Any) -> Simulation:
        return simulated(
            ranks=6,
            workers=3,
            shards=20,
            samples=20_000,
            sample_bytes=5000,
            global_batch=600,
            shuffle=shuffle,
        )

    for shuffle in ("samples", "runs", None):
        counted = simulate(shuffle).traffic
        with monkeypatch.context() as patched:
            patched.setattr("torchdata_ais.reading.planned._MOST_SAMPLES", 8000)
            guessed = simulate(shuffle).traffic
        assert (counted.exact, guessed.exact) == (True, False)
        for name in ("ranges", "requests", "bytes"):
            assert getattr(guessed, name) == pytest.approx(getattr(counted, name), rel=0.25), (shuffle, name)


def test_it_is_shown_as_a_table() -> None:
    result = run("simulate", "--ranks", 4, "--workers", 2, "--shards", 3, "--samples", 1030)
    rows = dict(re.split(r" {2,}", line)[:2] for line in result.stdout.splitlines()[1:])
    assert rows["steps of a rank"] == "2"
    assert rows["idle workers"] == "0"
    assert re.search(r"idle workers +0 +5$", result.stdout, re.MULTILINE)
    assert simulated(ranks=1, workers=0, shards=10_001, samples=20_000, proof="headers").listing_pages == 2


@pytest.mark.parametrize(
    "words",
    [
        ("--shards", "x", "--samples", 10),
        ("--shards", "1.5", "--samples", 10),
        ("--shards", 10, "--samples", 5),
        ("--shards", 1, "--samples", "inf"),
        ("--shards", 1, "--samples", 10, "--ranks", 20, "--global-batch", 10),
        ("--shards", 1, "--samples", 10, "--ranks", 2),
    ],
)
def test_numbers_that_cannot_be_are_told(words: tuple[object, ...]) -> None:
    result = run("simulate", *words)
    assert result.exit_code == 2, result.output
    assert "error: " in result.stderr


def test_programs_are_told_too() -> None:
    with pytest.raises(UsageError, match="0 ranks"):
        simulated(ranks=0, workers=0, shards=1, samples=1)


def test_what_a_large_job_costs_at_its_start_is_foretold() -> None:
    """The moments of the ranks, and what they ask the store, are those of the code that runs."""
    ranks, workers = 10_000, 8
    start = simulated(ranks=ranks, workers=workers, shards=1000, samples=10**7).start
    assert start.spread_s == spread_of(ranks, workers) == 30.0
    moments = [delay_of(rank, ranks, start.spread_s) for rank in range(ranks)]
    in_a_second = max(sum(begin <= moment < begin + 1 for moment in moments) for begin in range(30))
    assert start.requests_a_second == pytest.approx(in_a_second * workers, rel=0.01)
    assert start.peak_requests == pytest.approx(start.requests_a_second * 0.1, abs=1)
    told = sum(1 / interval_of(rank, ranks) for rank in range(ranks))
    assert start.store_requests_a_second == pytest.approx(told, rel=0.05)
    assert start.step_store_requests == 2 * ranks + 2
    alone = simulated(ranks=1, workers=2, shards=10, samples=1000).start
    assert (alone.spread_s, alone.peak_requests, alone.store_requests_a_second) == (0.0, 2, 0.0)
