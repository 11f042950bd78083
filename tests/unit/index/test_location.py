"""An index beside the shards is that of all of them; a template or a pattern opens those that it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from torchdata_ais import AISSampleReader, SampleDataset
from torchdata_ais.cli import app
from torchdata_ais.errors import SampleIndexError, UsageError
from torchdata_ais.index.build import SampleIndex
from torchdata_ais.local import LocalCluster
from torchdata_ais.pipes import AISSourceLister
from torchdata_ais.store import StoreOptions, put_object
from torchdata_ais.testing import write_shard

SHARDS, SAMPLES = 4, 3


def keys(first: int, last: int) -> list[str]:
    return [f"{shard}-{number}" for shard in range(first, last + 1) for number in range(SAMPLES)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for shard in range(SHARDS):
        members = {f"{shard}-{number}.cls": b"1" for number in range(SAMPLES)}
        write_shard(tmp_path / f"s-{shard}.tar", members)
    return tmp_path


def test_promise_2_a_template_reads_by_index_what_it_streams(
    ais_cluster: LocalCluster, ais_bucket: Any, folder: Path
) -> None:
    prefix = f"ais://{ais_bucket.name}/t/s-"
    options = StoreOptions(ais_cluster.endpoint)
    for shard in sorted(folder.iterdir()):
        put_object(f"{prefix[:-2]}{shard.name}", shard.read_bytes(), options)
    SampleIndex.build(prefix, method="read", cluster=ais_cluster).save()
    part = prefix + "{1..2}.tar"
    lister = AISSourceLister(part, cluster=ais_cluster)
    streamed = [sample["__key__"] for sample in lister.load_tar().group_samples()]
    assert streamed == keys(1, 2)
    assert [sample["__key__"] for sample in lister.read_samples()] == streamed
    assert [sample["__key__"] for sample in AISSampleReader(part, cluster=ais_cluster)] == streamed
    assert len(SampleDataset(part, cluster=ais_cluster)) == len(streamed)
    assert len(SampleIndex.open(prefix, cluster=ais_cluster)) == SHARDS * SAMPLES
    whole = SampleIndex.open(prefix + "{0..3}.tar", cluster=ais_cluster)
    assert not whole.is_selection
    url = f"{ais_cluster.endpoint}/v1/objects/{ais_bucket.name}/t/s-{{3..3}}.tar?provider=ais"
    assert list(SampleIndex.open(url).keys) == keys(3, 3)
    with pytest.raises(SampleIndexError, match=r"4 of the 9 shards .*s-4\.tar is not in it"):
        SampleIndex.open(prefix + "{0..8}.tar", cluster=ais_cluster)


@pytest.mark.parametrize(
    ("pattern", "first", "last"),
    [("s-*.tar", 0, 3), ("s-[01].tar", 0, 1), ("s-{2..3}.tar", 2, 3), ("./s-?.tar", 0, 3)],
)
def test_promise_2_a_pattern_of_files_opens_those_it_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, first: int, last: int
) -> None:
    monkeypatch.chdir(folder)
    SampleIndex.build("s-*.tar").save()
    assert list(SampleIndex.open(pattern).keys) == keys(first, last)
    assert list(SampleIndex.open(f"{folder}/{pattern}").keys) == keys(first, last)


def test_a_selection_by_template_is_not_saved_over_the_index(folder: Path) -> None:
    SampleIndex.build(f"{folder}/s-*.tar").save()
    part = SampleIndex.open(f"{folder}/s-{{0..1}}.tar")
    with pytest.raises(UsageError, match="where"):
        part.save()
    assert len(SampleIndex.open(f"{folder}/s-*.tar")) == SHARDS * SAMPLES


def test_promise_2_a_part_does_not_take_the_place_of_the_whole(folder: Path, tmp_path: Path) -> None:
    part, whole = f"{folder}/s-{{0..1}}.tar", f"{folder}/s-{{0..3}}.tar"
    place = f"{folder}/.index/s-"
    SampleIndex.build(whole, where=place)
    with pytest.raises(UsageError, match=r"more shards than .* names, .*s-2\.tar would not be in it.*where="):
        SampleIndex.build(part, where=place)
    with pytest.raises(UsageError, match="where"):
        SampleIndex.build(part).save()
    assert len(SampleIndex.open(whole)) == SHARDS * SAMPLES
    SampleIndex.build(part, where=tmp_path / "part")
    assert len(SampleIndex.open(tmp_path / "part", shards_from=tmp_path)) == 2 * SAMPLES
    (folder / "s-2.tar").unlink()
    (folder / "s-3.tar").unlink()
    SampleIndex.build(part, where=place)  # they are all that there are now
    assert len(SampleIndex.open(f"{folder}/s-*.tar")) == 2 * SAMPLES


def test_an_index_that_is_stored_beside_its_shards_lists_them_once_beyond_what_is_indexed(
    ais_local_cluster: LocalCluster, folder: Path
) -> None:
    """What refuses a part listed the prefix, and what tells the home of the index listed it again."""
    ais_local_cluster.client().bucket("listed-once").create(exist_ok=True)
    options = StoreOptions(ais_local_cluster.endpoint)
    for shard in sorted(folder.iterdir()):
        put_object(f"ais://listed-once/t/{shard.name}", shard.read_bytes(), options)
    whole, place = "ais://listed-once/t/s-{0..3}.tar", "ais://listed-once/.index/t/s-"

    def listings() -> int:
        return sum(
            record.method == "GET" and record.url.startswith("/v1/buckets/listed-once")
            for record in ais_local_cluster.requests()
        )

    before = listings()
    index = SampleIndex.build(whole, where=place, method="read", cluster=ais_local_cluster)
    assert listings() - before == 2, "for the sizes of the shards, and for what is beside them"
    before = listings()
    index.save()
    assert len(SampleIndex.open(whole, cluster=ais_local_cluster)) == SHARDS * SAMPLES
    assert listings() == before, "the home is known"
    ais_local_cluster.client().bucket("listed-once").delete()


def test_lint_refuses_the_index_of_a_part_before_it_reads(folder: Path) -> None:
    result = CliRunner().invoke(app, ["lint", "--index", f"{folder}/s-{{0..1}}.tar"])
    assert result.exit_code == 2
    assert "s-2.tar would not be in it" in result.stderr
    assert CliRunner().invoke(app, ["lint", "--index", f"{folder}/s-{{0..3}}.tar"]).exit_code == 0
    assert len(SampleIndex.open(f"{folder}/s-*.tar")) == SHARDS * SAMPLES
