"""The samples that a checkpoint names: read again in the order asked for, and no shard left open."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.leftovers import descriptors

import torchdata_ais.pipes.load_tar  # noqa: F401 - has its own name of OpenShard before `opened` replaces it
from torchdata_ais import AISSourceLister
from torchdata_ais.errors import StateError
from torchdata_ais.local import LocalCluster
from torchdata_ais.reading import open_shard
from torchdata_ais.reading.open_shard import OpenShard, ShardOptions
from torchdata_ais.samples import pack_place
from torchdata_ais.store import StoreOptions
from torchdata_ais.testing import write_shard

SHARDS, SAMPLES, SIZE = 3, 6, 300_000


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    return [
        write_shard(tmp_path / f"s-{n}.tar", {f"{n}-{m}.bin": bytes(SIZE) for m in range(SAMPLES)})
        for n in range(SHARDS)
    ]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[OpenShard]:
    """The shards that were opened for held samples: what a test refers to is not closed by the collector."""
    made: list[OpenShard] = []

    class Noted(OpenShard):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            made.append(self)

    monkeypatch.setattr(open_shard, "OpenShard", Noted)
    return made


def places_of(shards: list[str]) -> dict[str, int]:
    pipe = AISSourceLister(shards).load_tar().group_samples()
    return {sample["__key__"]: sample.place for sample in pipe}


def read(places: list[int], urls: list[str], store: StoreOptions | None = None) -> list[str]:
    runs = open_shard.held_runs(places, urls, {}, store or StoreOptions(), ShardOptions())
    return [run.key for _, run in runs]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_promise_5_held_samples_come_in_the_order_asked_for_and_their_shards_are_closed(
    tmp_path: Path, shards: list[str], opened: list[OpenShard]
) -> None:
    places = places_of(shards)
    wanted = ["2-0", "0-5", "1-1", "0-0", "2-2"]
    assert read([places[key] for key in wanted], shards) == wanted
    assert len(opened) == SHARDS
    assert descriptors(tmp_path) == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_held_sample_that_is_not_there_leaves_no_shard_open(
    tmp_path: Path, shards: list[str], opened: list[OpenShard]
) -> None:
    places = places_of(shards)
    shard, _ = open_shard.unpack_place(places["1-1"])
    wrong = pack_place(shard, 512 * 7)
    with pytest.raises(StateError, match="not there any more") as caught:
        read([places["0-0"], places["1-0"], wrong], shards)
    assert (caught.value.url, caught.value.offset) == (shards[1], 512 * 7)
    assert len(opened) == 2
    assert descriptors(tmp_path) == 0


def test_held_samples_that_are_far_from_each_other_are_read_in_sweeps(
    shards: list[str], opened: list[OpenShard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gap of exactly the limit is read through; a larger one costs another request."""
    places = places_of(shards)
    wanted = [places["0-0"], places["0-1"], places["0-3"]]
    step = 512 * (places["0-1"] - places["0-0"])
    for gap, sweeps in ((2 * step, 1), (2 * step - 1, 2), (step, 2), (step - 1, 3)):
        opened.clear()
        monkeypatch.setattr(open_shard, "_GAP", gap)
        assert read(wanted, shards) == ["0-0", "0-1", "0-3"]
        assert len(opened) == sweeps


def test_held_samples_of_a_cluster_end_their_requests(
    tmp_path: Path, shards: list[str], opened: list[OpenShard], threads_left: Any
) -> None:
    with LocalCluster() as cluster:
        cluster.put_dir(tmp_path, "ais://b")
        urls = [f"ais://b/{Path(path).name}" for path in shards]
        places = places_of(shards)
        assert read([places["2-0"], places["0-0"]], urls, StoreOptions(cluster.endpoint)) == ["2-0", "0-0"]
        assert all(shard.blocks is None or shard.closed for shard in opened)
        assert threads_left() == []
