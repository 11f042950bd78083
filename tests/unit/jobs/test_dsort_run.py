"""dSort jobs on a cluster: the embedded one, or the real one of AIS_ENDPOINT."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from torchdata_ais import AISSourceLister
from torchdata_ais.errors import AISError, NotFoundError, ShardError, StallError, UsageError
from torchdata_ais.jobs.dsort import ByContent, ByName, DsortSpec, Shuffle, Unchanged, run_dsort
from torchdata_ais.jobs.dsort.run import check_samples
from torchdata_ais.local import LocalCluster
from torchdata_ais.store import list_objects
from torchdata_ais.store.jobs import JobError, JobState, Progress, cluster_options, wait_for_job
from torchdata_ais.testing import shard_bytes

SHARDS, EACH = 4, 5


def put(
    bucket: Any, name: str, keys: list[str], label: Callable[[str], str] = lambda key: str(len(key))
) -> None:
    fields = {"cls": label, "image.jpg": lambda key: key * 30, "trimap.png": lambda key: key[::-1] * 9}
    members = [(f"{key}.{field}", make(key).encode()) for key in keys for field, make in fields.items()]
    bucket.object(name).get_writer().put_content(shard_bytes(members))


@pytest.fixture
def bucket(ais_bucket: Any) -> Any:
    for shard in range(SHARDS):
        keys = [f"sample_{shard * EACH + n:04d}" for n in range(EACH)]
        put(ais_bucket, f"samples-{shard:02d}.tar", keys, lambda key: str(int(key[-4:]) * 7 % 20))
    return ais_bucket


def keys_of(bucket: Any, prefix: str, field: str = "__key__") -> list[Any]:
    pipe = AISSourceLister([bucket], prefix=prefix).load_tar().group_samples()
    return [sample[field] for sample in pipe]


KEYS = [f"sample_{n:04d}" for n in range(SHARDS * EACH)]


def test_the_specification_of_the_article_works_as_it_stands(
    ais_client: Any, bucket: Any, caplog: pytest.LogCaptureFixture
) -> None:
    spec = {
        "extension": ".tar",
        "bck": {"name": bucket.name, "provider": "ais"},
        "output_bck": {"name": bucket.name, "provider": "ais"},
        "input_format": "samples-{00..18}",
        "output_format": "shuffled-shard-%d",
        "output_shard_size": "1000",
        "algorithm": {"kind": "shuffle"},
        "description": "Create new shuffled shards",
    }
    seen: list[Progress] = []
    with caplog.at_level(logging.WARNING, "torchdata_ais"):
        result = run_dsort(ais_client, spec, check=True, progress=seen.append)
    assert result.samples == len(KEYS)
    assert len(result.shards) > SHARDS
    assert "/shuffled-shard-0.tar?" in result.shards[0]
    names = [entry.name for entry in bucket.list_all_objects(prefix="shuffled")]
    assert len(names) == len(result.shards)
    shuffled = keys_of(bucket, "shuffled")
    assert sorted(shuffled) == KEYS
    assert shuffled != KEYS
    assert result.missing == [f"samples-{number:02d}.tar" for number in range(SHARDS, 19)]
    assert "15 of 19 input shards are not in" in caplog.text
    assert seen[-1] == Progress("check", SHARDS + len(names), SHARDS + len(names))
    assert "write" in {step.phase for step in seen}


def test_a_seed_gives_the_same_order_again_and_another_seed_another(
    ais_cluster: Any, ais_client: Any, bucket: Any
) -> None:
    if not isinstance(ais_cluster, LocalCluster):
        pytest.skip(
            "a real cluster shuffles the shards in the order in which they were read: another each time"
        )
    orders = []
    for number, seed in enumerate((5, 5, 6)):
        target = f"ais://{bucket.name}/t{number}-%03d.tar"
        run_dsort(ais_client, DsortSpec(f"ais://{bucket.name}/samples-", target, 1000, Shuffle(seed)))
        orders.append(keys_of(bucket, f"t{number}-"))
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (ByName(), KEYS),
        (ByName(decreasing=True), KEYS[::-1]),
        (ByContent("cls", "int"), sorted(KEYS, key=lambda key: int(key[-4:]) * 7 % 20)),
        (ByContent("cls", "string"), sorted(KEYS, key=lambda key: str(int(key[-4:]) * 7 % 20))),
    ],
)  # fmt: skip
def test_samples_are_sorted(ais_client: Any, bucket: Any, order: Any, expected: list[str]) -> None:
    out = f"ais://{bucket.name}/sorted-%03d.tar"
    result = run_dsort(
        ais_client, DsortSpec(f"ais://{bucket.name}/samples-{{00..03}}", out, 1000, order), check=True
    )
    assert result.samples == len(KEYS)
    assert keys_of(bucket, "sorted-") == expected


def test_sizes_change_and_the_order_of_each_shard_stays(ais_client: Any, bucket: Any) -> None:
    source = [f"ais://{bucket.name}/samples-{number:02d}.tar" for number in (2, 0)]
    run_dsort(
        ais_client, DsortSpec(source, f"ais://{bucket.name}/one-%d.tar", "1GB", Unchanged()), check=True
    )
    assert [entry.name for entry in bucket.list_all_objects(prefix="one-")] == ["one-0.tar"]
    assert sorted(keys_of(bucket, "one-")) == KEYS[:EACH] + KEYS[2 * EACH : 3 * EACH]


def test_old_output_is_refused_or_deleted_never_mixed(ais_client: Any, bucket: Any) -> None:
    put(bucket, "new-7.tar", ["old"])
    spec = DsortSpec(f"ais://{bucket.name}/samples-", f"ais://{bucket.name}/new-%d.tar", "1GB")
    with pytest.raises(UsageError, match="are there already"):
        run_dsort(ais_client, spec)
    wrong = spec.to_server() | {"algorithm": {"kind": "no such"}}
    with pytest.raises(UsageError):
        run_dsort(ais_client, wrong, overwrite=True)
    assert keys_of(bucket, "new-") == ["old"]  # a specification that cannot work deletes nothing
    result = run_dsort(ais_client, spec, overwrite=True, check=True)
    assert len(result.shards) == 1
    assert sorted(keys_of(bucket, "new-")) == KEYS
    with pytest.raises(UsageError, match="names of the input"):
        run_dsort(
            ais_client,
            DsortSpec(f"ais://{bucket.name}/s", f"ais://{bucket.name}/samples-%02d.tar"),
            overwrite=True,
        )
    assert keys_of(bucket, "samples-") == KEYS


def test_nothing_to_sort_is_an_error(ais_client: Any, bucket: Any) -> None:
    with pytest.raises(NotFoundError, match="No shard is there"):
        run_dsort(
            ais_client, DsortSpec(f"ais://{bucket.name}/none-{{0..3}}.tar", f"ais://{bucket.name}/x-%d.tar")
        )


def test_a_new_output_bucket_is_made(ais_client: Any, bucket: Any) -> None:
    other = ais_client.bucket(f"{bucket.name}-out")
    try:
        run_dsort(
            ais_client, DsortSpec(f"ais://{bucket.name}/samples-", f"ais://{other.name}/x-%d.tar"), check=True
        )
        assert sorted(keys_of(other, "")) == KEYS
    finally:
        other.delete(missing_ok=True)


def test_a_shard_that_is_none_fails_the_job(ais_client: Any, bucket: Any) -> None:
    bucket.object("samples-09.tar").get_writer().put_content(b"this is no tar" * 100)
    with pytest.raises((JobError, ShardError)):
        run_dsort(
            ais_client,
            DsortSpec(f"ais://{bucket.name}/samples-", f"ais://{bucket.name}/x-%d.tar"),
            check=True,
        )


def test_a_key_map_is_stored_for_the_job_alone(ais_client: Any, bucket: Any) -> None:
    """Neither cluster takes it here (501; no fetching from loopback addresses): both must say so, and keep nothing."""
    spec = DsortSpec(
        f"ais://{bucket.name}/samples-", f"ais://{bucket.name}", "1MB", key_map={"a-%d.tar": KEYS[:3]}
    )
    with pytest.raises(AISError, match=r"ekm|egress blocked"):
        run_dsort(ais_client, spec)
    assert bucket.list_all_objects(prefix="__dsort__") == []


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (KEYS[1:], r"1 samples are missing or changed: 'sample_0000'$"),
        ([*KEYS, "new"], r"others are there that were not: 'new' of"),
        ([*KEYS, KEYS[3]], r"others are there that were not: 'sample_0003' of"),
    ],
)
def test_the_check_finds_lost_new_and_doubled_samples(
    ais_client: Any, ais_bucket: Any, after: list[str], message: str
) -> None:
    put(ais_bucket, "before.tar", KEYS)
    half = len(after) // 2
    put(ais_bucket, "after-0.tar", after[half:])
    put(ais_bucket, "after-1.tar", after[:half])
    options = cluster_options(ais_client)
    before, new = (
        list_objects(f"ais://{ais_bucket.name}/{name}", options=options) for name in ("before", "after")
    )
    with pytest.raises(JobError) as raised:
        check_samples(before, new, options, "job")
    assert re.search(message, str(raised.value).partition(". Do not")[0])


def test_the_check_finds_a_changed_byte(ais_client: Any, ais_bucket: Any) -> None:
    put(ais_bucket, "before.tar", KEYS)
    put(ais_bucket, "after.tar", KEYS, lambda key: "x" if key == KEYS[4] else str(len(key)))
    options = cluster_options(ais_client)
    before, new = (
        list_objects(f"ais://{ais_bucket.name}/{name}", options=options) for name in ("before", "after")
    )
    assert check_samples(before, before, options, "job") == len(KEYS)
    with pytest.raises(JobError, match="1 samples are missing or changed: 'sample_0004'"):
        check_samples(before, new, options, "job")


def test_waiting_ends_when_nothing_moves_or_the_job_fails() -> None:
    stuck = JobState(Progress("read", 3, 9), finished=False)
    with pytest.raises(StallError, match=r"Job 7 made no progress for 0.1 s; it stands at read"):
        wait_for_job(lambda: stuck, "job 7", stall_timeout=0.1)
    with pytest.raises(JobError, match="Job 7 failed: disk full"):
        wait_for_job(lambda: stuck._replace(error="disk full"), "job 7")
    states = iter([stuck, stuck, JobState(Progress("write", 1, 1), finished=True)])
    seen: list[Progress] = []
    assert wait_for_job(lambda: next(states), "job 7", progress=seen.append).finished
    assert seen == [Progress("read", 3, 9), Progress("write", 1, 1)]


def test_no_cluster_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    with pytest.raises(UsageError, match="No cluster is named"):
        run_dsort(None, DsortSpec("ais://a/s-", "ais://a/t-%d.tar"))
