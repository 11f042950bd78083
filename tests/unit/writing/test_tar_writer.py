"""`TarWriter`: what it writes is read by everybody, and appears whole or not at all."""

from __future__ import annotations

import gc
import io
import logging
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers.disk_calls import disk_calls

from torchdata_ais import AISFileLoader
from torchdata_ais.codecs import EncodeError
from torchdata_ais.errors import (
    DuplicateFieldError,
    MissingFieldError,
    NotFoundError,
    TruncatedShardError,
    UsageError,
)
from torchdata_ais.store import StoreOptions, object_exists
from torchdata_ais.testing import write_shard
from torchdata_ais.writing import TarWriter

SAMPLES = [
    {
        "__key__": "000",
        "__url__": "ais://b/old.tar",
        "txt": "cat",
        "cls": 3,
        "seg.png": b"\x89PNG",
        "_note": 1,
    },
    {"__key__": "d.x/001", "json": {"a": [1, 2]}, "bin": b"x" * 1500, "empty": b""},
]
MEMBERS = [
    ("000.cls", b"3"),
    ("000.seg.png", b"\x89PNG"),
    ("000.txt", b"cat"),
    ("d.x/001.bin", b"x" * 1500),
    ("d.x/001.empty", b""),
    ("d.x/001.json", b'{"a": [1, 2]}'),
]


def write(to, samples=SAMPLES, **options):
    with TarWriter(to, **options) as writer:
        for sample in samples:
            writer.write(sample)
    return to


def fail_after_one(to, error=ValueError, **options):
    with TarWriter(to, **options) as writer:
        writer.write(SAMPLES[0])
        raise error("stop")


def written(samples=SAMPLES, **options):
    return write(io.BytesIO(), samples, **options).getvalue()


def by_tarfile(archive):
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return [(info.name, tar.extractfile(info).read()) for info in tar]


def by_us(path):
    return [(member.member, data) for member, data in AISFileLoader([str(path)])]


