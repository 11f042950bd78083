"""Which shards a rank gets, what a loader lists, and what a state says of it: without other processes."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from torchdata_ais import AISSourceLister, MultiProcessingReadingService, explain
from torchdata_ais._util.world import World, WorldOptions, instance_of
from torchdata_ais.errors import NotFoundError, StateError, UsageError
from torchdata_ais.loaders import ais_loader, as_dataset, merge_states
from torchdata_ais.local import LocalCluster
from torchdata_ais.ranks.listing import list_pipe, number_ranks_first, shard_instance
from torchdata_ais.ranks.rendezvous import _bucket, _difference, _summary
from torchdata_ais.testing import example_shards, shard_bytes

TOPOLOGY = {"ranks": st.integers(1, 9), "workers": st.integers(1, 9), "shards": st.integers(0, 60)}


def dealt_by_plan(shards: int, ranks: int, workers: int, rank: int, worker: int) -> list[int]:
    pipe: Any = IterableWrapper(range(shards)).sharding_filter()
    shard_instance(pipe, ranks * workers, instance_of(rank, ranks, worker))
    return list(pipe)


def dealt_by_service(shards: int, ranks: int, workers: int, rank: int, worker: int) -> list[int]:
    pipe: Any = IterableWrapper(range(shards)).sharding_filter()
    pipe.apply_sharding(ranks, rank, SHARDING_PRIORITIES.DISTRIBUTED)
    pipe.apply_sharding(workers, worker, SHARDING_PRIORITIES.MULTIPROCESSING)
    number_ranks_first([pipe])
    return list(pipe)


@pytest.mark.parametrize("dealt", [dealt_by_plan, dealt_by_service])
@given(**TOPOLOGY)
def test_promise_3_the_shards_of_two_ranks_differ_by_at_most_one(
    dealt: Any, ranks: int, workers: int, shards: int
) -> None:
    got = {
        (rank, worker): dealt(shards, ranks, workers, rank, worker)
        for rank, worker in itertools.product(range(ranks), range(workers))
    }
    assert Counter(itertools.chain(*got.values())) == Counter(range(shards))
    for (rank, worker), positions in got.items():
        assert all(position % ranks == rank for position in positions)
        assert all(position // ranks % workers == worker for position in positions)
    of_rank = [sum(len(got[rank, worker]) for worker in range(workers)) for rank in range(ranks)]
    assert max(of_rank) - min(of_rank) <= 1
    assert max(map(len, got.values())) - min(map(len, got.values())) <= 1


@pytest.mark.parametrize(
    "arguments",
    [{"rank": 0}, {"world_size": 2}, {"rank": 2, "world_size": 2}, {"rank": -1, "world_size": 2},
     {"rank": True, "world_size": 2}, {"rank": 0.0, "world_size": 1}, {"store": {}}],
)  # fmt: skip
def test_ranks_that_cannot_be_are_wrong_calls(arguments: dict[str, Any]) -> None:
    pipe = AISSourceLister(example_shards()).load_tar().group_samples()
    for make in (ais_loader, as_dataset):
        with pytest.raises(UsageError):
            make(pipe, **arguments)
    with pytest.raises(UsageError):
        MultiProcessingReadingService(1, **arguments)


def test_a_copy_of_the_options_has_the_store_here_and_none_elsewhere() -> None:
    store = dist.HashStore()
    options = WorldOptions(1, 2, store)
    packed = pickle.dumps(options)
    assert pickle.loads(packed).find().store is store
    del options
    assert pickle.loads(packed).find() == World(1, 2)


NAMES = [f"s-{number}.tar" for number in range(4)]


@pytest.fixture
def cluster(ais_local_cluster: LocalCluster) -> Iterator[LocalCluster]:
    bucket = ais_local_cluster.client().bucket("listed").create()
    for number, name in enumerate(NAMES):
        bucket.object(name).get_writer().put_content(shard_bytes({f"{number}.cls": str(number).encode()}))
    ais_local_cluster.reset_stats()
    yield ais_local_cluster
    bucket.delete()


def chain(source: Any) -> Any:
    return source.load_tar().group_samples().decode().to_tuple("cls").batched(1)


def lister(cluster: LocalCluster) -> Any:
    return AISSourceLister("ais://listed/s-", cluster=cluster.endpoint)


def numbers(items: Any) -> list[int]:
    return sorted(int(batch[0]) for (batch,) in items)


def listings(cluster: LocalCluster) -> int:
    return sum("/v1/buckets/listed" in record.url for record in cluster.requests())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("of_pipe", [False, True])
def test_a_loader_lists_once_and_leaves_the_pipe_as_it_was(
    cluster: LocalCluster, workers: int, of_pipe: bool
) -> None:
    source = lister(cluster)
    if of_pipe:
        source = AISSourceLister(IterableWrapper(["ais://listed/s-"]), cluster=cluster.endpoint)
    pipe = chain(source)
    with ais_loader(pipe, num_workers=workers) as loader:
        assert numbers(loader) == numbers(loader) == [0, 1, 2, 3]
    assert listings(cluster) == 1
    shard_instance(pipe, 1, 0)
    cluster.client().bucket("listed").object("s-3.tar").delete()
    assert numbers(pipe) == [0, 1, 2]  # a bare pipe lists by itself again
    assert explain(pipe).shards == 3
    with ais_loader(pipe) as loader:
        assert numbers(loader) == [0, 1, 2]


def test_an_object_deleted_after_the_listing_is_an_error_not_a_lost_shard(cluster: LocalCluster) -> None:
    dataset = as_dataset(chain(lister(cluster)))
    cluster.client().bucket("listed").object("s-3.tar").delete()
    with pytest.raises(NotFoundError):
        list(dataset)


def test_explain_has_the_shards_of_a_rank_and_the_digest(cluster: LocalCluster) -> None:
    pipe = chain(lister(cluster))
    run = explain(pipe, num_workers=2, world=3)
    assert run.shards_each_rank == (1, 2)
    assert "ranks: 1 to 2 shards for each of 3" in str(run)
    assert "epoch_steps=N" in str(run)
    assert run.digest == list_pipe(pipe).digest
    assert run.digest in str(run)
    assert "ranks:" not in str(explain(pipe))


def test_the_digest_sees_names_sizes_and_versions_and_not_the_address(cluster: LocalCluster) -> None:
    digest = list_pipe(lister(cluster)).digest
    assert digest == list_pipe(lister(cluster)).digest
    bucket = cluster.client().bucket("listed")
    whole = bucket.object("s-1.tar").get_reader().read_all()
    bucket.object("s-1.tar").get_writer().put_content(whole[:-1] + b"\1")
    assert list_pipe(lister(cluster)).digest != digest
    urls = [[f"http://{host}/v1/objects/b/s.tar?provider=ais"] for host in ("h:1", "i:2")]
    assert len({list_pipe(AISSourceLister(each, cluster="http://h:1")).digest for each in urls}) == 1


@pytest.mark.parametrize("change", ["write", "add", "delete"])
def test_promise_5_a_state_is_refused_over_a_bucket_that_changed(cluster: LocalCluster, change: str) -> None:
    with ais_loader(chain(lister(cluster))) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        state = loader.state_dict()
    bucket = cluster.client().bucket("listed")
    if change == "delete":
        bucket.object("s-3.tar").delete()
    else:
        name = "s-0.tar" if change == "write" else "s-9.tar"
        bucket.object(name).get_writer().put_content(shard_bytes({"9.cls": b"9"}))
    with ais_loader(chain(lister(cluster))) as loader:
        loader.load_state_dict(merge_states([state]))
        with pytest.raises(StateError, match="The shards are not those the checkpoint was taken over"):
            next(iter(loader))


def test_promise_5_a_state_of_another_version_is_refused() -> None:
    pipe = chain(AISSourceLister(example_shards()))
    with ais_loader(pipe) as loader:
        next(iter(loader))
        state = loader.state_dict()
        for old in ({**state, "version": 2}, {"merged": [state], **state, "version": 2}):
            with pytest.raises(StateError, match="has version 2, this package writes and reads 1"):
                loader.load_state_dict(old)


def rows(*names: str, version: str = "1") -> Any:
    return [(f"/v1/objects/b/{name}?provider=ais", 10, version, None) for name in names]


def test_a_difference_names_what_is_only_here_only_there_changed_or_in_another_order() -> None:
    assert _difference("the listing", rows("a", "b"), rows("a", "b"), 3) is None
    text = _difference("the listing", rows("a", "b") + rows("c"), rows("b", "d") + rows("c", version="2"), 3)
    assert text == (
        "the listing: only on rank 0: ais://b/a; only on rank 3: ais://b/d; "
        "of another size or version: ais://b/c"
    )
    assert "order" in str(_difference("the listing", rows("a", "b"), rows("b", "a"), 3))
    many = str(_difference("the listing", rows(*map(str, range(100))), [], 3))
    assert "... (100 in all)" in many
    assert len(many) < 200


def test_of_a_bucket_behind_aistore_versions_are_no_difference() -> None:
    ours, theirs = ([("/v1/objects/b/a?provider=aws", 10, version, None)] for version in ("1", None))
    assert _difference("the listing", ours, theirs, 1) is None


@given(st.sets(st.integers(0, 3000), max_size=200), st.integers(0, 3000))
def test_the_summary_of_a_large_listing_shows_where_the_one_other_row_is(
    present: set[int], other: int
) -> None:
    from torchdata_ais.ranks.listing import Table

    with_it, without = present | {other}, present - {other}
    one, two = (_summary(Table("t", rows(*map(str, sorted(names))))) for names in (with_it, without))
    (bucket,) = {
        at // 8
        for at in range(0, len(one.buckets), 8)
        if one.buckets[at : at + 8] != two.buckets[at : at + 8]
    }
    assert bucket == _bucket(rows(str(other))[0])
    assert one.digest != two.digest


def test_local_folders_and_lists_have_a_digest(tmp_path: Path) -> None:
    urls = example_shards(tmp_path)
    digests = {
        list_pipe(chain(source)).digest
        for source in (
            AISSourceLister(urls),
            IterableWrapper(urls),
            IterableWrapper([{"url": url} for url in urls]),
        )
    }
    assert len(digests) == 1
    assert list_pipe(chain(IterableWrapper(urls[:-1]))).digest not in digests


def test_the_listing_of_another_rank_is_read_at_the_own_endpoint_without_listing(
    cluster: LocalCluster,
) -> None:
    tables = list_pipe(lister(cluster)).tables
    assert "127.0.0.1" not in str(tables)
    digest = list_pipe(lister(cluster)).digest
    cluster.reset_stats()
    pipe = AISSourceLister("ais://listed/s-", cluster="http://me:s3cret@other:8080")
    listing = list_pipe(pipe, tables)
    with listing.on(pipe):
        urls: list[Any] = list(pipe)
    assert urls[0] == "http://other:8080/v1/objects/listed/s-0.tar?provider=ais"
    assert all(url.size and url.checksum for url in urls)
    assert listing.digest == digest
    assert listings(cluster) == 0
    assert "s3cret" not in str(listing.tables)
