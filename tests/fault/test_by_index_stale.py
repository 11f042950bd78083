"""Promise 1 by index: what was stored again, cut, deleted or compressed is an error that names index, shard and key."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import (
    AISSampleReader,
    AISSourceLister,
    Retry,
    SampleDataset,
    SampleIndex,
    StoreOptions,
    as_dataset,
)
from torchdata_ais.errors import AISError, SampleIndexError
from torchdata_ais.local import LocalCluster
from torchdata_ais.store import delete_object, put_object
from torchdata_ais.testing import shard_bytes


def shard(shard: int, seed: int = 0) -> bytes:
    rng = random.Random(100 * seed + shard)
    return shard_bytes(
        (f"{shard}-{n:02d}.{field}", rng.randbytes(700)) for n in range(12) for field in ("jpg", "cls")
    )


SHARDS = [shard(number) for number in range(3)]


def swapped(data: bytes) -> bytes:
    """Two samples have changed places, which have the same sizes."""
    return data[6144:12288] + data[:6144] + data[12288:]


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "other samples": lambda data: shard(1, seed=1),
    "other names": lambda data: shard(7),
    "swapped": swapped,
    "cut": lambda data: data[: len(data) // 3],
    "empty": lambda data: b"",
    "longer": lambda data: shard_bytes({"0.x": b"x" * 3000}) + data,
    "compressed": gzip.compress,
    "zeros": lambda data: bytes(len(data)),
    "deleted": lambda data: None,
}


def keys(pipe: Any) -> list[str]:
    return [sample["__key__"] for sample in pipe]


def names_index_shard_and_key(error: AISError, index: str, shard: str) -> None:
    assert shard in str(error)
    assert index in str(error)
    assert error.key is not None
    assert error.key.startswith("1-")


@pytest.mark.parametrize("damage", DAMAGES)
def test_promise_1_a_file_that_is_another_one_than_was_indexed(tmp_path: Path, damage: str) -> None:
    for number, data in enumerate(SHARDS):
        (tmp_path / f"s-{number}.tar").write_bytes(data)
    index = SampleIndex.build(str(tmp_path)).save(tmp_path / "index")
    file = tmp_path / "s-1.tar"
    data = DAMAGES[damage](SHARDS[1])
    file.unlink()
    if data is not None:
        file.write_bytes(data)
    wrong = list(range(12, 24))[::-1]
    with pytest.raises(AISError) as raised:
        list(AISSampleReader(index, positions=wrong))
    names_index_shard_and_key(raised.value, "/index", "s-1.tar")
    with pytest.raises(AISError) as raised:
        SampleDataset(index)[12]
    names_index_shard_and_key(raised.value, "/index", "s-1.tar")
    # Others are not lost for it; none that is given is wrong.
    reader = AISSampleReader(index, on_error="skip")
    got = keys(reader)
    assert got[:12] == [f"0-{n:02d}" for n in range(12)]
    assert got[-12:] == [f"2-{n:02d}" for n in range(12)]
    assert len(got) + sum(reader.counts().skipped.values()) == 36


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=2) as made:
        made.client().bucket("b").create()
        yield made


@pytest.fixture
def options(cluster: LocalCluster) -> StoreOptions:
    options = StoreOptions(endpoint=cluster.endpoint, retry=Retry(attempts=2, backoff=0.001))
    for number, data in enumerate(SHARDS):
        put_object(f"ais://b/s-{number}.tar", data, options)
    return options


def spoil(damage: str, options: StoreOptions) -> None:
    data = DAMAGES[damage](SHARDS[1])
    if data is None:
        delete_object("ais://b/s-1.tar", options)
    else:
        put_object("ais://b/s-1.tar", data, options)


@pytest.mark.quick(6)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("many", [True, False], ids=["batch", "ranges"])
def test_promise_1_an_object_that_is_another_one_than_was_indexed(
    options: StoreOptions, damage: str, many: bool
) -> None:
    index = SampleIndex.build("ais://b/s-", method="read", cluster=options)
    spoil(damage, options)
    wrong = list(range(12, 24))[::-2] if many else [13]
    with pytest.raises(AISError) as raised:
        list(AISSampleReader(index, positions=wrong + list(range(0, 12, 2)) * many))
    names_index_shard_and_key(raised.value, "the index in memory", "ais://b/s-1.tar")
    reader = AISSampleReader(index, on_error="skip", positions=random.Random(0).sample(range(36), 36))
    got = keys(reader)
    assert sorted(key for key in got if not key.startswith("1-")) == [
        f"{s}-{n:02d}" for s in (0, 2) for n in range(12)
    ]
    assert len(got) + sum(reader.counts().skipped.values()) == 36


@pytest.mark.parametrize("damage", DAMAGES)
def test_promise_1_what_the_cluster_indexed_is_compared_with_a_listing_before_the_first_sample(
    cluster: LocalCluster, options: StoreOptions, damage: str
) -> None:
    index = SampleIndex.build("ais://b/s-", method="cluster", cluster=options)
    assert index.proof == "headers"
    reader = AISSampleReader(index)
    cluster.reset_stats()
    assert len(keys(reader)) == len(keys(reader)) == 36
    assert sum("/v1/buckets/" in record.url for record in cluster.requests() if record.role == "proxy") == 1
    spoil(damage, options)
    for begin in (
        lambda: next(iter(AISSampleReader(index, on_error="skip"))),
        lambda: as_dataset(AISSampleReader(index).batched(2)),
        lambda: SampleDataset(index),
    ):
        with pytest.raises(SampleIndexError, match=r"index in memory.*ais://b/s-1\.tar"):
            begin()


def test_promise_1_a_shard_stored_again_later_is_noticed_by_its_headers_or_its_version(
    options: StoreOptions,
) -> None:
    index = SampleIndex.build("ais://b/s-", method="cluster", cluster=options)
    dataset = SampleDataset(index, cluster=options)
    assert dataset[13]["__key__"] == "1-01"
    spoil("other samples", options)
    with pytest.raises(AISError, match="another one than was indexed"):
        dataset[13]
    spoil("other names", options)
    with pytest.raises(AISError, match="another one than was indexed"):
        dataset.__getitems__([1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 25, 30])


def test_promise_1_an_index_of_other_shards_or_with_a_flipped_bit_gives_no_wrong_sample(
    tmp_path: Path,
) -> None:
    for number, data in enumerate(SHARDS):
        (tmp_path / f"s-{number}.tar").write_bytes(data)
    place = tmp_path / "index"
    SampleIndex.build(str(tmp_path)).save(place)
    whole = [dict(sample) for sample in AISSourceLister(str(tmp_path)).load_tar().group_samples()]
    rng = random.Random(4)
    for file in sorted(place.iterdir()):
        data = file.read_bytes()
        for _ in range(60):
            damaged = bytearray(data)
            if rng.random() < 0.8:
                damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            else:
                del damaged[rng.randrange(len(data)) :]
            file.write_bytes(damaged)
            with suppress(SampleIndexError):
                assert [dict(sample) for sample in AISSampleReader(str(place))] == whole
        file.write_bytes(data)
