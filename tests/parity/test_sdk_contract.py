"""What the unmodified SDK sees: the same tests run on the embedded cluster and, with AIS_ENDPOINT, on a real one."""

from __future__ import annotations

import io
import json
import tarfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import xxhash
from aistore.sdk import ListObjectFlag
from aistore.sdk.archive_config import ArchiveConfig, ArchiveMode
from aistore.sdk.errors import AISError, ErrBckAlreadyExists, ErrBckNotFound, ErrObjNotFound

SDK = tuple(int(part) for part in metadata.version("aistore").split(".")[:2])
WAIT_S = 16  # the SDK polls every max(t/64, min(t/8, 1)) seconds


def shard(names: list[str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(name)
            tar.addfile(info, io.BytesIO(name.encode()))
    return out.getvalue()


def put(bucket: Any, name: str, body: bytes) -> Any:
    thing = bucket.object(name)
    thing.get_writer().put_content(body)
    return thing


def test_the_cluster_is_ready_and_has_a_map(ais_client: Any) -> None:
    cluster = ais_client.cluster()
    assert cluster.is_ready()
    smap = cluster.get_info()
    assert smap.tmap
    assert smap.proxy_si.daemon_type == "proxy"


def test_buckets_are_made_listed_and_removed(ais_client: Any, ais_bucket: Any) -> None:
    names = [bucket.name for bucket in ais_client.cluster().list_buckets(provider="ais")]
    assert ais_bucket.name in names
    with pytest.raises(ErrBckAlreadyExists):
        ais_bucket.create()
    ais_bucket.create(exist_ok=True)
    assert ais_bucket.head()["Ais-Bucket-Props"]
    missing = ais_client.bucket(ais_bucket.name + "-none")
    with pytest.raises(ErrBckNotFound):
        missing.delete()
    with pytest.raises(AISError, match="STATUS:404"):
        missing.head()


@pytest.mark.parametrize("name", ["a", "dir/sub dir/ü ö.bin", "q?a=1&b#c%d+e.bin", "x" * 200])
def test_what_is_put_is_what_is_got(ais_bucket: Any, name: str) -> None:
    body = name.encode() * 1000
    thing = put(ais_bucket, name, body)
    reader = thing.get_reader()
    assert reader.read_all() == body
    assert reader.attributes.checksum_value == xxhash.xxh64_hexdigest(body)
    assert reader.attributes.obj_version == "1"
    put(ais_bucket, name, b"new")
    assert thing.get_reader().read_all() == b"new"
    assert thing.props.obj_version == "2"
    assert thing.props.size == 3


@pytest.mark.parametrize("size", [0, 1, 256 << 10, (256 << 10) + 1, 5 << 20])
def test_files_of_any_size_are_put_through_the_redirect(ais_bucket: Any, tmp_path: Path, size: int) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"z" * size)
    thing = ais_bucket.object("f")
    thing.get_writer().put_file(file)
    assert thing.get_reader().read_all() == file.read_bytes()
    assert (thing.head().size if SDK >= (2, 0) else thing.props.size) == size


def test_missing_objects_have_their_errors(ais_client: Any, ais_bucket: Any) -> None:
    with pytest.raises(ErrObjNotFound):
        ais_bucket.object("none").get_reader().read_all()
    with pytest.raises(ErrObjNotFound):
        ais_bucket.object("none").delete()
    with pytest.raises(AISError, match="404"):
        ais_bucket.object("none").head()
    with pytest.raises(ErrBckNotFound):
        put(ais_client.bucket(ais_bucket.name + "-none"), "x", b"x")


def test_ranges(ais_bucket: Any) -> None:
    thing = put(ais_bucket, "digits", b"0123456789")
    assert thing.get_reader(byte_range="bytes=2-4").read_all() == b"234"
    assert thing.get_reader(byte_range="bytes=7-").read_all() == b"789"
    assert thing.get_reader(byte_range="bytes=-3").read_all() == b"789"
    assert thing.get_reader(byte_range="bytes=8-99").read_all() == b"89"
    with pytest.raises(AISError, match="416"):
        thing.get_reader(byte_range="bytes=10-").read_all()


def test_a_file_view_and_blocks_agree(ais_bucket: Any) -> None:
    body = bytes(range(256)) * 40_000
    thing = put(ais_bucket, "big", body)
    with thing.get_reader().as_file() as file:
        assert file.read() == body
    assert b"".join(thing.get_reader(chunk_size=100_000)) == body


def test_custom_properties_are_added_and_replaced(ais_bucket: Any) -> None:
    thing = put(ais_bucket, "a", b"a")
    thing.get_writer().set_custom_props({"k1": "v1"})
    thing.get_writer().set_custom_props({"k2": "v2"})
    assert thing.props.custom_metadata == {"k1": "v1", "k2": "v2"}
    thing.get_writer().set_custom_props({"k3": "v3"}, replace_existing=True)
    assert thing.props.custom_metadata == {"k3": "v3"}


def test_listing_goes_on_page_by_page(ais_bucket: Any) -> None:
    names = [*(f"s-{number:03d}" for number in range(25)), "t-0"]
    for name in names:
        put(ais_bucket, name, name.encode())
    first = ais_bucket.list_objects(prefix="s-", page_size=10, props="name,size,checksum,version")
    assert [entry.name for entry in first.entries] == names[:10]
    assert first.continuation_token == "s-009"
    assert first.entries[0].checksum == xxhash.xxh64_hexdigest(b"s-000")
    assert [entry.name for entry in ais_bucket.list_all_objects(prefix="s-", page_size=7)] == names[:25]
    assert [entry.name for entry in ais_bucket.list_objects_iter(page_size=3)] == names
    assert [entry.name for entry in ais_bucket.list_all_objects(prefix="s-01")] == names[10:20]
    assert ais_bucket.list_objects(prefix="none").entries == []
    urls = list(ais_bucket.list_urls(prefix="t"))
    assert len(urls) == 1
    assert urls[0].endswith(f"/v1/objects/{ais_bucket.name}/t-0?provider=ais")


def test_archives_are_listed_as_folders(ais_bucket: Any) -> None:
    put(ais_bucket, "s.tar", shard(["b.txt", "a.txt"]))
    put(ais_bucket, "s.tar.notes", b"x")
    entries = ais_bucket.list_all_objects(flags=[ListObjectFlag.ARCH_DIR], props="name,size")
    assert [(entry.name, entry.size) for entry in entries] == [
        ("s.tar", 10240),
        ("s.tar.notes", 1),
        ("s.tar/a.txt", 5),
        ("s.tar/b.txt", 5),
    ]


def test_files_come_out_of_archives(ais_bucket: Any) -> None:
    thing = put(ais_bucket, "s.tar", shard(["d/1.jpg", "d/1.cls", "d/2.jpg", "top.txt"]))

    def get(**arguments: Any) -> bytes:
        return bytes(thing.get_reader(archive_config=ArchiveConfig(**arguments)).read_all())

    def names(raw: bytes) -> list[str]:
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            return tar.getnames()

    assert get(archpath="d/2.jpg") == b"d/2.jpg"
    assert names(get(regex="d/1", mode=ArchiveMode.WDSKEY)) == ["d/1.jpg", "d/1.cls"]
    assert names(get(regex=r"\d\.jpg$", mode=ArchiveMode.REGEXP)) == ["d/1.jpg", "d/2.jpg"]
    assert names(get(regex=".txt", mode=ArchiveMode.SUFFIX)) == ["top.txt"]
    with pytest.raises(ErrObjNotFound):
        get(archpath="none")


def test_objects_are_copied_appended_and_uploaded_in_parts(ais_bucket: Any) -> None:
    thing = put(ais_bucket, "a", b"one,")
    other = ais_bucket.object("b")
    thing.copy(other)
    assert other.get_reader().read_all() == b"one,"
    writer = ais_bucket.object("c").get_writer()
    handle = writer.append_content(b"one,")
    handle = writer.append_content(b"two", handle=handle)
    writer.append_content(b"", handle=handle, flush=True)
    assert ais_bucket.object("c").get_reader().read_all() == b"one,two"
    upload = ais_bucket.object("d").multipart_upload().create()
    upload.add_part(2).put_content(b"two")
    upload.add_part(1).put_content(b"one")
    upload.complete()
    assert ais_bucket.object("d").get_reader().read_all() == b"onetwo"


def test_groups_are_copied_and_deleted(ais_client: Any, ais_bucket: Any) -> None:
    for number in range(4):
        put(ais_bucket, f"s-{number}.tar", b"x" * number)
    to = ais_client.bucket(ais_bucket.name + "-to").create()
    try:
        group = ais_bucket.objects(obj_template="s-{1..3}.tar")
        for job in group.copy(to):
            ais_client.job(job).wait_for_idle(timeout=WAIT_S)
        assert [entry.name for entry in to.list_all_objects()] == ["s-1.tar", "s-2.tar", "s-3.tar"]
        ais_client.job(ais_bucket.objects(obj_names=["s-0.tar", "s-2.tar"]).delete()).wait(timeout=WAIT_S)
        assert [entry.name for entry in ais_bucket.list_all_objects()] == ["s-1.tar", "s-3.tar"]
        job = ais_client.job(ais_bucket.copy(to, prefix_filter="s-1", prepend="again-"))
        assert job.wait(timeout=WAIT_S).success
        assert to.object("again-s-1.tar").get_reader().read_all() == b"x"
    finally:
        to.delete(missing_ok=True)


def test_groups_become_archives(ais_client: Any, ais_bucket: Any) -> None:
    put(ais_bucket, "a", b"aa")
    put(ais_bucket, "b", b"b")
    for job in ais_bucket.objects(obj_names=["a", "b"]).archive("out.tar"):
        ais_client.job(job).wait_for_idle(timeout=WAIT_S)
    raw = ais_bucket.object("out.tar").get_reader().read_all()
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        assert sorted((item.name, item.size) for item in tar) == [("a", 2), ("b", 1)]


def test_buckets_are_renamed(ais_client: Any, ais_bucket: Any) -> None:
    put(ais_bucket, "a", b"a")
    name = ais_bucket.name
    job = ais_bucket.rename(name + "-new")
    ais_client.job(job).wait(timeout=WAIT_S)
    renamed = ais_client.bucket(name + "-new")
    try:
        assert renamed.object("a").get_reader().read_all() == b"a"
    finally:
        renamed.delete()


@pytest.mark.ci
def test_summary_and_info_count_the_objects(ais_bucket: Any) -> None:
    put(ais_bucket, "a", b"aaa")
    put(ais_bucket, "b", b"b")
    summary = ais_bucket.summary()
    assert summary["ObjCount"]["obj_count_present"] == "2"
    assert summary["TotalSize"]["size_all_present_objs"] == "4"
    _, info = ais_bucket.info()
    assert info["ObjCount"]["obj_count_present"] == "2"


@pytest.mark.parametrize("streaming", [True, False])
def test_batches_come_in_the_order_asked_for(ais_client: Any, ais_bucket: Any, streaming: bool) -> None:
    put(ais_bucket, "s.tar", shard(["1.jpg", "1.cls"]))
    put(ais_bucket, "plain", b"0123456789")
    batch = ais_client.batch(bucket=ais_bucket, cont_on_err=True, streaming_get=streaming)
    batch.add("s.tar", archpath="1.cls")
    batch.add("plain")
    batch.add("none")
    ranges = SDK >= (1, 26)
    if ranges:
        batch.add("plain", start=2, length=3)
    got = [(out.obj_name, body) for out, body in batch.get()]
    assert [body for _, body in got] == [b"1.cls", b"0123456789", b"", b"234"][: 3 + ranges]


def samples_of(bucket: Any, prefix: str) -> list[list[tuple[str, bytes]]]:
    shards = []
    for entry in bucket.list_all_objects(prefix=prefix):
        raw = bucket.object(entry.name).get_reader().read_all()
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            shards.append([(item.name, tar.extractfile(item).read()) for item in tar])  # type: ignore[union-attr]
    return shards


@pytest.mark.parametrize("kind", ["alphanumeric", "none", "shuffle"])
def test_dsort_puts_samples_in_order_into_new_shards(
    ais_client: Any, ais_bucket: Any, tmp_path: Path, kind: str
) -> None:
    names = [f"{number * 7 % 20:03d}.{ext}" for number in range(20) for ext in ("seg.png", "cls")]
    for index in range(4):
        put(ais_bucket, f"in-{index}.tar", shard(names[index * 10 : index * 10 + 10]))
    spec = {
        "input_bck": {"name": ais_bucket.name, "provider": "ais"},
        "output_bck": {"name": ais_bucket.name, "provider": "ais"},
        "input_extension": ".tar",
        "input_format": {"template": "in-{0..3}"},
        "output_format": "out-{00..99}",
        "output_shard_size": "90B",
        "algorithm": {"kind": kind, "seed": "5" if kind == "shuffle" else ""},
        "dsorter_type": "dsort_general",
    }
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(spec))
    job = ais_client.dsort()
    if kind == "none" and SDK < (2, 0):
        with pytest.raises(ValueError, match="alphanumeric"):
            job.start(file)  # these look at the specification by themselves, and do not know all of it
        return
    job.start(file)
    assert job.wait(timeout=WAIT_S).success
    shards = samples_of(ais_bucket, "out-")
    flat = [member for one in shards for member in one]
    assert sorted(flat) == sorted((name, name.encode()) for name in names)
    keys = [name.partition(".")[0] for name, _ in flat]
    assert keys[::2] == keys[1::2]
    assert len(shards) == 4
    if kind == "alphanumeric":
        assert keys[::2] == sorted(keys[::2])
    if kind == "shuffle":
        assert keys[::2] not in (sorted(keys[::2]), [name[:3] for name in names[::2]])
