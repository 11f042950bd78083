"""An index being built, stored, found again, resumed and compared with its shards."""

from __future__ import annotations

import functools
import http.server
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pytest

from torchdata_ais import SampleIndex, ShardWriter, convert
from torchdata_ais.cli import app
from torchdata_ais.cli.checks import lint_shards
from torchdata_ais.errors import AuthError, NotFoundError, SampleIndexError, UsageError
from torchdata_ais.index import IndexWriter, LocalFolder, ShardEntry, ShardSamples, index_place
from torchdata_ais.index.build import builder, problems_of
from torchdata_ais.local import Cut, Fault, LocalCluster, Status
from torchdata_ais.store import Retry, StoreOptions, put_object
from torchdata_ais.testing import shard_bytes
from torchdata_ais.urls import ObjectURL

RNG = random.Random(11)
EXTENSIONS = ("cls", "jpg")


def shard(first: int, count: int) -> bytes:
    rng = random.Random(first)
    return shard_bytes(
        [
            (f"{n:04d}.{ext}", rng.randbytes(rng.randrange(900)))
            for n in range(first, first + count)
            for ext in ("cls", "jpg")
        ]
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "shards"
    path.mkdir()
    for number in range(4):
        (path / f"train-{number}.tar").write_bytes(shard(100 * number, 30))
    return path


@pytest.fixture(scope="module")
def made() -> Iterator[LocalCluster]:
    with LocalCluster(targets=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(made: LocalCluster) -> LocalCluster:
    made.reset()
    bucket = made.client().bucket("pets").create()
    for number in range(4):
        bucket.object(f"train-{number}.tar").get_writer().put_content(shard(100 * number, 30))
    return made


# -- places


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("ais://b", "ais://b/.index"),
        ("ais://b/", "ais://b/.index"),
        ("ais://b/train-{000..099}.tar", "ais://b/.index/train-"),
        ("ais://b/train/", "ais://b/.index/train%2F"),
        ("ais://b/train", "ais://b/.index/train"),
        ("ais://b/one.tar", "ais://b/.index/one.tar"),
        ("gs://b/x/s-", "gs://b/.index/x/s-"),
        ("d/s-{0..3}.tar", "d/.index/s-"),
        ("s-*.tar", ".index/s-"),
        ("/s-*.tar", "/.index/s-"),
        (
            "http://h:51080/v1/objects/b/s-{0..1}.tar?provider=ais",
            "http://h:51080/v1/objects/b/.index/s-?provider=ais",
        ),
    ],
)
def test_each_prefix_template_and_bucket_has_its_own_place(source: str, place: str) -> None:
    assert index_place(source) == place


@pytest.mark.parametrize("source", ["http://web/s.tar", "-"])
def test_what_has_no_place_says_so(source: str) -> None:
    with pytest.raises(UsageError, match="no place of their own"):
        index_place(source)


def test_the_index_lies_beside_the_shards_and_is_no_shard(cluster: LocalCluster) -> None:
    built = SampleIndex.build("ais://pets/train-", cluster=cluster.endpoint, method="read")
    stored = built.save()
    names = [entry.name for entry in cluster.client().bucket("pets").list_all_objects(prefix=".index/")]
    assert ".index/train-/shards.arrow" in names
    for where in ("ais://pets/train-", "ais://pets/train-{0..3}.tar", "ais://pets/.index/train-"):
        assert list(SampleIndex.open(where, cluster=cluster.endpoint)) == list(built) == list(stored)
    whole = SampleIndex.build("ais://pets", cluster=cluster.endpoint)
    assert whole.digest == built.digest
    assert "ais://pets/.index\n" in f"{whole.save().stored[0].folder.where}\n"


