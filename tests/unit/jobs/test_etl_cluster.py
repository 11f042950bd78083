"""Transforms on the embedded cluster: made, used while reading and for whole buckets, and what their failures say."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from aistore.sdk.etl import ETLConfig
from helpers.etl_classes import Doubled, Upper

from torchdata_ais import AISSourceLister, Retry
from torchdata_ais.errors import AISError, NotFoundError, ReadError, UsageError
from torchdata_ais.jobs.etl import delete_etl, ensure_etl, etl_logs, shard_etl, transform_bucket
from torchdata_ais.local import LocalCluster
from torchdata_ais.store.jobs import JobError, Progress
from torchdata_ais.testing import shard_bytes


@shard_etl
def numbered(sample: Any, args: Any) -> Any:
    """Append the arguments to the text; fail over a certain one."""
    if sample["txt"] == b"bad":
        raise ValueError("no text is bad enough")
    sample["txt"] += (args or {}).get("end", "").encode()
    return sample


@shard_etl
def swollen(sample: Any) -> Any:
    """Make every sample large, and fail over the last."""
    import os

    if sample["txt"] == b"bad":
        raise ValueError("too late")
    return {**sample, "bin": os.urandom(6 << 20)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=2, etl=True) as running:
        assert ensure_etl(running.client(), "numbered", numbered) == "numbered"
        yield running


@pytest.fixture
def bucket(cluster: LocalCluster) -> Iterator[Any]:
    made = cluster.client().bucket("texts").create()
    for shard in range(3):
        put(made, f"s-{shard}.tar", [f"{shard}-{n}" for n in range(4)])
    yield made
    made.delete()


def put(bucket: Any, name: str, texts: list[str]) -> None:
    members = [(f"{name[:-4]}-{n}.txt", text.encode()) for n, text in enumerate(texts)]
    bucket.object(name).get_writer().put_content(shard_bytes(members))


def texts_of(bucket: Any, **lister: Any) -> list[bytes]:
    return [sample["txt"] for sample in AISSourceLister([bucket], **lister).load_tar().group_samples()]


TEXTS = [b"%d-%d" % (shard, n) for shard in range(3) for n in range(4)]


@pytest.mark.ci
def test_shards_are_transformed_while_they_are_read(cluster: LocalCluster, bucket: Any) -> None:
    assert texts_of(bucket, etl_name="numbered") == TEXTS
    assert texts_of(bucket, etl=ETLConfig("numbered", args={"end": "!"})) == [text + b"!" for text in TEXTS]


def test_a_failure_is_the_objects_error_and_is_not_tried_again(cluster: LocalCluster, bucket: Any) -> None:
    put(bucket, "s-1.tar", ["fine", "bad"])
    cluster.reset_stats()
    with pytest.raises(ReadError) as raised:
        texts_of(bucket, etl_name="numbered")
    assert "numbered() failed over the sample 's-1-1': ValueError: no text is bad enough" in str(raised.value)
    assert "s-1.tar" in (raised.value.url or "")
    assert cluster.stats().count("GET", 422) == 1
    assert "Traceback" in etl_logs(cluster.endpoint, "numbered")
    pipe = AISSourceLister([bucket], etl_name="numbered").load_tar(on_error="skip").group_samples()
    assert [sample["txt"] for sample in pipe] == [text for text in TEXTS if text[:1] != b"1"]


@pytest.mark.ci
def test_a_failure_after_the_first_megabytes_breaks_the_answer_off(
    cluster: LocalCluster, bucket: Any
) -> None:
    """An answer without a length that merely ends would be taken for whole."""
    ensure_etl(cluster.client(), "swollen", swollen)
    put(bucket, "s-1.tar", ["a", "b", "c", "bad"])
    pipe = (
        AISSourceLister([bucket], prefix="s-1", etl_name="swollen")
        .load_tar(retry=Retry(attempts=1))
        .group_samples()
    )
    seen: list[str] = []
    with pytest.raises(ReadError, match="the body broke off at byte") as caught:
        seen.extend(sample["__key__"] for sample in pipe)
    assert "/objects/texts/s-1.tar" in str(caught.value.url)
    assert seen in (["s-1-0"], ["s-1-0", "s-1-1"], [])
    with pytest.raises(JobError, match="too late"):
        transform_bucket(cluster.client(), "swollen", "ais://texts/s-1", "ais://swollen")
    out = cluster.client().bucket("swollen")
    assert out.list_all_objects() == []
    out.delete()


def test_a_cut_shard_is_an_error_through_a_transform(cluster: LocalCluster, bucket: Any) -> None:
    body = bucket.object("s-0.tar").get_reader().read_all()
    bucket.object("s-0.tar").get_writer().put_content(body[:1536])
    with pytest.raises(ReadError, match="The shard ends at byte 1536"):
        texts_of(bucket, prefix="s-0", etl_name="numbered")


@pytest.mark.ci
def test_a_transform_is_made_once_and_started_again(cluster: LocalCluster, bucket: Any) -> None:
    client = cluster.client()
    before = client.cluster().list_etls()
    ensure_etl(client, "numbered", numbered)
    assert client.cluster().list_etls()[0].xaction_id == before[0].xaction_id
    client.etl("numbered").stop()
    ensure_etl(client, "numbered", numbered)
    assert texts_of(bucket, etl_name="numbered") == TEXTS


@pytest.mark.ci
def test_other_code_under_the_same_name_is_refused_or_replaces(cluster: LocalCluster, bucket: Any) -> None:
    client, note = cluster.client(), bucket.object("note.txt")
    note.get_writer().put_content(b"abc")
    ensure_etl(client, "other-code", Upper)
    with pytest.raises(UsageError, match="There is a transform 'other-code' with other code"):
        ensure_etl(client, "other-code", Doubled)
    assert note.get_reader(etl=ETLConfig("other-code")).read_all() == b"ABC"
    ensure_etl(client, "other-code", Doubled, replace_other=True)
    assert note.get_reader(etl=ETLConfig("other-code")).read_all() == b"abcabc"
    delete_etl(client, "other-code")
    delete_etl(client, "other-code")
    with pytest.raises(NotFoundError):
        etl_logs(client, "other-code")


@pytest.mark.ci
def test_the_code_of_a_function_is_compared(cluster: LocalCluster, bucket: Any) -> None:
    def first(sample: Any) -> Any:
        return sample

    def second(sample: Any) -> Any:
        return {**sample, "txt": b"second"}

    ensure_etl(cluster.client(), "changing", shard_etl(first))
    with pytest.raises(UsageError, match="There is a transform 'changing' with other code"):
        ensure_etl(cluster.client(), "changing", shard_etl(second))
    assert texts_of(bucket, etl_name="changing") == TEXTS
    ensure_etl(cluster.client(), "changing", shard_etl(second), replace_other=True)
    assert texts_of(bucket, etl_name="changing") == [b"second"] * len(TEXTS)
    delete_etl(cluster.client(), "changing")


def test_a_whole_bucket_is_transformed_with_progress(cluster: LocalCluster, bucket: Any) -> None:
    seen: list[Progress] = []
    result = transform_bucket(
        cluster.client(), "numbered", "ais://texts", "ais://new/copy-of-", progress=seen.append
    )
    assert (result.objects, result.errors) == (3, {})
    assert seen[-1] == Progress("transform", 3, 3)
    new = cluster.client().bucket("new")
    assert [entry.name for entry in new.list_all_objects()] == [f"copy-of-s-{n}.tar" for n in range(3)]
    assert texts_of(new) == TEXTS
    new.delete()


def test_an_object_that_fails_fails_the_job_or_is_named_in_the_result(
    cluster: LocalCluster, bucket: Any
) -> None:
    put(bucket, "s-1.tar", ["fine", "bad"])
    with pytest.raises(JobError) as raised:
        transform_bucket(cluster.client(), "numbered", bucket, "ais://new")
    assert "failed over the sample 's-1-1'" in str(raised.value)
    assert "log of numbered" in str(raised.value)
    assert "Traceback" in str(raised.value)
    result = transform_bucket(cluster.client(), "numbered", bucket, "ais://new", on_error="skip")
    assert list(result.errors) == ["s-1.tar"]
    assert result.objects == 2
    new = cluster.client().bucket("new")
    assert [entry.name for entry in new.list_all_objects()] == ["s-0.tar", "s-2.tar"]
    new.delete()


def test_a_transform_that_works_for_no_object_is_an_error_in_any_case(
    cluster: LocalCluster, bucket: Any
) -> None:
    for number in range(3):
        put(bucket, f"s-{number}.tar", ["bad"])
    with pytest.raises(JobError, match="failed over 3 objects"):
        transform_bucket(cluster.client(), "numbered", bucket, "ais://none", on_error="skip")
    cluster.client().bucket("none").delete()


def test_a_bucket_is_not_transformed_onto_itself(cluster: LocalCluster, bucket: Any) -> None:
    with pytest.raises(UsageError, match="would replace the old"):
        transform_bucket(cluster.client(), "numbered", bucket, "ais://texts")
    for source, target in (("ais://texts", "ais://texts/new-"), ("ais://texts/s-", "ais://texts/s-")):
        with pytest.raises(UsageError, match="or be transformed again"):
            transform_bucket(cluster.client(), "numbered", source, target)
    with pytest.raises(NotFoundError):
        transform_bucket(cluster.client(), "numbered", "ais://no-such-bucket", "ais://new")
    with pytest.raises(NotFoundError):
        transform_bucket(cluster.client(), "no-such-etl", bucket, "ais://new2")


def test_names_and_classes_that_cannot_be_are_refused(cluster: LocalCluster) -> None:
    with pytest.raises(UsageError, match="too short"):
        ensure_etl(cluster.client(), "abc", numbered)
    large = bytes(range(256)) * 1000
    with pytest.raises(UsageError, match="can be sent"):
        ensure_etl(cluster.client(), "too-large", shard_etl(lambda sample: {**sample, "bin": large}))
    lock = threading.Lock()
    with pytest.raises(UsageError, match="cannot be sent to the cluster"):
        ensure_etl(cluster.client(), "unpicklable", shard_etl(lambda sample: lock and sample))
    with pytest.raises(JobError, match="no-such-package"):
        ensure_etl(cluster.client(), "missing", numbered, dependencies=["no-such-package-here"])


def test_a_cluster_without_etl_says_so(ais_local_cluster: LocalCluster) -> None:
    with pytest.raises(AISError, match="501"):
        ensure_etl(ais_local_cluster.client(), "numbered", numbered)


@pytest.mark.ci
def test_the_sdk_alone_can_start_it_and_pull(
    cluster: LocalCluster, bucket: Any, caplog: pytest.LogCaptureFixture
) -> None:
    etl = cluster.client().etl("by-the-sdk")
    etl.init_class(comm_type="hpull")(numbered)
    with caplog.at_level("WARNING", "torchdata_ais"):
        ensure_etl(cluster.client(), "by-the-sdk", numbered)
    assert "its code is not compared" in caplog.text
    assert texts_of(bucket, etl=ETLConfig("by-the-sdk", args={"end": "?"})) == [text + b"?" for text in TEXTS]
    put(bucket, "s-1.tar", ["bad"])
    url = f"{cluster.endpoint}/v1/objects/texts/s-1.tar?provider=ais&etl_name=by-the-sdk"
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(url, timeout=60)
    with raised.value:
        assert raised.value.code == 422
        assert b"ais://texts/s-1.tar" in raised.value.read()
    etl.stop()
    etl.delete()
