"""`ShardWriter`: where shards end, what `post` sees, manifests, and going on after an interruption."""

from __future__ import annotations

import io
import json
import logging
import tarfile
from pathlib import Path

import pytest
import xxhash

import torchdata_ais.webdataset as wds
from torchdata_ais import AISFileLoader, AISSourceLister
from torchdata_ais.errors import (
    AISError,
    DuplicateFieldError,
    NotFoundError,
    ReadError,
    StateError,
    UsageError,
)
from torchdata_ais.local import LocalCluster, Status
from torchdata_ais.store import Retry, StoreOptions, head_object
from torchdata_ais.tar import archive_size
from torchdata_ais.writing import ShardWriter


def sample(index, size=10):
    return {"__key__": f"{index:04d}", "bin": bytes([index % 251]) * size, "cls": index}


SAMPLES = [sample(index, 40 * index % 3000) for index in range(50)]


def write(pattern, samples=SAMPLES, **options):
    with ShardWriter(str(pattern), **options) as writer:
        for one in samples:
            writer.write(one)
    return writer


def keys_in(path):
    return [one["__key__"] for one in AISFileLoader([str(path)]).group_samples()]


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.suffix != ".json"}


class StopError(Exception):
    pass


def write_some(writer, samples, count):
    """Write so many samples, then fail as a caller would."""
    with writer:
        for one in samples[:count]:
            writer.write(one)
            writer.cursor = one["cls"] + 1
        raise StopError


def interrupted(pattern, after, samples=SAMPLES, **options):
    writer = ShardWriter(str(pattern), **options)
    with pytest.raises(StopError):
        write_some(writer, samples, after)
    return writer


# --- where shards end --------------------------------------------------------------------------------


def test_shards_roll_over_by_count(tmp_path):
    writer = write(tmp_path / "s-%03d.tar", maxcount=20)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["s-000.tar", "s-001.tar", "s-002.tar"]
    assert [len(keys_in(shard.name)) for shard in writer.shards] == [20, 20, 10]
    assert [key for shard in writer.shards for key in keys_in(shard.name)] == [s["__key__"] for s in SAMPLES]
    assert (writer.total, writer.count, writer.shard, Path(writer.fname).name) == (50, 0, 3, "s-002.tar")