def test_an_index_of_another_bucket_is_refused(cluster: LocalCluster) -> None:
    SampleIndex.build("ais://pets/train-", cluster=cluster.endpoint).save()
    other = cluster.client().bucket("other").create()
    for entry in cluster.client().bucket("pets").list_all_objects(prefix=".index/"):
        data = cluster.client().bucket("pets").object(entry.name).get_reader().read_all()
        other.object(entry.name).get_writer().put_content(data)
    for where in ("ais://other/train-", "ais://other/train-{0..3}.tar"):
        with pytest.raises(
            SampleIndexError,
            match=r"names 'ais://pets/train-0.tar' as a shard: it is not of ais://other/train-",
        ):
            SampleIndex.open(where, cluster=cluster.endpoint)
    copied = "ais://other/.index/train-"
    with pytest.raises(SampleIndexError, match="it is not of ais://other/"):
        SampleIndex.open(copied, cluster=cluster.endpoint)
    assert len(SampleIndex.open(copied, shards_from="ais://pets/", cluster=cluster.endpoint)) == 120


def test_an_index_that_is_not_there_says_how_to_build_it(cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="Build it: torchdata-ais index ais://pets/train-"):
        SampleIndex.open("ais://pets/train-", cluster=cluster.endpoint)
    with pytest.raises(NotFoundError, match="Build it: torchdata-ais index"):
        SampleIndex.open(tmp_path)
    with pytest.raises(UsageError, match="does not know where to"):
        _of_two(tmp_path).save()


def _of_two(path: Path) -> SampleIndex:
    for name in "ab":
        (path / f"{name}.tar").write_bytes(shard(0, 2))
    return SampleIndex.build([str(path / "a.tar"), str(path / "b.tar")])


def test_a_web_server_serves_an_index(folder: Path, tmp_path: Path) -> None:
    built = SampleIndex.build(str(folder), where=tmp_path / "index")
    handler = functools.partial(_Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}/index"
            for where in (url, f"{url}/", f"{url}/shards.arrow"):
                assert list(SampleIndex.open(where, shards_from=folder)) == list(built)
            with pytest.raises(UsageError, match="A web server takes no index"):
                built.save(url)
        finally:
            server.shutdown()
            thread.join(60)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


# -- transport


def test_a_remote_index_survives_breaks_and_damage_is_an_error(cluster: LocalCluster) -> None:
    options = StoreOptions(endpoint=cluster.endpoint, retry=Retry(attempts=3, backoff=0.01))
    built = SampleIndex.build("ais://pets/train-", method="read", cluster=options).save()
    cluster.faults.add(Fault(Cut(700), bucket="pets", object="*samples*", times=2))
    assert list(SampleIndex.open("ais://pets/train-", cluster=options)) == list(built)
    cluster.faults.add(Fault(Status(403), bucket="pets", object=".index/*"))
    with pytest.raises(AuthError):
        SampleIndex.open("ais://pets/train-", cluster=options)
    cluster.faults.clear()
    bucket = cluster.client().bucket("pets")
    name = next(one.name for one in bucket.list_all_objects(prefix=".index/") if "samples" in one.name)
    data = bucket.object(name).get_reader().read_all()
    bucket.object(name).get_writer().put_content(data[:600] + bytes([data[600] ^ 8]) + data[601:])
    with pytest.raises(SampleIndexError, match=r"ais://pets/.index/train-: the index is damaged"):
        list(SampleIndex.open("ais://pets/train-", cluster=options))
    bucket.object(name).delete()
    with pytest.raises(SampleIndexError, match="is missing"):
        list(SampleIndex.open("ais://pets/train-", cluster=options))


def test_two_jobs_that_write_at_once_do_not_mix(folder: Path, tmp_path: Path) -> None:
    one = SampleIndex.build(str(folder / "train-0.tar"))
    two = SampleIndex.build(str(folder / "train-{1..3}.tar"))
    where = tmp_path / "index"
    threads = [
        threading.Thread(target=lambda index=index: [index.save(where) for _ in range(6)])
        for index in (one, two)
    ]
    for thread in threads:
        thread.start()
    try:
        found = 0
        while any(thread.is_alive() for thread in threads):
            try:
                index = SampleIndex.open(where, shards_from=tmp_path)
                assert list(index) in (list(one), list(two))
                found += 1
            except (SampleIndexError, NotFoundError):  # written anew meanwhile: an error, never a mixture
                continue
    finally:
        for thread in threads:
            thread.join(60)
    assert list(SampleIndex.open(where, shards_from=tmp_path)) in (list(one), list(two))
    SampleIndex.open(where, shards_from=tmp_path).verify()


