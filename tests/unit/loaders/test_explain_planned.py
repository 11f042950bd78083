"""`explain` of pipes that read by index: what it says is what comes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import Mixture, SampleIndex, ais_loader, explain
from torchdata_ais.errors import UsageError
from torchdata_ais.loaders.explanation import PlannedRun
from torchdata_ais.pipes import AISSampleReader
from torchdata_ais.testing import example_shards


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> list[SampleIndex]:
    folders = (tmp_path_factory.mktemp(name) for name in "ab")
    counts = (30, 1, 20), (12,)
    return [SampleIndex.build(example_shards(*one)) for one in zip(folders, counts, strict=True)]


def plan_of(pipe: Any, **how: Any) -> PlannedRun:
    plan = explain(pipe, **how).plan
    assert plan is not None
    return plan


@pytest.mark.parametrize("tail", ["short", "drop", "pad"])
@pytest.mark.parametrize("stop", ["first", "all"])
def test_steps_batches_and_counts_of_sources_are_those_that_come(
    indexes: list[SampleIndex], tail: Any, stop: Any
) -> None:
    def make() -> Any:
        mixture = Mixture(dict(zip(indexes, (0.7, 0.3), strict=True)), stop)
        return AISSampleReader(mixture, shuffle="samples", tail=tail).batched(4, collation_fn=list)

    said = plan_of(make(), world=3, global_batch=13)
    seen: Counter[int] = Counter()
    repeated = 0
    for rank in range(3):
        with ais_loader(make(), rank=rank, world_size=3, global_batch=13) as loader:
            batches = list(loader)
            repeated += loader.repeated
        assert len(batches) == said.steps
        assert {len(batch) for batch in batches[:-1]} <= set(range(said.batch[0], said.batch[1] + 1))
        seen.update(sample.source for batch in batches for sample in batch)
    assert repeated == said.repeated
    assert sum(seen.values()) == said.samples + said.repeated
    if not said.repeated:
        assert [seen[number] for number in range(2)] == [one.drawn for one in said.sources]
    assert said.samples == sum(one.drawn for one in said.sources)


def test_it_says_proof_digest_order_requests_and_memory(indexes: list[SampleIndex]) -> None:
    pipe = AISSampleReader(indexes[0], shuffle="samples").batched(4)
    run = explain(pipe, num_workers=2, world=2)
    text = str(run)
    assert run.shards == 3
    assert run.requests == plan_of(pipe, num_workers=2, world=2).traffic.ranges  # files: a range is a request
    assert run.memory_bytes == 2 * (32 << 20)
    assert f"proof bytes, index {indexes[0].digest}" in text
    assert "steps: 7 on each of 2 ranks, with 2 workers each; 4 samples a batch, 8 over all ranks" in text
    assert "in another order each epoch" in text
    assert "the same small state on all ranks" in text
    assert f"digest: {run.digest}" in text
    assert "source 0" in run._repr_html_()
    assert "between epochs only" in str(explain(pipe.filter(len)))
    assert explain(pipe, num_workers=9).idle_workers == 0
    assert explain(pipe, num_workers=15).idle_workers == 2


def test_neighbours_cost_fewer_ranges_than_scattered_samples(indexes: list[SampleIndex]) -> None:
    def ranges(shuffle: Any) -> int:
        pipe = AISSampleReader(indexes[0], shuffle=shuffle).batched(8)
        return plan_of(pipe, num_workers=3).traffic.ranges

    assert ranges(None) < ranges("samples")
    assert plan_of(AISSampleReader(indexes[0]).batched(8)).traffic.ranges == 3  # one a shard


def test_no_shard_is_read(tmp_path: Path) -> None:
    shards = example_shards(tmp_path, (3, 2))
    index = SampleIndex.build(shards)
    for shard in shards:
        Path(shard).unlink()
    assert plan_of(AISSampleReader(index).batched(2)).steps == 3


def test_what_cannot_be_told_is_refused(indexes: list[SampleIndex]) -> None:
    with pytest.raises(UsageError, match="nothing says what a batch is"):
        explain(AISSampleReader(indexes[0]), world=2)
    with pytest.raises(UsageError, match="global_batch= or schedule= of a stream"):
        explain(_stream(), global_batch=4)


def _stream() -> Any:
    from torchdata_ais import AISSourceLister

    return AISSourceLister(example_shards()).load_tar().group_samples()


def test_the_proof_is_explained_with_what_it_does_not_cover(indexes: list[SampleIndex]) -> None:
    text = str(explain(AISSampleReader(indexes[0]).batched(4)))
    assert 'proof: of "bytes" the XXH64 of every sample is compared' in text
    run = plan_of(AISSampleReader(indexes[0]).batched(4))
    sources = [replace(source, proof="headers") for source in run.sources]
    lines = replace(run, sources=sources, proof="headers").lines(1, 1)
    assert any("not noticed in local files" in line for line in lines)
    assert not any('of "bytes"' in line for line in lines)


def test_a_source_that_is_never_drawn_is_explained_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    few, many = (SampleIndex.build(example_shards(counts=(count,))) for count in (3, 50))
    pipe = AISSampleReader(Mixture({few: 15, many: 1})).decode().to_tuple("cls").batched(1)
    assert "source 1: 0 of 50 samples an epoch (never drawn: an epoch is too short for its weight)" in str(
        explain(pipe)
    )
    with ais_loader(pipe) as loader:
        assert len(list(loader)) == 3
    assert "source 1 of the mixture has a weight and gives no sample" in caplog.text