@pytest.mark.parametrize("maxsize", [10240, 20480, 30000, 1e9])
def test_no_shard_is_larger_than_maxsize_and_none_could_hold_one_more(tmp_path, maxsize):
    writer = write(tmp_path / "s-%03d.tar", maxsize=maxsize)
    sizes = [Path(shard.name).stat().st_size for shard in writer.shards]
    assert all(size <= maxsize for size in sizes)
    first_of_next = [len(keys_in(shard.name)) for shard in writer.shards]
    at = 0
    for shard, count in zip(writer.shards[:-1], first_of_next, strict=False):
        at += count
        with tarfile.open(shard.name) as tar:
            used = sum(512 + -(-info.size // 512) * 512 for info in tar)
        following = sum(512 + -(-len(v) // 512) * 512 for v in (SAMPLES[at]["bin"], b"12"))
        assert archive_size(used + following) > maxsize


def test_a_sample_larger_than_maxsize_has_a_shard_of_its_own(tmp_path):
    samples = [sample(0), sample(1, 50_000), sample(2)]
    writer = write(tmp_path / "s-%d.tar", samples, maxsize=10240)
    assert [keys_in(shard.name) for shard in writer.shards] == [["0000"], ["0001"], ["0002"]]


def test_no_sample_makes_no_shard(tmp_path):
    assert write(tmp_path / "s-%d.tar", []).shards == []
    assert list(tmp_path.iterdir()) == []


def test_boundaries_can_be_set_by_hand_and_none_is_empty(tmp_path):
    with ShardWriter(str(tmp_path / "s-%d.tar"), start_shard=7) as writer:
        writer.next_stream()
        writer.next_stream()
        writer.write(sample(0))
        writer.next_stream()
        writer.write(sample(1))
        writer.finish()
        writer.finish()
        writer.next_stream()
    assert content(tmp_path).keys() == {"s-7.tar", "s-8.tar"}
    assert writer.shard == 9


def test_a_shard_appears_only_when_it_is_whole(tmp_path):
    with ShardWriter(str(tmp_path / "s-%d.tar"), maxcount=2) as writer:
        seen = []
        for index in range(5):
            writer.write(sample(index))
            seen.append(sorted(path.name for path in tmp_path.glob("s*.tar")))
    assert seen == [[], [], ["s-0.tar"], ["s-0.tar"], ["s-0.tar", "s-1.tar"]]


def test_an_exception_leaves_no_short_shard_and_posts_none(tmp_path):
    posted = []
    interrupted(tmp_path / "s-%d.tar", after=5, maxcount=2, post=posted.append)
    assert content(tmp_path).keys() == {"s-0.tar", "s-1.tar"}
    assert [Path(name).name for name in posted] == ["s-0.tar", "s-1.tar"]


def test_compressed_series_are_reproducible_too(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for folder in "ab":
        write(tmp_path / folder / "s-%d.tar.gz", maxcount=20)
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_a_key_that_comes_twice_in_a_shard_is_an_error_and_writing_may_go_on(tmp_path):
    with ShardWriter(str(tmp_path / "s-%d.tar")) as writer:
        writer.write(sample(0))
        with pytest.raises(DuplicateFieldError):
            writer.write(sample(0))
        writer.write(sample(1))
    assert keys_in(tmp_path / "s-0.tar") == ["0000", "0001"]


@pytest.mark.parametrize("pattern", ["s.tar", "s-%s-%s.tar", "s-%q.tar", "%"])
def test_a_pattern_without_its_number_is_an_error(pattern):
    with pytest.raises(UsageError, match="pattern"):
        ShardWriter(pattern)


@pytest.mark.parametrize(
    "options", [{"maxcount": 0}, {"maxsize": 0}, {"resume": True}, {"no_such_option": 1}, {"compress": "lz4"}]
)
def test_arguments_that_cannot_work_are_errors(options):
    with pytest.raises(UsageError):
        ShardWriter("s-%d.tar", **options)


def test_nothing_is_printed_and_verbose_logs(tmp_path, capfd, caplog):
    with caplog.at_level(logging.INFO, "torchdata_ais"):
        write(tmp_path / "q-%d.tar")
        assert caplog.text == ""
        write(tmp_path / "s-%d.tar", verbose=1)
    assert "s-0.tar: 50 samples" in caplog.text
    assert capfd.readouterr() == ("", "")


# --- post and opener ---------------------------------------------------------------------------------


def test_post_may_take_the_shard_away(tmp_path):
    taken = {}

    def post(name):
        taken[Path(name).name] = Path(name).read_bytes()
        Path(name).unlink()

    write(tmp_path / "s-%d.tar", post=post, maxcount=25)
    assert taken.keys() == {"s-0.tar", "s-1.tar"}
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "s-%d.tar", maxcount=25)
    assert content(tmp_path) == taken


def test_a_shard_whose_post_failed_is_not_finished(tmp_path):
    def post(name):
        if "s-1" in name:
            raise StopError

    with pytest.raises(StopError):
        write(tmp_path / "s-%d.tar", maxcount=20, post=post, manifest=str(tmp_path / "m.json"))
    assert [Path(s["name"]).name for s in json.loads((tmp_path / "m.json").read_text())["shards"]] == [
        "s-0.tar"
    ]
    posted = []
    write(
        tmp_path / "s-%d.tar", maxcount=20, post=posted.append, manifest=str(tmp_path / "m.json"), resume=True
    )
    assert [Path(name).name for name in posted] == ["s-1.tar", "s-2.tar"]


def test_after_a_failure_the_series_takes_no_more(tmp_path):
    def post(name):
        raise StopError

    writer = ShardWriter(str(tmp_path / "s-%d.tar"), maxcount=1, post=post)
    writer.write(sample(0))
    with pytest.raises(StopError):
        writer.write(sample(1))
    with pytest.raises(UsageError, match="closed, or one of its shards failed"):
        writer.write(sample(2))
    writer.close()


def test_opener_gives_the_stream_and_memory_is_left_to_read():
    buffers = {}
    write("s-%d.tar", maxcount=25, opener=lambda name: buffers.setdefault(name, io.BytesIO()))
    assert list(buffers) == ["s-0.tar", "s-1.tar"]
    assert all(buffer.getvalue().count(b".cls") == 25 for buffer in buffers.values())


def test_what_opener_opened_is_closed(tmp_path):
    opened = []

    def opener(name):
        opened.append(io.FileIO(name, "w"))
        return opened[-1]

    write(tmp_path / "s-%d.tar", maxcount=25, opener=opener)
    assert [file.closed for file in opened] == [True, True]
    interrupted(tmp_path / "s-%d.tar", after=3, opener=opener)
    assert opened[-1].closed


# --- manifest and resume -----------------------------------------------------------------------------


def test_the_manifest_says_what_was_written(tmp_path):
    writer = write(tmp_path / "s-%d.tar", maxcount=20, manifest=str(tmp_path / "m.json"))
    manifest = json.loads((tmp_path / "m.json").read_text())
    assert (manifest["complete"], manifest["samples"]) == (True, 50)
    assert manifest["size"] == sum(len(data) for data in content(tmp_path).values())
    for shard, (name, data) in zip(manifest["shards"], content(tmp_path).items(), strict=True):
        assert (Path(shard["name"]).name, shard["size"]) == (name, len(data))
        assert shard["checksum"] == xxhash.xxh64_hexdigest(data)
    assert (
        [shard["samples"] for shard in manifest["shards"]]
        == [s.samples for s in writer.shards]
        == [20, 20, 10]
    )


def test_the_manifest_grows_with_each_shard_and_is_incomplete_until_the_end(tmp_path):
    interrupted(tmp_path / "s-%d.tar", after=45, maxcount=20, manifest=str(tmp_path / "m.json"))
    manifest = json.loads((tmp_path / "m.json").read_text())
    assert (manifest["complete"], manifest["samples"]) == (False, 40)
    assert list(tmp_path.glob(".*")) == []


def test_an_old_manifest_does_not_speak_for_new_shards(tmp_path):
    write(tmp_path / "s-%d.tar", maxcount=20, manifest=str(tmp_path / "m.json"))
    where = str(tmp_path / "m.json")
    interrupted(tmp_path / "s-%d.tar", after=5, maxcount=20, manifest=where, overwrite=True)
    assert json.loads((tmp_path / "m.json").read_text())["shards"] == []


def series(pattern, count, **options):
    with ShardWriter(str(pattern), maxcount=2, **options) as writer:
        for one in SAMPLES[:count]:
            writer.write(one)
    return writer


@pytest.mark.parametrize("local", [True, False])
def test_a_series_that_is_there_is_refused_or_replaced_as_a_whole(tmp_path, ais_bucket, ais_cluster, local):
    base = str(tmp_path) if local else f"ais://{ais_bucket.name}"
    pattern, options = f"{base}/s-%02d.tar", {"cluster": ais_cluster}
    series(pattern, 9, **options)
    before = [sample["__key__"] for sample in stored(base, ais_cluster)]
    manifest = str(tmp_path / "m.json")
    with pytest.raises(UsageError, match=r"shards of this pattern already, such as .*s-0.*overwrite=True"):
        series(pattern, 3, manifest=manifest, **options)
    assert not Path(manifest).exists()
    assert [sample["__key__"] for sample in stored(base, ais_cluster)] == before
    series(pattern, 3, start_shard=5, **options)  # an older series goes on
    assert len(stored(base, ais_cluster)) == 12
    with pytest.raises(UsageError, match="already"):
        series(pattern, 3, start_shard=6, **options)
    series(pattern, 3, overwrite=None, **options)
    assert len(stored(base, ais_cluster)) == 3 + 5 + 3
    interrupted(pattern, 1, maxcount=2, overwrite=True, **options)
    assert len(stored(base, ais_cluster)) == 3 + 5 + 3  # nothing is removed without an end
    series(pattern, 3, overwrite=True, **options)
    assert [sample["__key__"] for sample in stored(base, ais_cluster)] == [
        one["__key__"] for one in SAMPLES[:3]
    ]


def test_writers_that_share_a_pattern_refuse_and_remove_only_their_own_shards(tmp_path):
    for start in (0, 1):
        series(tmp_path / "s-%d.tar", 8, start_shard=start, shard_step=2)
    with pytest.raises(UsageError, match="already"):
        series(tmp_path / "s-%d.tar", 2, start_shard=1, shard_step=2)
    series(tmp_path / "s-%d.tar", 2, start_shard=1, shard_step=2, overwrite=True)
    assert sorted(path.name for path in tmp_path.glob("*.tar")) == [f"s-{n}.tar" for n in (0, 1, 2, 4, 6)]


def test_webdatasets_name_replaces_and_reports_what_is_left(tmp_path, caplog):
    for count in (9, 3):
        with wds.ShardWriter(str(tmp_path / "s-%d.tar"), maxcount=2) as writer:
            for one in SAMPLES[:count]:
                writer.write(one)
    assert "3 older shards left beyond the new ones, such as" in caplog.text
    assert len(list(tmp_path.glob("*.tar"))) == 5


@pytest.mark.parametrize("field", [".txt", ".seg.png", "."])
def test_a_field_that_begins_with_a_dot_is_refused(tmp_path, field):
    with (
        pytest.raises(UsageError, match=r"begins with a dot. Write '"),
        ShardWriter(str(tmp_path / "s-%d.tar")) as writer,
    ):
        writer.write({"__key__": "a", field: b"x"})


def stored(base, cluster):
    shards = f"{base}/s-??.tar" if base.startswith("/") else f"{base}/s-"
    return list(AISSourceLister(shards, cluster=cluster).load_tar().group_samples(adjacent="split"))


def test_a_series_of_nothing_has_a_manifest_too(tmp_path):
    write(tmp_path / "s-%d.tar", [], manifest=str(tmp_path / "m.json"))
    assert json.loads((tmp_path / "m.json").read_text())["complete"] is True


@pytest.mark.parametrize("after", [0, 1, 20, 21, 39, 49])
@pytest.mark.parametrize("limit", [{"maxcount": 10}, {"maxsize": 20480}])
def test_a_resumed_series_is_that_of_one_go_and_touches_no_finished_shard(tmp_path, after, limit):
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    write(tmp_path / "whole" / "s-%d.tar", **limit)
    options = {"manifest": str(tmp_path / "parts" / "m.json"), **limit}
    interrupted(tmp_path / "parts" / "s-%d.tar", after=after, **options)
    before = {path.name: path.stat().st_ino for path in (tmp_path / "parts").glob("s*")}
    encoded = []
    writer = write(
        tmp_path / "parts" / "s-%d.tar",
        resume=True,
        encoder=lambda one: encoded.append(one) or {**one, "cls": b"%d" % one["cls"]},
        **options,
    )
    assert content(tmp_path / "parts") == content(tmp_path / "whole")
    assert (
        before.items() <= {path.name: path.stat().st_ino for path in (tmp_path / "parts").glob("s*")}.items()
    )
    assert writer.total == 50
    assert len(encoded) == 50 - sum(s.samples for s in writer.shards if Path(s.name).name in before)


def test_resuming_what_is_complete_changes_nothing(tmp_path):
    options = {"maxcount": 20, "manifest": str(tmp_path / "m.json")}
    write(tmp_path / "s-%d.tar", **options)
    before = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    write(tmp_path / "s-%d.tar", resume=True, **options)
    assert {path.name: path.stat().st_ino for path in tmp_path.iterdir()} == before
    with pytest.raises(StateError, match="was complete with 50 samples"):
        write(tmp_path / "s-%d.tar", [*SAMPLES, sample(50)], resume=True, **options)


def test_resume_without_a_manifest_yet_begins_at_the_beginning(tmp_path):
    assert write(tmp_path / "s-%d.tar", resume=True, manifest=str(tmp_path / "m.json")).total == 50


def test_a_finished_shard_that_is_gone_is_written_again(tmp_path):
    options = {"maxcount": 10, "manifest": str(tmp_path / "m.json")}
    interrupted(tmp_path / "s-%d.tar", after=45, **options)
    before = content(tmp_path)
    (tmp_path / "s-1.tar").unlink()
    (tmp_path / "s-2.tar").write_bytes(b"short")
    write(tmp_path / "s-%d.tar", resume=True, **options)
    assert before.items() <= content(tmp_path).items()


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ([sample(index + 1) for index in range(50)], "Other samples came"),
        (SAMPLES[1:], "Other samples came"),
        (SAMPLES[:15], "ended before the end of what a finished shard holds"),
        ([], "ended before the end"),
    ],
)
def test_other_samples_than_the_first_time_are_noticed(tmp_path, samples, says):
    options = {"maxcount": 10, "manifest": str(tmp_path / "m.json")}
    interrupted(tmp_path / "s-%d.tar", after=25, **options)
    with pytest.raises(StateError, match=says):
        write(tmp_path / "s-%d.tar", samples, resume=True, **options)


def test_other_settings_than_the_first_time_are_noticed(tmp_path):
    manifest = str(tmp_path / "m.json")
    interrupted(tmp_path / "s-%d.tar", after=25, maxcount=10, manifest=manifest)
    with pytest.raises(StateError, match="maxcount=10, not 11"):
        ShardWriter(str(tmp_path / "s-%d.tar"), maxcount=11, manifest=manifest, resume=True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 99}', '{"version": 1, "shards": [{}]}'])
def test_what_is_no_manifest_is_an_error_that_names_the_file(tmp_path, text):
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(StateError, match="no manifest of shards") as caught:
        ShardWriter("s-%d.tar", manifest=str(tmp_path / "m.json"), resume=True)
    assert caught.value.url == str(tmp_path / "m.json")


def test_a_caller_that_can_begin_in_the_middle_passes_over_nothing(tmp_path):
    options = {"maxcount": 10, "manifest": str(tmp_path / "m.json")}
    interrupted(tmp_path / "s-%d.tar", after=25, **options)
    with ShardWriter(str(tmp_path / "s-%d.tar"), resume=True, **options) as writer:
        start = writer.resume_at()
        for index in range(start, 25):
            writer.write(sample(index))
    assert start == 20
    assert [keys_in(shard.name)[0] for shard in writer.shards] == ["0000", "0010", "0020"]


# --- buckets -----------------------------------------------------------------------------------------


def test_shards_go_straight_to_a_bucket_and_a_series_resumes_there(ais_cluster, ais_bucket, tmp_path):
    options = {
        "maxcount": 20,
        "manifest": f"ais://{ais_bucket.name}/notes/m.json",
        "cluster": ais_cluster.endpoint,
    }
    pattern = f"ais://{ais_bucket.name}/train/s-%06d.tar"
    interrupted(pattern, after=45, **options)
    names = [entry.name for entry in ais_bucket.list_all_objects(prefix="train/")]
    assert names == ["train/s-000000.tar", "train/s-000001.tar"]
    writer = write(pattern, resume=True, **options)
    write(tmp_path / "s-%06d.tar", maxcount=20)
    stored = {
        entry.name[6:]: ais_bucket.object(entry.name).get_reader().read_all()
        for entry in ais_bucket.list_all_objects(prefix="train/")
    }
    assert stored == content(tmp_path)
    for shard in writer.shards:
        assert head_object(shard.name, StoreOptions(endpoint=ais_cluster.endpoint)).checksum == shard.checksum


def test_promise_1_a_finished_object_of_the_same_size_with_other_bytes_is_written_again(
    ais_cluster, ais_bucket
):
    """Size, and the checksum that the cluster keeps, must be those of the manifest."""
    options = {
        "maxcount": 10,
        "manifest": f"ais://{ais_bucket.name}/m.json",
        "cluster": ais_cluster.endpoint,
    }
    pattern = f"ais://{ais_bucket.name}/s-%d.tar"
    writer = write(pattern, **options)
    before = [ais_bucket.object(f"s-{number}.tar").get_reader().read_all() for number in range(5)]
    ais_bucket.object("s-1.tar").get_writer().put_content(bytes(len(before[1])))  # the same size
    ais_bucket.object("s-3.tar").get_writer().put_content(before[3] + bytes(512))
    assert [one.is_there(lambda: StoreOptions(ais_cluster.endpoint)) for one in writer.shards] == [
        True, False, True, False, True,
    ]  # fmt: skip
    write(pattern, resume=True, **options)
    assert [ais_bucket.object(f"s-{number}.tar").get_reader().read_all() for number in range(5)] == before


def test_a_failing_upload_leaves_nothing_and_the_series_goes_on_later(
    ais_cluster, ais_bucket, ais_faults, tmp_path
):
    store = StoreOptions(endpoint=ais_cluster.endpoint, retry=Retry(attempts=2, backoff=0.0))
    options = {"maxcount": 20, "manifest": str(tmp_path / "m.json"), "cluster": store}
    pattern = f"ais://{ais_bucket.name}/s-%d.tar"
    ais_faults.add(Status(503), verb="PUT", object="s-1.tar")
    with pytest.raises(ReadError, match="503") as caught:
        write(pattern, **options)
    assert isinstance(caught.value, AISError)
    assert [entry.name for entry in ais_bucket.list_all_objects()] == ["s-0.tar"]
    ais_faults.clear()
    write(pattern, resume=True, **options)
    assert [entry.name for entry in ais_bucket.list_all_objects()] == ["s-0.tar", "s-1.tar", "s-2.tar"]


def test_an_upload_that_fails_once_is_tried_again(ais_cluster, ais_bucket, ais_faults):
    ais_faults.add(Status(503), verb="PUT", nth=1)
    store = StoreOptions(endpoint=ais_cluster.endpoint, retry=Retry(backoff=0.0))
    writer = write(f"ais://{ais_bucket.name}/s-%d.tar", cluster=store)
    assert ais_faults.fired() == 1
    assert head_object(writer.shards[0].name, store).checksum == writer.shards[0].checksum


def test_the_old_recipe_of_writing_files_and_posting_them_works(ais_cluster, ais_bucket, tmp_path):
    def post(name):
        ais_bucket.object(Path(name).name).get_writer().put_file(name)
        Path(name).unlink()

    write(tmp_path / "s-%d.tar", maxcount=20, post=post)
    pipe = AISFileLoader(
        [f"ais://{ais_bucket.name}/s-{n}.tar" for n in range(3)], cluster=ais_cluster.endpoint
    )
    assert [one["__key__"] for one in pipe.group_samples()] == [s["__key__"] for s in SAMPLES]


def test_a_bucket_that_is_missing_is_told_with_the_first_sample(ais_local_cluster: LocalCluster) -> None:
    writer = ShardWriter("ais://not-made/s-%03d.tar", cluster=ais_local_cluster)
    with pytest.raises(NotFoundError, match=r"There is no bucket ais://not-made.*create\(\)"):
        writer.write({"__key__": "a", "cls": 1})
    ais_local_cluster.client().bucket("not-made").create()
    with ShardWriter("ais://not-made/s-%03d.tar", maxcount=1, cluster=ais_local_cluster) as writer:
        before = len(ais_local_cluster.requests())
        for number in range(3):
            writer.write({"__key__": str(number), "cls": 1})
    lists = [one for one in ais_local_cluster.requests()[before:] if "/v1/buckets/" in one.url]
    assert len(lists) == 1
    ais_local_cluster.client().bucket("not-made").delete()