def test_files_of_the_index_before_the_last_are_removed(folder: Path, tmp_path: Path) -> None:
    where = tmp_path / "index"
    indexes = [SampleIndex.build(str(folder / f"train-{number}.tar")) for number in range(3)]
    old = indexes[0].save(where)
    before = indexes[1].save(where)
    assert len(list(old)) == 30  # who has it open goes on
    last = indexes[2].save(where)
    names = {path.name for path in where.iterdir()}
    wanted = {name for index in (last, before) for name in index.stored[0].head.files}
    assert names == wanted | {"shards.arrow"}
    with pytest.raises(SampleIndexError, match="is missing"):
        list(_fresh(old))


def _fresh(index: SampleIndex) -> SampleIndex:
    index.stored[0]._kept.clear()
    return index


# -- resume


BUILD = """
import sys
from torchdata_ais import SampleIndex
SampleIndex.build(sys.argv[1], where=sys.argv[2], progress=lambda at: print(at.done, flush=True))
"""


@pytest.mark.ci
def test_a_build_that_was_interrupted_goes_on(folder: Path, tmp_path: Path) -> None:
    (folder / "train-3.tar").unlink()
    os.mkfifo(folder / "train-3.tar")  # nobody writes: the build waits there
    where = tmp_path / "index"
    program = subprocess.Popen(
        [sys.executable, "-c", BUILD, f"{folder}/train-{{0..3}}.tar", str(where)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert program.stdout is not None
        for line in program.stdout:
            if line.strip() == "3":
                break
        time.sleep(0.05)
        program.send_signal(signal.SIGINT)
        program.wait(60)
    finally:
        program.kill()
        program.wait(60)
        program.stdout.close()
    assert not (where / "shards.arrow").exists()
    (folder / "train-3.tar").unlink()
    (folder / "train-3.tar").write_bytes(shard(300, 30))
    read: list[str] = []
    index = _counted(str(folder / "train-{0..3}.tar"), where, read)
    assert read == [str(folder / "train-3.tar")]
    assert index.digest == SampleIndex.build(str(folder / "train-{0..3}.tar")).digest
    assert not (where / "unfinished.arrow").exists()
    index.verify()
    read.clear()
    os.utime(folder / "train-1.tar", (1, 1))
    _counted(str(folder / "train-{0..3}.tar"), where, read)
    assert read == [str(folder / "train-1.tar")]


def _counted(source: str, where: Path, read: list[str]) -> SampleIndex:
    """Build, and note which shards are read."""
    from torchdata_ais.index.build import by_reading

    original = by_reading.index_shard

    def noted(url: str, options: StoreOptions) -> object:
        read.append(str(url))
        return original(url, options)

    by_reading.index_shard = noted  # type: ignore[assignment]
    try:
        return SampleIndex.build(source, where=where)
    finally:
        by_reading.index_shard = original


class PressedAt(LocalFolder):
    """A folder in which Ctrl-C is pressed as file number `press` is to be written."""

    press = 0

    def write(self, name: str, data: bytes) -> None:
        self.press -= 1
        if self.press == 0:
            signal.raise_signal(signal.SIGINT)
        super().write(name, data)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("press", [1, 2, 3])
def test_an_index_that_is_broken_off_leaves_no_file_that_nothing_names(
    press: int, checkpoint: bool, tmp_path: Path
) -> None:
    folder = PressedAt(tmp_path / "index")
    writer = IndexWriter(folder)
    samples = ShardSamples(["k"], [0], [1024], [("cls",)], [(1,)], [5])
    writer.add(ShardEntry("a.tar"), samples)
    if checkpoint:
        writer.checkpoint()
        writer.add(ShardEntry("b.tar"), samples)
    before = files_in(tmp_path)
    folder.press = press
    with pytest.raises(KeyboardInterrupt):
        writer.finish()
    assert files_in(tmp_path) == before
    with pytest.raises(UsageError, match="was broken off"):
        writer.finish()


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_several_processes_build_the_same(folder: Path, tmp_path: Path) -> None:
    one = SampleIndex.build(str(folder))
    two = SampleIndex.build(str(folder), processes=3, where=tmp_path / "index")
    assert list(one) == list(two)
    assert one.digest == two.digest


def test_a_damaged_index_is_made_anew(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    where = tmp_path / "index"
    built = SampleIndex.build(str(folder), where=where)
    data = (where / "shards.arrow").read_bytes()
    (where / "shards.arrow").write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
    again = SampleIndex.build(str(folder), where=where)
    assert list(again) == list(built)
    assert "all of it is made anew" in caplog.text


def test_a_selection_is_not_taken_for_the_whole(folder: Path, tmp_path: Path) -> None:
    where = tmp_path / "index"
    whole = SampleIndex.build(str(folder))
    part = whole.select(range(0, 100, 2)).save(where)
    assert part.is_selection
    with pytest.raises(UsageError, match="holds a selection"):
        SampleIndex.build(str(folder), previous=part)
    with pytest.raises(UsageError, match="does not know where to"):
        whole.select([1]).save()
    assert len(SampleIndex.build(str(folder), where=where)) == len(whole)


# -- verify


def problems(index: SampleIndex) -> list[str]:
    return [error.what for error in problems_of(index)]


def test_promise_1_verify_names_shard_and_key(folder: Path, tmp_path: Path) -> None:
    index = SampleIndex.build(str(folder), where=tmp_path / "index")
    index.verify(processes=2)
    whole = (folder / "train-1.tar").read_bytes()
    at = next(iter(index.select([35]))).start + 600
    (folder / "train-1.tar").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    (folder / "train-0.tar").unlink()
    (folder / "train-2.tar").write_bytes(shard(200, 30)[:5000])
    (folder / "train-3.tar").write_bytes(shard(300, 29) + b"")
    found = problems(index)
    assert [name for name in ("train-0", "train-1", "train-2", "train-3") if name not in "".join(found)] == []
    assert "it is not there any more" in found[0]
    assert "the bytes of the sample '0105' are others" in found[1]
    assert "it cannot be indexed any more" in found[2]
    assert "the sample '0329' is not in it any more" in found[3]
    assert all(str(tmp_path / "index") in text for text in found)
    with pytest.raises(SampleIndexError, match="train-0") as caught:
        index.verify()
    assert caught.value.place["url"] == str(folder / "train-0.tar")
    (folder / "train-1.tar").write_bytes(whole)
    index.select(range(30, 60)).verify()


def test_promise_1_verify_finds_a_flip_in_every_byte_of_the_files(folder: Path, tmp_path: Path) -> None:
    where = tmp_path / "index"
    index = SampleIndex.build(str(folder / "train-0.tar"), where=where)
    for path in where.iterdir():
        whole = path.read_bytes()
        for at in range(0, len(whole), 7):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
            assert list(index.stored[0].damages()), (path, at)
        path.write_bytes(whole)
    assert not list(index.stored[0].damages())


# -- choosing


def test_a_key_is_never_on_both_sides_of_a_split(tmp_path: Path) -> None:
    for name in "ab":  # the same keys in two shards
        (tmp_path / f"{name}.tar").write_bytes(shard(0, 50))
    with pytest.raises(UsageError, match="Pass a number"):
        SampleIndex.build(str(tmp_path)).split([0.5, 0.5])  # type: ignore[arg-type]
    first, second = SampleIndex.build(str(tmp_path)).split(fraction=0.5, seed=2)
    assert not set(first.keys) & set(second.keys)
    assert len(first) + len(second) == 100


def test_samples_are_chosen_by_their_columns(folder: Path) -> None:
    index = SampleIndex.build(str(folder))
    some = index.select((pc.field("size") > 2000) & pc.field("shard").isin([str(folder / "train-2.tar")]))
    assert list(some) == [one for one in index if one.size > 2000 and "train-2" in one.shard.name]
    assert 0 < len(some) < 30
    with pytest.raises(UsageError, match="cannot use"):
        index.select(pc.field("nonsense") > 1)
    assert len(index.select(pc.field("size") < 0).select([])) == 0


def test_keys_are_a_lazy_arrow_column(folder: Path) -> None:
    index = SampleIndex.build(str(folder))
    for chosen in (index, index.select([3, 40, 41]), index.select([])):
        keys = chosen.keys
        assert [one.key for one in chosen] == list(keys) == pa.chunked_array(keys).to_pylist()
        assert len(keys) == len(chosen)
    assert (index.keys[-1], index.keys[31], index.keys[:2]) == ("0329", "0101", ["0000", "0001"])
    assert pl.Series("key", pa.chunked_array(index.keys)).to_list() == list(index.keys)


def test_other_programs_open_the_files(folder: Path, tmp_path: Path) -> None:
    index = SampleIndex.build(str(folder), where=tmp_path)
    table = pl.concat([pl.read_ipc(name) for name in index.files])
    assert table["key"].to_list() == list(index.keys)
    assert pyarrow.dataset.dataset(index.files, format="ipc").to_table()["size"].to_pylist() == [
        one.size for one in index
    ]
    assert pl.read_ipc(tmp_path / "shards.arrow")["count"].to_list() == [30] * 4


# -- on the way


@pytest.mark.parametrize("where", [True, "elsewhere"])
def test_a_shard_writer_makes_the_index_that_reading_makes(tmp_path: Path, where: bool | str) -> None:
    place = where if where is True else str(tmp_path / "elsewhere")
    pattern = f"{tmp_path}/s-%02d.tar"
    with ShardWriter(pattern, maxcount=7, index=place) as writer:
        for number in range(40):
            sample = {"jpg": RNG.randbytes(number * 40), "CLS": str(number), "x.json": [number]}
            writer.write({"__key__": "long/" * number + f"{number:03d}"} | sample)
    made = SampleIndex.open(f"{tmp_path}/s-*.tar" if where is True else place, shards_from=tmp_path)
    read = SampleIndex.build(f"{tmp_path}/s-*.tar")
    assert list(made) != []
    assert [one._replace(shard=None) for one in made] == [one._replace(shard=None) for one in read]
    assert (made.digest, made.proof) == (read.digest, "bytes")
    made.verify()


def test_a_shard_writer_indexes_objects_and_resumed_series(cluster: LocalCluster, tmp_path: Path) -> None:
    options = StoreOptions(endpoint=cluster.endpoint)
    samples = [{"__key__": f"{number:03d}", "cls": number} for number in range(10)]
    pattern, manifest = "ais://pets/new-%d.tar", str(tmp_path / "m.json")
    writer = ShardWriter(pattern, maxcount=4, index=True, manifest=manifest, cluster=options)
    for sample in samples[:9]:
        writer.write(sample)
    writer.discard()
    with pytest.raises(NotFoundError):
        SampleIndex.open("ais://pets/new-", cluster=options)
    with ShardWriter(
        pattern, maxcount=4, index=True, manifest=manifest, resume=True, cluster=options
    ) as writer:
        for sample in samples:
            writer.write(sample)
    made = SampleIndex.open("ais://pets/new-", cluster=options)
    assert made.digest == SampleIndex.build("ais://pets/new-", method="cluster", cluster=options).digest
    made.verify()


@pytest.mark.parametrize("how", [{"compress": "gz"}, {"opener": lambda name: Path(name)}])
def test_what_cannot_be_indexed_on_the_way_is_refused(tmp_path: Path, how: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="index= needs plain shards"):
        ShardWriter(f"{tmp_path}/s-%d.tar", index=True, **how)


def test_convert_indexes_what_it_writes(folder: Path, tmp_path: Path) -> None:
    convert(str(folder), f"{tmp_path}/out/n-%d.tar", maxcount=50, index=True)
    made = SampleIndex.open(f"{tmp_path}/out/n-{{0..2}}.tar")
    assert len(made) == 120
    made.verify()


# -- the command


def run(*arguments: str) -> tuple[int, str]:
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


@pytest.mark.ci
def test_the_command_builds_goes_on_and_checks(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIS_ENDPOINT", cluster.endpoint)
    status, shown = run("index", "ais://pets/train-")
    assert (status, shown) == (0, "120 samples in 4 shards, proof bytes: ais://pets/.index/train-\n")
    assert run("index", "--check", "ais://pets/train-") == (
        0,
        "120 samples in 4 shards, proof bytes: sound\n",
    )
    where = ("--where", "ais://pets/by-cluster", "--method", "cluster")
    status, shown = run("index", *where, "--json", "ais://pets/train-")
    assert (status, json.loads(shown)["proof"]) == (0, "headers")
    bucket = cluster.client().bucket("pets")
    bucket.object("train-2.tar").get_writer().put_content(shard(250, 30))
    status, shown = run("index", "--check", "ais://pets/train-")
    assert status == 1
    assert "the shard ais://pets/train-2.tar: it is another one than was indexed: checksum" in shown
    status, shown = run("index", "ais://pets/train-")
    assert (status, shown.split(",")[1]) == (0, " proof bytes: ais://pets/.index/train-\n")
    assert run("index", "--check", "ais://pets/train-")[0] == 0


def test_the_command_says_what_it_cannot_do(folder: Path) -> None:
    assert run("index", "--check", str(folder))[0] == 1
    status, shown = run("index", str(folder), str(folder))
    assert status == 2
    assert "pass --where" in shown.lower()
    assert run("index", "--method", "fast", str(folder))[0] == 2


def test_lint_indexes_sound_shards(folder: Path) -> None:
    status, shown = run("lint", "--no-decode", "--index", str(folder))
    assert status == 0, shown
    assert f"index: {folder}/.index" in shown
    assert len(SampleIndex.open(folder)) == 120
    (folder / "train-1.tar").write_bytes(shard(100, 30)[:3000])
    assert run("lint", "--no-decode", "--index", str(folder))[0] == 1


@pytest.mark.parametrize("where", ["files", "objects"])
def test_lint_reads_each_shard_once_and_finds_what_build_finds(
    folder: Path, cluster: LocalCluster, where: str
) -> None:
    source = str(folder) if where == "files" else "ais://lint"
    if where == "objects":
        cluster.client().bucket("lint").create()
        for path in folder.glob("*.tar"):
            put_object(f"ais://lint/{path.name}", path.read_bytes(), StoreOptions(endpoint=cluster.endpoint))
    cluster.reset_stats()
    report = lint_shards(source, decode=False, index=True, cluster=cluster)
    assert report.ok
    assert report.index is not None
    read = sum(shard.size or 0 for shard in report.index.shards)
    if where == "objects":
        assert read <= cluster.stats().bytes_sent < 1.05 * read + 20_000
    built = SampleIndex.build(source, method="read", cluster=cluster)
    assert report.index.digest == built.digest
    assert report.index.proof == "bytes"
    assert list(report.index) == list(built)
    assert list(report.index.save()) == list(built)
    assert lint_shards(source, decode=False, cluster=cluster).index is None


def test_a_shard_is_the_same_if_size_and_checksum_or_version_are() -> None:
    def row(size: int, checksum: str | None = None, version: str | None = None) -> Any:
        return SimpleNamespace(size=size, checksum=checksum, version=version)

    def url(size: int | None, checksum: str | None = None, version: str | None = None) -> ObjectURL:
        return ObjectURL("ais://b/s.tar", size, checksum, version)

    assert builder._is_same(url(5, "aa", "2"), row(5, "aa", "1"))
    assert builder._is_same(url(5, None, "1"), row(5, "aa", "1"))
    for other in (
        url(6, "aa", "1"),
        url(None, "aa", "1"),
        url(5, "ab", "1"),
        url(5),
        url(5, None, "2"),
        url(6, None, "1"),
    ):
        assert not builder._is_same(other, row(5, "aa", "1")), other


def test_entries_without_a_hash_are_not_taken_where_reading_is_asked_for() -> None:
    row = SimpleNamespace(name="ais://b/s.tar", size=5, checksum="aa", version=None, proven=False)
    index: Any = SimpleNamespace(shards=[row])
    url = ObjectURL("ais://b/s.tar", 5, "aa", None)
    assert builder._known([url], [index], proven=False) == {url: (index, 0)}
    assert builder._known([url], [index], proven=True) == {}
    row.proven = True
    assert builder._known([url], [index], proven=True) == {url: (index, 0)}
