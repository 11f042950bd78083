"""Who reads the bytes of a shard, and when: the consumer, a thread ahead of it, and the next shard before its turn."""

from __future__ import annotations

import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from torchdata_ais import AISFileLoader, AISSourceLister
from torchdata_ais.errors import NotFoundError, ReadError
from torchdata_ais.local import Bandwidth, LocalCluster
from torchdata_ais.store import StoreOptions, open_blocks
from torchdata_ais.store.transport import read_ahead
from torchdata_ais.testing import shard_bytes

SIZE = 6_000_000


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=1) as cluster:
        bucket = cluster.client().bucket("b").create()
        for number in range(3):
            members = {f"{number}-{key}.bin": bytes([number]) * 100_000 for key in range(60)}
            bucket.object(f"s-{number}.tar").get_writer().put_content(shard_bytes(members))
        yield cluster


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each block was read by the main thread."""
    found: list[bool] = []
    read = read_ahead.Channel._next_block

    def noted(channel: Any) -> bytes | None:
        found.append(threading.current_thread() is threading.main_thread())
        return read(channel)

    monkeypatch.setattr(read_ahead.Channel, "_next_block", noted)
    return found


def options(cluster: LocalCluster, **more: Any) -> StoreOptions:
    return StoreOptions(endpoint=cluster.endpoint, block_bytes=64 << 10, **more)


def requests(cluster: LocalCluster) -> int:
    return cluster.stats().count("GET", 200, "target")


def test_a_consumer_that_is_faster_reads_for_itself(
    cluster: LocalCluster, readers: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few blocks are held at most, so that the consumer comes upon a thread that waits for bytes.

    By a clock that stands still no byte is ever late: then the consumer is left alone to the end.
    """
    cluster.faults.add(Bandwidth(60e6))
    monkeypatch.setattr(read_ahead, "time", types.SimpleNamespace(monotonic=lambda: 1.0))
    with open_blocks("ais://b/s-0.tar", options(cluster, prefetch_bytes=256 << 10)) as blocks:
        size = sum(map(len, blocks))
    assert size > SIZE
    assert readers == sorted(readers), "the thread read again"
    assert readers.index(True) < len(readers) / 2


def test_a_thread_reads_ahead_where_bytes_have_to_be_waited_for(
    cluster: LocalCluster, readers: list[bool]
) -> None:
    cluster.faults.add(Bandwidth(20e6))
    with open_blocks("ais://b/s-0.tar", options(cluster)) as blocks:
        assert sum(map(len, blocks)) > SIZE
    assert not any(readers[len(readers) // 2 :])


def test_nothing_is_doubled_or_lost_when_readers_take_turns(cluster: LocalCluster) -> None:
    whole = cluster.client().bucket("b").object("s-1.tar").get_reader().read_all()
    cluster.faults.add(Bandwidth(60e6), probability=0.5, seed=3)
    for _ in range(10):
        with open_blocks("ais://b/s-1.tar", options(cluster, prefetch_bytes=200_000)) as blocks:
            assert b"".join(blocks) == whole


def test_an_interrupted_read_is_no_end(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_blocks("ais://b/s-0.tar", options(cluster)) as blocks:
        for _ in range(10):
            next(blocks)

        def interrupted(_response: Any, _size: int) -> bytes:
            raise KeyboardInterrupt

        monkeypatch.setattr(blocks._channel.reader, "_read1", interrupted)
        with pytest.raises(KeyboardInterrupt):
            for _ in blocks:
                pass
        for _ in range(2):
            with pytest.raises(ReadError, match="interrupted"):
                next(blocks)


def test_a_block_lost_to_ctrl_c_is_not_followed_by_others(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a fixed clock the thread never reads again after the consumer started to read for itself.
    cluster.faults.add(Bandwidth(60e6))
    monkeypatch.setattr(read_ahead, "time", types.SimpleNamespace(monotonic=lambda: 1.0))
    with open_blocks("ais://b/s-0.tar", options(cluster, prefetch_bytes=256 << 10)) as blocks:
        for _ in range(10):
            next(blocks)
        weigh = read_ahead.Channel._weigh

        def interrupted(channel: Any, begin: float, size: int) -> None:
            weigh(channel, begin, size)
            raise KeyboardInterrupt

        monkeypatch.setattr(read_ahead.Channel, "_weigh", interrupted)
        with pytest.raises(KeyboardInterrupt):
            for _ in blocks:
                pass
        monkeypatch.undo()
        with pytest.raises(ReadError, match="interrupted"):
            next(blocks)


def test_the_next_shard_is_asked_for_before_the_one_under_way_ends(cluster: LocalCluster) -> None:
    urls = [f"ais://b/s-{number}.tar" for number in range(3)]
    before = requests(cluster)
    members = iter(AISFileLoader(urls, cluster=cluster.endpoint))
    next(members)
    assert requests(cluster) == before + 1
    for _ in range(55):
        next(members)
    deadline = threading.Event()
    while requests(cluster) < before + 2:
        assert not deadline.wait(0.05)
    assert requests(cluster) == before + 2
    assert sum(1 for _ in members) == 180 - 56


def test_what_is_wrong_with_the_next_shard_is_told_in_its_turn(cluster: LocalCluster) -> None:
    lister = AISSourceLister(["ais://b/s-0.tar", "ais://none"], cluster=cluster.endpoint)
    members = iter(lister.load_tar())
    assert len([next(members) for _ in range(60)]) == 60
    with pytest.raises(NotFoundError):
        next(members)


def test_a_source_that_has_to_be_waited_for_is_asked_when_its_shard_is_needed(cluster: LocalCluster) -> None:
    got: list[str] = []

    def urls() -> Iterator[str]:
        for number in range(3):
            assert len(got) == 60 * number
            yield f"ais://b/s-{number}.tar"

    for path, _ in AISFileLoader(urls(), cluster=cluster.endpoint):
        got.append(path.member)
    assert len(got) == 180