def by_webdataset(path):
    webdataset = pytest.importorskip("webdataset")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        samples = list(webdataset.WebDataset(str(path), shardshuffle=False, nodesplitter=None))
        gc.collect()
    return [
        (f"{sample['__key__']}.{name}", data)
        for sample in samples
        for name, data in sample.items()
        if not name.startswith("__")
    ]


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tgz", "tar.bz2", "tar.xz"])
def test_what_was_written_is_read_by_webdataset_tar_tarfile_and_us(tmp_path, ending):
    path = write(tmp_path / f"s.{ending}")
    assert by_us(path) == by_tarfile(path.read_bytes()) == by_webdataset(path) == MEMBERS
    out = tmp_path / "out"
    out.mkdir()
    done = subprocess.run([shutil.which("tar"), "-xf", path, "-C", out], capture_output=True, check=True)
    assert done.stderr == b""
    assert {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*.*") if p.is_file()} == dict(MEMBERS)


def test_zst_is_read_by_us(tmp_path):
    path = write(tmp_path / "s.tar.zst")
    assert path.read_bytes()[:4] == b"\x28\xb5\x2f\xfd"
    assert by_us(path) == MEMBERS
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # of the checksum
    path.write_bytes(data)
    with pytest.raises(Exception, match="Zstandard"):
        by_us(path)


def test_members_are_those_of_webdataset_and_so_is_the_count_returned(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    sample = {"__key__": "a", "txt": "cat", "cls": 3, "json": [1], "b.npy": np.arange(3)}
    theirs, ours = io.BytesIO(), io.BytesIO()
    writer = webdataset.TarWriter(theirs, mtime=5)
    counts = [writer.write(sample)]
    writer.close()
    with TarWriter(ours, mtime=5) as writer:
        counts.append(writer.write(sample))
    assert counts[0] == counts[1] > 0
    assert by_tarfile(ours.getvalue()) == by_tarfile(theirs.getvalue())

    def facts(archive):
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            return [(i.name, i.size, i.mode, i.mtime, i.uname, i.gname) for i in tar]

    assert facts(ours.getvalue()) == facts(theirs.getvalue())


def test_archives_are_ustar_without_extension_headers():
    archive = written()
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        infos = tar.getmembers()
    assert all(archive[info.offset + 257 : info.offset + 265] == b"ustar\x0000" for info in infos)
    assert all(info.offset_data == info.offset + 512 for info in infos)
    assert all(info.mtime == 0 for info in infos)


@pytest.mark.parametrize("compress", [False, True, "gz", "bz2", "xz", "zst"])
def test_the_same_samples_give_the_same_bytes(compress):
    first = written(compress=compress)
    shuffled = [dict(reversed(sample.items())) for sample in SAMPLES]
    assert written(shuffled, compress=compress) == first
    if compress in (True, "gz"):
        assert first[4:8] == bytes(4)  # no time in the header


@pytest.mark.parametrize(("argument", "magic"), [("bz2", b"BZh"), (True, b"\x1f\x8b"), (False, b"000.cls")])
def test_compress_goes_before_the_name(tmp_path, argument, magic):
    assert write(tmp_path / "s.tar.xz", compress=argument).read_bytes().startswith(magic)


def test_an_unknown_compression_is_an_error_and_makes_no_file(tmp_path):
    with pytest.raises(UsageError, match="compress='lz4'"):
        TarWriter(tmp_path / "s.tar", compress="lz4")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wanted", ["USTAR_FORMAT", tarfile.USTAR_FORMAT, "PAX_FORMAT", None])
def test_formats_that_the_archive_has_are_taken(wanted):
    assert written(format=wanted) == written()


@pytest.mark.parametrize("wanted", ["GNU_FORMAT", tarfile.GNU_FORMAT, "zip"])
def test_other_formats_are_refused(wanted):
    with pytest.raises(UsageError, match="format="):
        TarWriter(io.BytesIO(), format=wanted)


# --- whole or not at all -----------------------------------------------------------------------------


def test_nothing_stands_under_the_name_before_the_shard_is_whole(tmp_path):
    path = tmp_path / "s.tar"
    with TarWriter(path) as writer:
        writer.write(SAMPLES[0])
        assert [p.name for p in tmp_path.iterdir()] == [".s.tar.part"]
    assert [p.name for p in tmp_path.iterdir()] == ["s.tar"]


def test_a_shard_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    done = disk_calls(monkeypatch)
    with TarWriter(tmp_path / "s.tar") as writer:
        writer.write(SAMPLES[0])
    assert done == [f"{(tmp_path / 's.tar').stat().st_size} bytes", "replace s.tar", "folder"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_in_the_body_leaves_nothing_and_an_older_file_alone(tmp_path, error):
    (tmp_path / "old.tar").write_bytes(b"old")
    for name in ("new.tar", "old.tar"):
        with pytest.raises(error):
            fail_after_one(tmp_path / name, error)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("old.tar", b"old")]


def test_closing_twice_is_fine_and_writing_afterwards_is_not(tmp_path):
    writer = TarWriter(tmp_path / "s.tar")
    writer.write(SAMPLES[0])
    writer.close()
    content = (tmp_path / "s.tar").read_bytes()
    writer.close()
    writer.discard()
    with pytest.raises(UsageError, match="finished"):
        writer.write(SAMPLES[1])
    assert (tmp_path / "s.tar").read_bytes() == content


def test_a_discarded_shard_does_not_come_back(tmp_path):
    with TarWriter(tmp_path / "s.tar") as writer:
        writer.write(SAMPLES[0])
        writer.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_nobody_closed_is_discarded_and_reported(tmp_path, caplog):
    writer = TarWriter(tmp_path / "s.tar")
    writer.write(SAMPLES[0])
    with caplog.at_level(logging.WARNING, "torchdata_ais"):
        del writer
        gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert "s.tar was never closed, and is discarded" in caplog.text


def test_a_full_disk_fails_the_shard_for_good(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    writer = TarWriter("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        writer.write({"__key__": "0", "bin": bytes(4 << 20)})
    with pytest.raises(UsageError, match="failed"):
        writer.write(SAMPLES[0])
    with pytest.raises(UsageError, match="failed, and is discarded"):
        writer.close()


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "s.tar"
    with TarWriter(path) as writer:
        with pytest.raises(UsageError, match="Another writer"):
            TarWriter(path)
        writer.write(SAMPLES[0])
    assert by_us(path) == MEMBERS[:3]
    assert by_us(write(path)) == MEMBERS


def test_writers_of_one_file_at_the_same_time_never_damage_it(tmp_path):
    path = tmp_path / "s.tar"
    whole = [written([{"__key__": str(index), "bin": bytes(30_000 * index)}]) for index in range(3)]
    published, damaged = [], []

    def write_again_and_again(index):
        while len(published) < 100:
            try:
                write(path, [{"__key__": str(index), "bin": bytes(30_000 * index)}])
            except UsageError:  # another one is at it
                continue
            published.append(index)

    threads = [threading.Thread(target=write_again_and_again, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if path.exists() and path.read_bytes() not in whole:
            damaged.append(path.stat().st_size)
    for thread in threads:
        thread.join(60)
    assert damaged == []
    assert [p.name for p in tmp_path.iterdir()] == ["s.tar"]


def test_what_a_killed_writer_left_is_written_over(tmp_path):
    program = (
        "import os, sys; from torchdata_ais.writing import TarWriter\n"
        "w = TarWriter(sys.argv[1])\n"
        "for i in range(100): w.write({'__key__': str(i), 'bin': bytes(100000)})\n"
        "os.kill(os.getpid(), 9)"
    )
    path = tmp_path / "s.tar"
    assert subprocess.run([sys.executable, "-c", program, path], check=False).returncode == -9
    assert [p.name for p in tmp_path.iterdir()] == [".s.tar.part"]
    assert (tmp_path / ".s.tar.part").stat().st_size > 1_000_000
    assert by_us(write(path)) == MEMBERS
    assert [p.name for p in tmp_path.iterdir()] == ["s.tar"]


def test_a_file_has_the_mode_that_open_would_give_it_and_a_link_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "s.tar").symlink_to(tmp_path / "real" / "t.tar")
    before = os.umask(0o027)
    try:
        write(tmp_path / "s.tar")
    finally:
        os.umask(before)
    assert (tmp_path / "s.tar").is_symlink()
    assert stat.S_IMODE((tmp_path / "real" / "t.tar").stat().st_mode) == 0o640
    assert [p.name for p in (tmp_path / "real").iterdir()] == ["t.tar"]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(NotFoundError, match="There is no folder") as caught:
        TarWriter(tmp_path / "no" / "s.tar")
    assert caught.value.url == str(tmp_path / "no" / "s.tar")


# --- streams -----------------------------------------------------------------------------------------


def test_a_file_object_stays_open_and_is_flushed(tmp_path):
    with (tmp_path / "s.tar").open("wb") as file:
        write(file)
        assert by_us(tmp_path / "s.tar") == MEMBERS
        assert not file.closed


def test_a_stream_is_left_without_an_end_by_an_exception(tmp_path):
    stream = io.BytesIO()
    with pytest.raises(ValueError, match="stop"):
        fail_after_one(stream)
    (tmp_path / "s.tar").write_bytes(stream.getvalue())
    with pytest.raises(TruncatedShardError):
        by_us(tmp_path / "s.tar")


class Sip(io.RawIOBase):
    """Takes at most 100 bytes at a time."""

    def __init__(self):
        self.taken = bytearray()

    def writable(self):
        return True

    def write(self, data):
        self.taken += bytes(data[:100])
        return min(len(data), 100)


def test_a_raw_stream_gets_all_bytes():
    assert bytes(write(Sip()).taken) == written()


@pytest.mark.parametrize("stream", [io.StringIO(), 17])
def test_what_takes_no_bytes_is_refused(stream):
    with pytest.raises(UsageError, match="takes no bytes"):
        TarWriter(stream)


@pytest.mark.ci
def test_a_dash_is_standard_output():
    program = (
        "from torchdata_ais.writing import TarWriter\n"
        "with TarWriter('-') as writer: writer.write({'__key__': '000', 'cls': 3})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert by_tarfile(done.stdout) == [("000.cls", b"3")]


def test_a_named_pipe_is_written_to_as_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    got = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write(tmp_path / "pipe")
    reader.join(60)
    assert by_tarfile(got[0]) == MEMBERS
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_web_servers_are_no_targets():
    with pytest.raises(UsageError, match="A web server takes no shards"):
        TarWriter("http://example.invalid/s.tar")


# --- samples -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sample", "error", "says"),
    [
        ({"txt": "x"}, UsageError, "no __key__"),
        ({"__key__": 7, "txt": "x"}, UsageError, "key of type int"),
        ({"__key__": "", "txt": "x"}, UsageError, "would not find the key ''"),
        ({"__key__": "a.b", "txt": "x"}, UsageError, "a dot in its last part"),
        ({"__key__": "d/.b", "txt": "x"}, UsageError, "a dot in its last part"),
        ({"__key__": "d/", "txt": "x"}, UsageError, "would not find"),
        ({"__key__": "d\n/b", "txt": "x"}, UsageError, "would not find"),
        ({"__key__": "a", "x\n": b""}, UsageError, "cannot be the end of a member's name"),
        ({"__key__": "__meta__/b", "txt": "x"}, UsageError, "would not find"),
        ({"__key__": "__", "0.__": b""}, UsageError, "Field '0.__' of sample '__' cannot be the end"),
        ({"__key__": "a", "x/y": b""}, UsageError, "Field 'x/y'"),
        ({"__key__": "a", "": b""}, UsageError, "Field ''"),
        ({"__key__": "a", 3: b""}, UsageError, "Name fields by str"),
        ({"__key__": "a", "jpg": b"", "JPG": b""}, DuplicateFieldError, "'jpg' twice"),
        ({"__key__": "a"}, MissingFieldError, "no field to write"),
        ({"__key__": "a", "_x": "y"}, MissingFieldError, "keep_meta=True"),
        ({"__key__": "a", "cls": 3.5}, EncodeError, "Field 'cls' of sample 'a'"),
        ({"__key__": "a", "xyz": 3}, EncodeError, "no encoder"),
        ({"__key__": "old", "txt": "x"}, DuplicateFieldError, "key 'old' already"),
        ({"__key__": "a\0b", "txt": "x"}, UsageError, "cannot be the name"),
        ("text", UsageError, "A str is no sample"),
    ],
)
def test_samples_that_would_not_come_back_are_errors_and_leave_no_trace(sample, error, says):
    stream = io.BytesIO()
    with TarWriter(stream) as writer:
        writer.write({"__key__": "old", "txt": "1"})
        with pytest.raises(error, match=says):
            writer.write(sample)
        writer.write({"__key__": "new", "txt": "2"})
    assert by_tarfile(stream.getvalue()) == [("old.txt", b"1"), ("new.txt", b"2")]


def test_meta_fields_are_kept_on_demand_but_never_what_readers_add():
    sample = {
        "__key__": "a",
        "__url__": "u",
        "__local_path__": "p",
        "_note": "n",
        "__seed__": "7",
        "txt": "x",
    }
    assert by_tarfile(written([sample])) == [("a.txt", b"x")]
    kept = by_tarfile(written([sample], keep_meta=True))
    assert kept == [("a.__seed__", b"7"), ("a._note", b"n"), ("a.txt", b"x")]
    with pytest.raises(EncodeError, match="str or bytes"):
        written([{"__key__": "a", "_n": 3, "txt": "x"}], keep_meta=True)
    assert by_tarfile(written([{"__key__": "a", "_n": 3, "txt": "x"}])) == [("a.txt", b"x")]


def test_encoders_are_those_of_webdataset():
    sample = {"__key__": "a", "x.y": 3}
    assert by_tarfile(written([sample], encoder={"y": lambda value: b"%d" % value})) == [("a.x.y", b"3")]
    doubled = written([sample], encoder=lambda sample: {"__key__": sample["__key__"] * 2, "txt": b"z"})
    assert by_tarfile(doubled) == [("aa.txt", b"z")]
    with pytest.raises(EncodeError, match="switched off"):
        written([sample], encoder=False)
    with pytest.raises(EncodeError, match="allow_pickle"):
        written([{"__key__": "a", "pkl": 3}])
    assert len(by_tarfile(written([{"__key__": "a", "pkl": 3}], allow_pickle=True))) == 1


# --- buckets -----------------------------------------------------------------------------------------


def test_a_shard_goes_straight_to_a_bucket(ais_cluster, ais_bucket):
    url = f"ais://{ais_bucket.name}/x/s.tar"
    with TarWriter(url, cluster=ais_cluster.endpoint) as writer:
        writer.write(SAMPLES[0])
        assert not object_exists(url, StoreOptions(endpoint=ais_cluster.endpoint))
        writer.write(SAMPLES[1])
    assert ais_bucket.object("x/s.tar").get_reader().read_all() == written()
    pipe = AISFileLoader([url], cluster=ais_cluster.endpoint)
    assert [(path.member, data) for path, data in pipe] == MEMBERS


def test_an_exception_in_the_body_stores_no_object(ais_cluster, ais_bucket):
    with pytest.raises(ValueError, match="stop"):
        fail_after_one(f"ais://{ais_bucket.name}/s.tar", cluster=ais_bucket.client)
    assert ais_bucket.list_all_objects() == []


def test_a_missing_bucket_is_an_error_and_leaves_no_temporary_file(ais_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(NotFoundError, match="no-such-bucket"):
        write("ais://no-such-bucket/s.tar", cluster=ais_cluster.endpoint)
    assert list(tmp_path.iterdir()) == []


def test_without_a_cluster_it_is_said_before_anything_is_written(monkeypatch):
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    with pytest.raises(UsageError, match="AIS_ENDPOINT"):
        TarWriter("ais://b/s.tar")
    with pytest.raises(UsageError, match="no object"):
        TarWriter("ais://b", cluster="http://127.0.0.1:1")


def test_other_shards_can_be_copied_through(tmp_path):
    old = write_shard(tmp_path / "old.tar", MEMBERS)
    samples = AISFileLoader([old]).group_samples()
    assert by_us(write(tmp_path / "new.tar", samples)) == MEMBERS
