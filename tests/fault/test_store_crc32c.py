"""CRC32C, which AIStore gives to objects whose parts came in another order: verified, or reported as not verified."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator

import pytest
from helpers.command import run

from torchdata_ais import AISSourceLister, explain, stats
from torchdata_ais.errors import ChecksumError
from torchdata_ais.local import Fault, FlipBit, LocalCluster
from torchdata_ais.local.server.files import DIGESTS
from torchdata_ais.pipes.base.pipe import IterDataPipe
from torchdata_ais.store.transport import metadata
from torchdata_ais.testing import shard_bytes

SHARD = shard_bytes({f"a{n}.txt": b"x" * n for n in range(40)})


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as made:
        bucket = made.client().bucket("b").create()
        for name in ("s-0.tar", "s-1.tar"):
            parts = bucket.object(name).multipart_upload().create()
            for number, data in ((2, SHARD[9000:]), (1, SHARD[:9000])):
                parts.add_part(number).put_content(data)
            parts.complete()
        yield made


@pytest.fixture(autouse=True)
def fresh(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.faults.clear()
    monkeypatch.setattr(metadata, "_reported", set())


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "_crc32c_library", lambda: None)


def pipe(cluster: LocalCluster) -> IterDataPipe:
    return AISSourceLister("ais://b/s-", cluster=cluster.endpoint).load_tar().group_samples()


def test_digests_are_those_of_the_algorithm() -> None:
    pytest.importorskip("google_crc32c")
    rng = random.Random(1)
    for size in (0, 1, 9, 1000):
        data = rng.randbytes(size)
        ours, theirs = metadata.hash_like("e3069283"), DIGESTS["crc32c"]()
        assert ours is not None
        ours.update(data[:5])
        ours.update(data[5:])
        theirs.update(data)
        assert ours.hexdigest() == theirs.hexdigest()
    known = metadata.hash_like("e3069283")
    assert known is not None
    known.update(b"123456789")
    assert known.hexdigest() == "e3069283"


def test_promise_1_a_flipped_bit_is_an_error(cluster: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("google_crc32c")
    assert len(list(pipe(cluster))) == 80
    assert "not verified" not in caplog.text + str(explain(pipe(cluster)))
    cluster.faults.add(Fault(FlipBit(1024), object="s-1.tar"))
    with pytest.raises(ChecksumError):
        list(pipe(cluster))


@pytest.mark.usefixtures("without")
def test_without_a_library_it_is_reported(cluster: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    assert "not verified: crc32c, the checksum of 2 shards: pip install google-crc32c" in str(
        explain(pipe(cluster))
    )
    read = pipe(cluster)
    with caplog.at_level(logging.WARNING):
        assert len(list(read)) == 80
    assert caplog.text.count("not verified: crc32c, the checksum of ais://b/s-0.tar") == 1
    assert caplog.text.count("not verified") == 1
    report = stats(read)
    assert report["load_tar"].unverified == {"crc32c": 2}
    assert "not verified by load_tar: crc32c, of 2 objects: pip install google-crc32c" in str(report)
    told = json.loads(run("doctor", "--json", "--endpoint", cluster.endpoint).stdout)
    (check,) = [one for one in told["checks"] if one["name"] == "checksum"]
    assert (check["state"], check["todo"]) == ("note", "pip install google-crc32c")
    assert "not verified: crc32c" in check["text"]
