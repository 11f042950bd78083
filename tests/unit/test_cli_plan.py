"""``torchdata-ais trace-step`` and ``simulate``: what they say is what a loader does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from torchdata_ais import AISSampleReader, LocalCluster, Mixture, SampleIndex, ais_loader
from torchdata_ais.checking.simulate import Simulation, simulated
from torchdata_ais.cli import app
from torchdata_ais.errors import UsageError
from torchdata_ais.testing import example_shards, shard_bytes

SHARDS, EACH = 5, 40
SAMPLE = 2 << 10  # one member of up to 1.5 KiB, with its header


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


# trace-step


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Indexes of 51 and of 12 samples."""
    found = []
    for name, counts in (("a", (30, 1, 20)), ("b", (12,))):
        folder = tmp_path_factory.mktemp(name)
        where = str(folder / "index")
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
    return SampleIndex.build("ais://simulated/", endpoint=cluster.endpoint, method="read")


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
        reader = AISSampleReader(stored, shuffle=shuffle, prefetch_bytes=256 << 10, endpoint=cluster.endpoint)
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
            patched.setattr("torchdata_ais.reading.forecast._MOST_SAMPLES", 8000)
            guessed = simulate(shuffle).traffic
        assert (counted.exact, guessed.exact) == (True, False)
        for name in ("ranges", "requests", "bytes"):
            assert getattr(guessed, name) == pytest.approx(getattr(counted, name), rel=0.25), (shuffle, name)


def test_it_is_shown_as_a_table() -> None:
    result = run("simulate", "--ranks", 4, "--workers", 2, "--shards", 3, "--samples", 1000)
    rows = dict(re.split(r" {2,}", line)[:2] for line in result.stdout.splitlines()[1:])
    assert rows["steps of a rank"] == "1"
    assert rows["idle workers"] == "4"
    assert re.search(r"idle workers +4 +5$", result.stdout, re.MULTILINE)
    assert simulated(ranks=1, workers=0, shards=10_001, samples=20_000, proof="headers").listing_pages == 2


@pytest.mark.parametrize(
    "words",
    [
        ("--shards", "x", "--samples", 10),
        ("--shards", "1.5", "--samples", 10),
        ("--shards", 10, "--samples", 5),
        ("--shards", 1, "--samples", "inf"),
        ("--shards", 1, "--samples", 10, "--ranks", 20, "--global-batch", 10),
    ],
)
def test_numbers_that_cannot_be_are_told(words: tuple[object, ...]) -> None:
    result = run("simulate", *words)
    assert result.exit_code == 2, result.output
    assert "error: " in result.stderr


def test_programs_are_told_too() -> None:
    with pytest.raises(UsageError, match="0 ranks"):
        simulated(ranks=0, workers=0, shards=1, samples=1)
