"""Shards of random members: reading and the cluster's own index find the samples that the stream gives."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import xxhash
from helpers.shards import random_shard

from torchdata_ais import AISSourceLister, SampleIndex
from torchdata_ais.errors import AISError
from torchdata_ais.index.build.ais_format import parse_shard_index, samples_in
from torchdata_ais.index.build.by_reading import UnusableError
from torchdata_ais.local import LocalCluster
from torchdata_ais.samples import Sample, split_name
from torchdata_ais.store import StoreOptions, read_range, target_of


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=2) as made:
        yield made


def test_promise_3_every_way_to_index_finds_the_samples_of_the_stream(cluster: LocalCluster) -> None:
    bucket = cluster.client().bucket("b").create()
    shards = {f"ais://b/s-{number:03d}.tar": random_shard(random.Random(number)) for number in range(60)}
    for name, data in shards.items():
        bucket.object(name.rpartition("/")[2]).get_writer().put_content(data)
    options = StoreOptions(endpoint=cluster.endpoint)
    streamed: list[Sample] = list(AISSourceLister("ais://b/s-", cluster=options).load_tar().group_samples())
    headers: dict[
        tuple[str, str], list[int]
    ] = {}  # where the members of each sample begin, its links included
    for path, _ in AISSourceLister("ais://b/s-", cluster=options).load_tar():
        parts = split_name(path.member)
        if parts is not None:
            headers.setdefault((path.url, parts[0]), []).append(path.offset)
    by_reading, by_cluster = (
        SampleIndex.build("ais://b/s-", method=method, cluster=options) for method in ("read", "cluster")
    )
    assert len(streamed) == len(by_reading) == len(by_cluster) > 100
    assert by_reading.digest == by_cluster.digest
    assert sum(row.proven for row in by_cluster.shards) < 16  # most were not read
    for sample, read, found in zip(streamed, by_reading, by_cluster, strict=True):
        data = shards[read.shard.name]
        assert sample["__key__"].encode("utf-8", "backslashreplace").decode() == read.key == found.key
        assert (read.fields, read.sizes) == (found.fields, found.sizes)
        assert (read.start, read.size) == (found.start, found.size)
        assert read.start == sample.offset
        span = data[read.start : read.start + read.size]
        assert xxhash.xxh64_intdigest(span) == read.xxh64
        for at in headers[sample["__url__"], sample["__key__"]]:
            assert read.start <= at < read.start + read.size
        plain = {name for name in sample if not name.startswith("__")}
        assert set(read.fields) <= plain
        for name in plain:
            assert sample[name] in span
        for field, size in zip(read.fields, read.sizes, strict=True):
            assert len(sample[field]) == size
    by_reading.verify()
    by_cluster.verify()


def test_promise_1_what_the_cluster_says_of_damaged_indexes_is_never_another_sample(
    cluster: LocalCluster,
) -> None:
    """Any damage is seen by the checksum; what is made up with a right one is at least a possible layout."""
    rng = random.Random(5)
    bucket = cluster.client().bucket("c").create()
    options = StoreOptions(endpoint=cluster.endpoint)
    bucket.object("s.tar").get_writer().put_content(random_shard(random.Random(3)))
    SampleIndex.build("ais://c/s.tar", method="cluster", cluster=options)
    node = target_of("ais://c/s.tar", options)
    url = f"{node}/v1/objects/.sys-shardidx/ais/%40%23/c/s.tar.idx?provider=ais"
    data = read_range(url, 0, 1 << 20, options)
    whole = samples_in(parse_shard_index(data), "s")
    for _ in range(3000):
        damaged = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        try:
            found = samples_in(
                parse_shard_index(bytes(damaged[: rng.choice([len(data), rng.randrange(len(data))])])), "s"
            )
        except (UnusableError, AISError):
            continue
        assert found == whole  # bits flipped back
