"""Several ranks see one data set: one listing for all of them, or an error on every rank that names the difference."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from forked_ranks import free_port, run_forked
from torch.utils.data import DataLoader

from torchdata_ais import AISSourceLister
from torchdata_ais.dataloader2 import DataLoader2
from torchdata_ais.errors import ReadError
from torchdata_ais.loaders import MultiProcessingReadingService, ais_loader, as_dataset
from torchdata_ais.local import DropEntry, LocalCluster
from torchdata_ais.ranks import group, rendezvous
from torchdata_ais.testing import shard_bytes

pytestmark = pytest.mark.kills

NAMES = [f"s-{number}.tar" for number in range(6)]
ALL = [3 * shard + number for shard in range(len(NAMES)) for number in range(3)]


def shard(number: int, count: int = 3) -> bytes:
    return shard_bytes(
        {f"{number}-{sample}.cls": str(3 * number + sample).encode() for sample in range(count)}
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture
def bucket(cluster: LocalCluster) -> Iterator[LocalCluster]:
    bucket = cluster.client().bucket("ranks").create()
    for number, name in enumerate(NAMES):
        bucket.object(name).get_writer().put_content(shard(number))
    cluster.reset_stats()
    yield cluster
    cluster.faults.clear()
    bucket.delete()


def chain(job: dict[str, Any], rank: int) -> Any:
    source = job["sources"][rank] if "sources" in job else "ais://ranks/s-"
    pipe: Any = AISSourceLister(source, cluster=job["endpoint"]).shuffle().load_tar().group_samples()
    return pipe.decode().to_tuple("cls").batched(2)


def numbers(items: Any) -> list[int]:
    return [int(number) for (batch,) in items for number in batch.tolist()]


def read(rank: int, job: dict[str, Any]) -> list[list[int]]:
    """Two epochs under the loader that the job names: the samples of each."""
    if "limit" in job:
        rendezvous.SHARED_BYTES = job["limit"]
    if "store_of" not in job:
        given = {"seed": job["seeds"][rank]} if "seeds" in job else {}
        return epochs_of(job, chain(job, rank), **given)
    store = job["store_of"](rank, job)
    try:
        return epochs_of(job, chain(job, rank), rank=rank, world_size=job["ranks"], store=store)
    finally:  # as real programs end: the process in which the store lives ends last
        store.set(f"done/{rank}", "1")
        if rank == 0:
            store.wait([f"done/{other}" for other in range(job["ranks"])])


def epochs_of(job: dict[str, Any], pipe: Any, **given: Any) -> list[list[int]]:
    context, workers = job.get("context"), job.get("workers", 2)
    if job["loader"] == "as_dataset":
        dataset = as_dataset(pipe, **given)
        loader: Any = DataLoader(
            dataset, batch_size=None, num_workers=workers, multiprocessing_context=context
        )
        epochs = []
        for epoch in range(job.get("epochs", 2)):
            dataset.set_epoch(epoch)
            epochs.append(numbers(loader))
        return epochs
    if job["loader"] == "service":
        service = MultiProcessingReadingService(workers, context, 2, 0, **given)
        with service, DataLoader2(pipe, reading_service=service) as loader:
            return [numbers(loader) for _ in range(job.get("epochs", 2))]
    with ais_loader(
        pipe,
        num_workers=workers,
        multiprocessing_context=context,
        rank_timeout_s=job.get("rank_timeout_s", 60),
        **given,
    ) as loader:
        return [numbers(loader) for _ in range(job.get("epochs", 2))]


def exactly_once(answers: list[dict[str, Any]]) -> None:
    assert all("value" in answer for answer in answers), answers
    for epoch in range(len(answers[0]["value"])):
        assert sorted(number for answer in answers for number in answer["value"][epoch]) == ALL, answers


LOADERS = ["ais_loader", "service", "as_dataset"]
SOME = ["ais_loader", *(pytest.param(name, marks=pytest.mark.ci) for name in LOADERS[1:])]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "context",
    [
        "fork",
        pytest.param("spawn", marks=pytest.mark.ci),
        pytest.param("forkserver", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("loader", LOADERS)
def test_promise_3_ranks_and_workers_under_every_loader_and_start_method(
    bucket: LocalCluster, tmp_path: Path, loader: str, context: str
) -> None:
    few = {} if context == "fork" else {"epochs": 1, "workers": 1}  # each of them imports torch anew
    job = {"endpoint": bucket.endpoint, "loader": loader, "context": context, **few}
    answers = run_forked(read, 2, tmp_path, timeout_s=100, **job)
    exactly_once(answers)
    assert [len(answer["value"][0]) for answer in answers] == [9, 9]  # 3 of the 6 shards each
    lists = [record for record in bucket.requests() if "/v1/buckets/ranks" in record.url]
    assert len(lists) == 1  # rank 0's main process; no worker, no other rank, no second epoch


@pytest.mark.parametrize("loader", SOME)
@pytest.mark.parametrize("nth", [1, 2])
def test_promise_3_an_object_that_one_listing_lacks_is_no_lost_shard(
    bucket: LocalCluster, tmp_path: Path, loader: str, nth: int
) -> None:
    bucket.faults.add(DropEntry("s-1.tar"), verb="LIST", nth=nth)
    answers = run_forked(read, 2, tmp_path, endpoint=bucket.endpoint, loader=loader, workers=1)
    for epoch in range(2):
        got = sorted(number for answer in answers for number in answer["value"][epoch])
        assert got in (ALL, [number for number in ALL if number // 3 != 1])


@pytest.mark.parametrize("loader", SOME)
def test_ranks_that_list_for_themselves_and_differ_all_end_with_the_name_of_the_object(
    bucket: LocalCluster, tmp_path: Path, loader: str
) -> None:
    """Above the limit every rank lists; here an object was there for one of the listings and not for the other."""
    bucket.faults.add(DropEntry("s-1.tar"), verb="LIST", nth=1)
    answers = run_forked(read, 3, tmp_path, endpoint=bucket.endpoint, loader=loader, workers=1, limit=0)
    for answer in answers:
        assert answer["kind"] == "ObjectChangedError"
        assert "ais://ranks/s-1.tar" in answer["error"]
        assert "rank 1" in answer["error"]
        assert "ais://ranks/s-2.tar" not in answer["error"]
        assert answer["seconds"] < 60


def rewrite_between(rank: int, job: dict[str, Any]) -> None:
    """Rank 1 writes an object anew after rank 0 has listed."""
    rendezvous.SHARED_BYTES = 0
    original = rendezvous.list_pipe

    def list_late(pipe: Any, theirs: Any = None) -> Any:
        if rank == 1:
            from aistore.sdk import Client

            Client(job["endpoint"]).bucket("ranks").object("s-4.tar").get_writer().put_content(shard(4, 2))
        return original(pipe, theirs)

    rendezvous.list_pipe = list_late
    with ais_loader(chain(job, rank), rank_timeout_s=60) as loader:
        list(loader)


def test_an_object_written_anew_between_two_listings_is_named(bucket: LocalCluster, tmp_path: Path) -> None:
    for answer in run_forked(rewrite_between, 2, tmp_path, endpoint=bucket.endpoint):
        assert answer["kind"] == "ObjectChangedError"
        assert "of another size or version: ais://ranks/s-4.tar" in answer["error"]


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("sources", "named"),
    [
        (["ais://ranks/s-{0..5}.tar", "ais://ranks/s-{0..4}.tar"], "s-{0..4}.tar"),
        (["ais://ranks/s-", "ais://ranks/s-0"], "ais://ranks/s-0"),
        ([["ais://ranks/s-0.tar", "ais://ranks/s-1.tar"], ["ais://ranks/s-0.tar"]], "ais://ranks/s-1.tar"),
        (
            [
                ["ais://ranks/s-0.tar", "ais://ranks/s-1.tar"],
                ["ais://ranks/s-1.tar", "ais://ranks/s-0.tar"],
            ],
            "order",
        ),
    ],
    ids=["templates", "prefixes", "lists", "order"],
)
@pytest.mark.parametrize("limit", [4 << 20, 0])
def test_ranks_with_other_sources_all_end_with_the_difference(
    bucket: LocalCluster, tmp_path: Path, sources: list[Any], named: str, limit: int
) -> None:
    answers = run_forked(
        read,
        2,
        tmp_path,
        endpoint=bucket.endpoint,
        loader="ais_loader",
        workers=0,
        sources=sources,
        limit=limit,
    )
    for answer in answers:
        assert answer["kind"] in ("UsageError", "ObjectChangedError"), answer
        assert named in answer["error"]
        assert "rank 1" in answer["error"]


def read_list(rank: int, job: dict[str, Any]) -> list[int]:
    from torch.utils.data.datapipes.iter import IterableWrapper

    pipe: Any = IterableWrapper(job["lists"][rank]).load_tar().group_samples().decode().to_tuple("cls")
    with ais_loader(pipe.batched(1), rank_timeout_s=60) as loader:
        return numbers(loader)


@pytest.mark.parametrize("limit", [4 << 20, 0])
def test_plain_lists_of_shards_are_compared_as_well(bucket: LocalCluster, tmp_path: Path, limit: int) -> None:
    urls = [f"{bucket.endpoint}/v1/objects/ranks/{name}?provider=ais" for name in NAMES]
    answers = run_forked(read_list, 2, tmp_path, lists=[urls, urls[:-1]], limit=limit)
    assert all("only on rank 0: ais://ranks/s-5.tar" in answer["error"] for answer in answers), answers
    assert (
        sorted(n for a in run_forked(read_list, 2, tmp_path / "2", lists=[urls, urls]) for n in a["value"])
        == ALL
    )


def test_ranks_with_another_seed_or_other_workers_end_with_the_name_of_the_argument(
    bucket: LocalCluster, tmp_path: Path
) -> None:
    answers = run_forked(
        read, 2, tmp_path, endpoint=bucket.endpoint, loader="ais_loader", workers=0, seeds=[0, 1]
    )
    assert all("seed=0" in answer["error"] and "seed=1" in answer["error"] for answer in answers), answers


def tcp_store(rank: int, job: dict[str, Any]) -> Any:
    return dist.TCPStore("127.0.0.1", job["port"], job["ranks"], rank == 0, timeout=timedelta(seconds=60))


def file_store(rank: int, job: dict[str, Any]) -> Any:
    return dist.FileStore(job["folder"] + "/ours", job["ranks"])


def prefix_store(rank: int, job: dict[str, Any]) -> Any:
    return dist.PrefixStore("train", file_store(rank, job))


@pytest.mark.parametrize(
    "store_of",
    [tcp_store, *(pytest.param(store, marks=pytest.mark.ci) for store in (file_store, prefix_store))],
)
@pytest.mark.parametrize("loader", SOME)
def test_any_store_serves_without_a_process_group(
    bucket: LocalCluster, tmp_path: Path, store_of: Any, loader: str
) -> None:
    job: dict[str, Any] = {
        "endpoint": bucket.endpoint,
        "store_of": store_of,
        "port": free_port(),
        "workers": 1,
    }
    exactly_once(run_forked(read, 2, tmp_path, group=False, loader=loader, **job))
    bucket.faults.add(DropEntry("s-1.tar"), verb="LIST", nth=1)
    job["port"] = free_port()
    answers = run_forked(read, 2, tmp_path / "again", group=False, loader=loader, limit=0, **job)
    assert all("ais://ranks/s-1.tar" in answer["error"] for answer in answers), answers


def test_threads_are_ranks_over_a_hash_store_and_two_loaders_do_not_mix(bucket: LocalCluster) -> None:
    store = dist.HashStore()
    got: dict[tuple[int, str], list[int]] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        loaders = {}
        try:
            for name in ("s-{0..3}.tar", "s-{4..5}.tar"):
                pipe: Any = AISSourceLister(f"ais://ranks/{name}", cluster=bucket.endpoint)
                pipe = pipe.load_tar().group_samples().decode().to_tuple("cls").batched(2)
                loaders[name] = ais_loader(pipe, rank=rank, world_size=2, store=store, epoch_steps=1)
            both = {name: iter(loader) for name, loader in loaders.items()}
            for name, items in both.items():
                got[rank, name] = numbers(items)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert {(rank, name): batch for (rank, name), batch in got.items()} == {
        (0, "s-{0..3}.tar"): [0, 1], (1, "s-{0..3}.tar"): [3, 4],
        (0, "s-{4..5}.tar"): [12, 13], (1, "s-{4..5}.tar"): [15, 16],
    }  # fmt: skip


def die_or_fail(rank: int, job: dict[str, Any]) -> list[int]:
    original = rendezvous.list_pipe

    def list_badly(pipe: Any, theirs: Any = None) -> Any:
        if rank == job["bad"]:
            if job["how"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ReadError("The listing broke off")
        return original(pipe, theirs)

    rendezvous.list_pipe = list_badly
    with ais_loader(chain(job, rank), rank_timeout_s=60) as loader:
        return numbers(loader)


@pytest.mark.ci
@pytest.mark.parametrize("bad", [0, 1])
def test_promise_6_a_rank_killed_while_they_begin_ends_the_others_in_seconds_by_name(
    bucket: LocalCluster, tmp_path: Path, bad: int
) -> None:
    answers = run_forked(die_or_fail, 3, tmp_path, endpoint=bucket.endpoint, bad=bad, how="kill")
    for rank, answer in enumerate(answers):
        if rank == bad:
            assert answer["died"] == -signal.SIGKILL
        else:
            assert f"Rank {bad} (pid " in answer["error"], answer
            assert answer["seconds"] < 50


@pytest.mark.quick(1)
@pytest.mark.parametrize("bad", [0, 2])
def test_promise_6_a_rank_that_cannot_list_ends_the_others_with_its_error(
    bucket: LocalCluster, tmp_path: Path, bad: int
) -> None:
    answers = run_forked(die_or_fail, 3, tmp_path, endpoint=bucket.endpoint, bad=bad, how="raise")
    for rank, answer in enumerate(answers):
        assert "The listing broke off" in answer["error"]
        assert answer["kind"] == ("ReadError" if rank == bad else "LoaderError")
        assert rank == bad or f"Rank {bad} failed" in answer["error"]
        assert answer["seconds"] < 45


def come_late(rank: int, job: dict[str, Any]) -> list[int]:
    if rank == 1:
        return []
    with ais_loader(chain(job, rank), rank_timeout_s=2) as loader:
        return numbers(loader)


@pytest.mark.ci
def test_promise_6_a_rank_that_does_not_come_is_waited_for_so_long_and_named(
    bucket: LocalCluster, tmp_path: Path
) -> None:
    answer, _ = run_forked(come_late, 2, tmp_path, endpoint=bucket.endpoint)
    assert "Rank 1 did not begin this loader within 2 s" in answer["error"]


def meet_a_cut_record(rank: int, job: dict[str, Any]) -> list[int]:
    store = file_store(rank, job)
    with Path(job["folder"], "ours").open("ab") as file:
        file.write((9).to_bytes(4, "little") + b"torch")
    group._ANSWER_S = 1
    with ais_loader(chain(job, rank), rank=rank, world_size=2, store=store, rank_timeout_s=60) as loader:
        return numbers(loader)


@pytest.mark.ci
def test_promise_6_a_store_that_never_answers_is_an_error(bucket: LocalCluster, tmp_path: Path) -> None:
    """A rank killed while it wrote to a FileStore leaves half a record, over which all others wait without end."""
    (answer,) = run_forked(meet_a_cut_record, 1, tmp_path, group=False, endpoint=bucket.endpoint)
    assert "has given no answer for 1 s" in answer["error"]
    assert answer["kind"] == "LoaderError"
    assert answer["seconds"] < 45


def without_group(rank: int, job: dict[str, Any]) -> list[int]:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    pipe, kind = chain(job, rank), job["loader"]
    given = {"rank": rank, "world_size": job["given"]} if "given" in job else {}
    if kind == "as_dataset":
        return numbers(DataLoader(as_dataset(pipe, **given), batch_size=None))
    if kind == "service":
        with DataLoader2(pipe, reading_service=MultiProcessingReadingService(1, **given)) as loader:
            if "seed" in job:
                loader.seed(job["seed"])
            return numbers(loader)
    return numbers(ais_loader(pipe, **given))


@pytest.mark.parametrize("loader", ["ais_loader", "service", "as_dataset"])
def test_world_size_in_the_environment_without_a_group_is_an_error_with_the_remedy(
    bucket: LocalCluster, tmp_path: Path, loader: str
) -> None:
    for answer in run_forked(without_group, 2, tmp_path, False, endpoint=bucket.endpoint, loader=loader):
        assert answer["kind"] == "UsageError"
        assert "init_process_group" in answer["error"]
        assert "rank= and world_size=" in answer["error"]


@pytest.mark.quick(1)
@pytest.mark.parametrize("loader", ["ais_loader", "service", "as_dataset"])
def test_ranks_given_by_hand_share_out_the_data_and_the_log_has_the_digest_once(
    bucket: LocalCluster, tmp_path: Path, loader: str
) -> None:
    job: dict[str, Any] = {"endpoint": bucket.endpoint, "loader": loader, "given": 2}
    answers = run_forked(without_group, 2, tmp_path, False, seed=3, **job)
    assert Counter(number for answer in answers for number in answer["value"]) == Counter(ALL)
    said = [[text for text in answer["log"] if "is not compared" in text] for answer in answers]
    assert [len(texts) for texts in said] == [1, 1]
    assert said[0][0].split()[-1] == said[1][0].split()[-1]
    alone = run_forked(without_group, 1, tmp_path, False, seed=3, **{**job, "given": 1})
    assert sorted(alone[0]["value"]) == ALL


def test_ranks_given_by_hand_without_store_need_a_seed_under_dataloader2(
    bucket: LocalCluster, tmp_path: Path
) -> None:
    job: dict[str, Any] = {"endpoint": bucket.endpoint, "loader": "service", "given": 2}
    for answer in run_forked(without_group, 2, tmp_path, False, **job):
        assert "loader.seed(n)" in answer["error"]


def steps(rank: int, job: dict[str, Any]) -> None:
    import torch

    with ais_loader(chain(job, rank), epoch_steps=job["steps"]) as loader:
        if job["grad"]:
            list(loader)
            list(loader)
        else:
            with torch.no_grad():
                list(loader)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("given", "grad", "times"), [(None, True, 1), (None, False, 0), (2, True, 0)])
def test_epoch_steps_none_under_several_ranks_warns_once(
    bucket: LocalCluster, tmp_path: Path, given: Any, grad: bool, times: int
) -> None:
    for answer in run_forked(steps, 2, tmp_path, endpoint=bucket.endpoint, steps=given, grad=grad):
        assert sum("epoch_steps=N" in text for text in answer["warnings"]) == times, answer


def without_epochs(rank: int, job: dict[str, Any]) -> list[int]:
    import torch

    torch.manual_seed(rank)  # as in most trainings
    loader: Any = DataLoader(as_dataset(chain(job, rank)), batch_size=None, num_workers=1)
    return numbers(loader)


def test_promise_3_as_dataset_without_set_epoch_though_the_ranks_seed_torch_differently(
    bucket: LocalCluster, tmp_path: Path
) -> None:
    answers = run_forked(without_epochs, 2, tmp_path, endpoint=bucket.endpoint)
    assert sorted(number for answer in answers for number in answer["value"]) == ALL
