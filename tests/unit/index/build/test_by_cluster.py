"""Indexes built by AIStore's own job: the same as by reading; what the job leaves out is named and read."""

from __future__ import annotations

import io
import logging
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import webdataset as wds
import xxhash

from torchdata_ais import AISSourceLister, SampleIndex
from torchdata_ais.errors import AISError, TruncatedShardError, UsageError
from torchdata_ais.index.build.ais_format import parse_shard_index, samples_in
from torchdata_ais.index.build.by_reading import UnusableError
from torchdata_ais.local import Fault, LocalCluster, Status
from torchdata_ais.store import StoreOptions, read_range, target_of
from torchdata_ais.store.jobs import JobError, Progress

RNG = random.Random(7)
LONG = "deep/" * 60


def tar_of(members: list[tuple[str, bytes | str]], kind: int = tarfile.USTAR_FORMAT) -> bytes:
    """Text is the target of a link: symbolic after "~", else hard."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if isinstance(data, str):
                info.type = tarfile.SYMTYPE if data[0] == "~" else tarfile.LNKTYPE
                info.linkname = data.lstrip("~")
                archive.addfile(info)
            else:
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


ODD: list[tuple[str, bytes | str]] = [
    ("README", b"not a sample"),
    ("a.b.jpg", RNG.randbytes(700)),
    ("a.cls", b"1"),
    ("._b.jpg", b"a Mac was here"),
    (f"{LONG}b.jpg", RNG.randbytes(513)),
    (f"{LONG}b.cls", b"2"),
    ("notes", b"between"),
    ("c.JPG", RNG.randbytes(512)),
    ("c.Mask.png", "c.JPG"),
    ("c.way.jpg", "~c.JPG"),
    ("d.txt", b""),
    ("d.caf\udce9", b"no UTF-8"),
    ("LICENSE", b"at the end"),
]


def written_by_webdataset() -> bytes:
    out = io.BytesIO()
    with wds.TarWriter(out, mtime=0) as writer:
        for number in range(40):
            sample = {"seg.png": RNG.randbytes(number * 50), "cls": b"1", "jpg": RNG.randbytes(600)}
            writer.write({"__key__": f"x/{number:05d}"} | sample)
    return out.getvalue()


SHARDS = {
    "s-gnu.tar": tar_of(ODD, tarfile.GNU_FORMAT),
    "s-none.tar": tar_of([("README", b"no sample")]),
    "s-pax.tar": tar_of(ODD, tarfile.PAX_FORMAT),
    "s-ustar.tar": tar_of(
        [(f"{n:04d}.{ext}", RNG.randbytes(n)) for n in range(200) for ext in ("jpg", "cls")]
    ),
    "s-wds.tar": written_by_webdataset(),
}


@pytest.fixture(scope="module")
def made() -> Iterator[LocalCluster]:
    with LocalCluster(targets=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(made: LocalCluster) -> LocalCluster:
    made.reset()
    store(made, SHARDS)
    return made


def store(cluster: LocalCluster, shards: dict[str, bytes], bucket: str = "pets") -> None:
    place = cluster.client().bucket(bucket).create(exist_ok=True)
    for name, data in shards.items():
        place.object(name).get_writer().put_content(data)


def build(cluster: LocalCluster, method: str, source: str = "ais://pets/s-") -> SampleIndex:
    return SampleIndex.build(source, cluster=cluster.endpoint, method=method)


def known(index: SampleIndex) -> list[tuple[object, ...]]:
    return [(one.shard.name, one.key, one.fields, one.sizes) for one in index]


def test_promise_3_the_cluster_finds_the_samples_that_reading_finds(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    by_reading = build(cluster, "read")
    before = cluster.stats().bytes_sent
    with caplog.at_level(logging.WARNING):
        by_cluster = build(cluster, "cluster")
    assert not caplog.records
    moved = cluster.stats().bytes_sent - before
    assert moved < sum(map(len, SHARDS.values())) / 4  # samples of a few bytes: names are a good part of it
    assert known(by_cluster) == known(by_reading)
    assert by_cluster.digest == by_reading.digest
    assert (by_cluster.proof, by_reading.proof) == ("headers", "bytes")
    assert all(one.xxh64 is None for one in by_cluster)
    streamed = list(AISSourceLister("ais://pets/s-", cluster=cluster.endpoint).load_tar().group_samples())
    assert len(by_cluster) == len(streamed)
    for one, sample in zip(by_cluster, streamed, strict=True):
        assert one.start <= sample.offset < one.start + one.size
        data = SHARDS[one.shard.name.rpartition("/")[2]][one.start : one.start + one.size]
        assert all(value in data for name, value in sample.items() if isinstance(value, bytes))
    by_cluster.verify()


BUCKETS: dict[str, dict[str, object]] = {
    **{
        kind: {"checksum": {"type": kind}}
        for kind in ("xxhash2", "xxhash", "md5", "sha512", "crc32c", "none")
    },
    "ec": {"ec": {"enabled": True}},
}


@pytest.mark.parametrize("setting", BUCKETS)
def test_an_index_of_the_cluster_is_that_of_reading_in_every_bucket(made: LocalCluster, setting: str) -> None:
    made.reset()
    message = {"action": "create-bck", "name": "", "value": BUCKETS[setting]}
    requests.post(
        f"{made.endpoint}/v1/buckets/pets?provider=ais", json=message, timeout=10
    ).raise_for_status()
    names = [
        ("k\u00e4tzchen/\u732b.jpg", b"1" * 700),
        ("k\u00e4tzchen/\u732b.cls", b"2"),
        (f"{LONG}z.jpg", b"3"),
    ]
    links = [("a.jpg", b"4"), ("a.png", "a.jpg"), ("b.png", "~a.jpg"), ("b.cls", b"5"), ("b.jpg", "a.jpg")]
    shards = {
        f"n-{kind}.tar": tar_of([*names, *links], kind) for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)
    }
    shards["n-last.tar"] = tar_of(links)
    shards["n-twice.tar"] = tar_of([("a.jpg", b"1"), ("a.jpg", b"2"), ("b.jpg", b"3")])
    store(made, SHARDS | shards)
    by_cluster, by_reading = (build(made, method, "ais://pets/") for method in ("cluster", "read"))
    assert [row[:6] for row in by_cluster.shards] == [
        row[:6] for row in by_reading.shards
    ]  # all but its block
    for found, read in zip(by_cluster, by_reading, strict=True):
        place = (read.key, read.start, read.size, read.fields, read.sizes)
        assert (found.key, found.start, found.size, found.fields, found.sizes) == place
        assert found.shard.name == read.shard.name
    assert by_cluster.digest == by_reading.digest
    assert by_cluster.proof == (
        "bytes" if setting == "none" else "headers"
    )  # an index without a checksum may be stale
    by_cluster.save(where="ais://pets/by-cluster")
    assert SampleIndex.open("ais://pets/by-cluster", cluster=made.endpoint).digest == by_reading.digest


def test_gaps_are_read_by_few_ranges(cluster: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    big = [(f"\u00fc{n}.jpg", bytes(300_000)) for n in range(8)]
    store(cluster, {"g-few.tar": tar_of(big, tarfile.PAX_FORMAT)})
    cluster.reset_stats()
    index = build(cluster, "cluster", "ais://pets/g-few.tar")
    ranges = [one for one in cluster.requests() if "g-few.tar" in one.url and one.status == 206]
    assert len(index) == 8
    assert 1 <= len(ranges) <= 10
    assert sum(one.bytes_sent for one in ranges) < 60_000
    store(
        cluster, {"h.tar": tar_of([(f"\u00e4{n}.jpg", bytes(70_000)) for n in range(40)], tarfile.PAX_FORMAT)}
    )
    with caplog.at_level(logging.WARNING):
        assert build(cluster, "cluster", "ais://pets/h.tar").proof == "bytes"
    assert "too many places in it have extension headers or links" in caplog.text


def test_shards_without_a_valid_index_are_named_and_read(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    odd = {
        "s-a-gap.tar": tar_of([("a.jpg", b"1"), *((f"a.{n}", "a.jpg") for n in range(200)), ("b.jpg", b"2")]),
        "s-b-joined.tar": tar_of([("a.jpg", b"1")]) + tar_of([("b.jpg", b"1")]),
    }
    store(cluster, odd)
    with caplog.at_level(logging.WARNING):
        index = build(cluster, "cluster")
    assert index.proof == "headers"
    text = caplog.text
    assert "ais://pets/s-a-gap.tar is read, as the cluster has no index of it" in text
    assert "102400 bytes stand before byte" in text
    proven = {row.name.rpartition("/")[2] for row in index.shards if row.proven}
    assert proven == set(odd)
    assert [one.key for one in index if one.shard.name.endswith("joined.tar")] == ["a", "b"]
    store(cluster, {"s-d-short.tar": tar_of([("a.jpg", b"1")])[:1024]})
    with pytest.raises(TruncatedShardError):
        build(cluster, "cluster")


def test_a_stale_index_of_the_cluster_is_not_used(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchdata_ais.index.build import by_cluster

    build(cluster, "cluster")
    store(cluster, {"s-ustar.tar": tar_of([("new.jpg", b"1")])})
    monkeypatch.setattr(by_cluster, "run_index_job", lambda *_: "")  # the shard changes after the job
    with caplog.at_level(logging.WARNING):
        index = build(cluster, "cluster")
    assert "s-ustar.tar is read, as the cluster has no index of it: its index is stale" in caplog.text
    assert [one.key for one in index if "ustar" in one.shard.name] == ["new"]


def test_one_object_that_is_no_tar_costs_no_other_shard(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    store(
        cluster, {"a-broken.tar": b"not a tar" * 200, **{f"b{n}.tar": SHARDS["s-pax.tar"] for n in range(8)}}
    )
    with caplog.at_level(logging.WARNING), pytest.raises(AISError, match="Not a tar archive"):
        build(cluster, "cluster", "ais://pets/")
    assert "invalid tar header" in caplog.text
    caplog.clear()
    template = "ais://pets/b{0..7}.tar"
    with caplog.at_level(logging.WARNING):
        index = build(cluster, "cluster", template)
    assert len(index) == 32
    assert not caplog.records


def test_a_cluster_without_the_job_is_an_error(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.faults.add(Fault(Status(400), verb="POST", bucket="pets"))
    with pytest.raises(JobError, match="The cluster has no job that indexes shards"):
        build(cluster, "cluster")
    path = tmp_path / "s.tar"
    path.write_bytes(SHARDS["s-pax.tar"])
    assert SampleIndex.build(str(path)).proof == "bytes"
    with pytest.raises(JobError, match=r"cannot index .*s.tar: it is not an object of a cluster") as caught:
        SampleIndex.build(str(path), method="cluster")
    assert 'method="read"' in caught.value.todo
    with pytest.raises(UsageError, match="method='fast'"):
        SampleIndex.build(str(path), method="fast")


def test_compressed_and_cut_shards_are_refused_whatever_the_cluster_says(cluster: LocalCluster) -> None:
    import gzip

    store(
        cluster,
        {"z.tar.gz": gzip.compress(SHARDS["s-pax.tar"]), "z2.tar": gzip.compress(SHARDS["s-pax.tar"])},
    )
    for name in ("z.tar.gz", "z2.tar"):
        with pytest.raises(UsageError, match="cannot be addressed: it is compressed"):
            build(cluster, "cluster", f"ais://pets/{name}")
    store(cluster, {"cut.tar": SHARDS["s-ustar.tar"][:50_000]})
    with pytest.raises(TruncatedShardError):
        build(cluster, "cluster", "ais://pets/cut.tar")


def test_progress_tells_what_is_done(cluster: LocalCluster) -> None:
    seen: list[Progress] = []
    SampleIndex.build("ais://pets/s-", cluster=cluster.endpoint, method="cluster", progress=seen.append)
    assert Progress("cluster", len(SHARDS), 0) in seen
    assert seen[-1] == Progress("index", len(SHARDS), len(SHARDS))


def recorded(cluster: LocalCluster, name: str) -> bytes:
    build(cluster, "cluster")
    options = StoreOptions(endpoint=cluster.endpoint)
    node = target_of(f"ais://pets/{name}", options)
    url = f"{node}/v1/objects/.sys-shardidx/ais/%40%23/pets/{name}.idx?provider=ais"
    return read_range(url, 0, 1 << 20, options)


def test_promise_1_an_index_of_the_cluster_with_a_flipped_bit_is_not_used(cluster: LocalCluster) -> None:
    data = recorded(cluster, "s-pax.tar")
    assert samples_in(parse_shard_index(data), "s").keys == ["a", f"{LONG}b", "c", "d"]
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]
        with pytest.raises(UnusableError):
            parse_shard_index(damaged)
        with pytest.raises(UnusableError):
            parse_shard_index(data[:at])


def test_an_index_of_the_cluster_that_cannot_be_is_not_used(cluster: LocalCluster) -> None:
    data = recorded(cluster, "s-pax.tar")
    rng = random.Random(1)
    for _ in range(2000):  # its checksum is right, and what it says is nonsense
        payload = bytearray(data[11:])
        for _ in range(rng.randrange(1, 4)):
            payload[rng.randrange(len(payload))] = rng.randrange(256)
        del payload[rng.choice([len(payload), rng.randrange(len(payload))]) :]
        made = xxhash.xxh64_intdigest(bytes(payload), 1103515245).to_bytes(8, "big")
        try:
            samples = samples_in(parse_shard_index(data[:3] + made + payload), "s")
        except UnusableError:
            continue
        assert all(size >= 0 for sizes in samples.sizes for size in sizes)
        assert all(0 <= a < b for a, b in zip(samples.starts, samples.ends, strict=True))


MANY = {f"s-{n:02d}.tar": tar_of([(f"{n}.jpg", bytes(600)), (f"{n}.cls", b"1")]) for n in range(32)}


def missed_by_the_proxy(cluster: LocalCluster) -> int:
    """Count the shards whose indexes lie where the proxy does not look: a listing does not show them either."""
    shown = cluster.client().bucket(".sys-shardidx").list_all_objects(prefix="ais/@#/many/")
    return len(MANY) - len(shown)


def test_an_index_that_the_proxy_looks_for_elsewhere_is_found_at_the_shards_target(
    made: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    made.reset()
    store(made, MANY, "many")
    with caplog.at_level(logging.WARNING):
        index = build(made, "cluster", "ais://many/s-")
    assert not caplog.records
    assert 0 < missed_by_the_proxy(made) < len(MANY)
    assert not any(row.proven for row in index.shards)
    assert known(index) == known(build(made, "read", "ais://many/s-"))


@pytest.mark.quick(1)
@pytest.mark.parametrize("status", [401, 404, 501])
def test_a_target_that_gives_no_index_costs_a_reading_of_its_shards(
    made: LocalCluster, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    made.reset()
    store(made, MANY, "many")
    made.faults.add(Fault(Status(status), verb="HEAD", object="s-*", bucket="many", at_proxy=True))
    with caplog.at_level(logging.WARNING):
        index = build(made, "cluster", "ais://many/s-")
    missed = missed_by_the_proxy(made)
    assert sum(row.proven for row in index.shards) == missed > 3
    assert f"{missed - 3} more shards were read" in caplog.text
    assert known(index) == known(build(made, "read", "ais://many/s-"))
