"""Samples by index are the stream's, byte for byte, whatever shape the shard has and however the index was made."""

from __future__ import annotations

import io
import random
import re
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers.examples import examples
from helpers.shards import random_shard
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from torchdata_ais import AISSampleReader, AISSourceLister, ObjectCache, Safety, SampleDataset, SampleIndex
from torchdata_ais.errors import AISError
from torchdata_ais.index import (
    IndexedSamples,
    IndexWriter,
    MemoryFolder,
    ShardEntry,
    ShardSamples,
    StoredIndex,
)
from torchdata_ais.index.build import index_shard
from torchdata_ais.index.build.ais_format import ClusterIndex, samples_in
from torchdata_ais.index.build.by_reading import UnusableError
from torchdata_ais.local import LocalCluster
from torchdata_ais.store import StoreOptions

KEYS = ("", "d/", "d.x/", "caf\u00e9/", "long/" * 40, "x" * 120, "g\udce9")
FIELDS = ("jpg", "JPG", "seg.PNG", "cls", "a.b.c", "y" * 110, "\u00fc.txt", ".jpg", "")
LOOSE = ("README", ".hidden", "__meta__/a.json", "folder/", "d/._a.jpg", "._a.jpg", "n" * 200)
SIZES = st.sampled_from([0, 1, 511, 512, 513, 1500])


class Put(NamedTuple):
    """A member to be written: `target` is that of a link, symbolic after "~"."""

    name: str
    size: int = 0
    target: str = ""


@st.composite
def members(draw: st.DrawFn) -> list[Put]:
    found: list[Put] = []

    def loose() -> None:
        for name in draw(st.lists(st.sampled_from(LOOSE), max_size=1)):
            found.append(Put(name, 0 if name.endswith("/") else draw(SIZES)))

    for number in range(draw(st.integers(0, 4))):
        loose()
        key = f"{draw(st.sampled_from(KEYS))}{number}"
        for _ in range(draw(st.integers(1, 4))):
            name = f"{key}.{draw(st.sampled_from(FIELDS))}"
            how = draw(st.sampled_from(["data"] * 5 + ["hard", "symbolic", "elsewhere"]))
            if how == "data" or not found:
                found.append(Put(name, draw(SIZES)))
            elif how == "elsewhere":
                found.append(Put(name, target=draw(st.sampled_from(["~nowhere", "nowhere", "~../1.jpg"]))))
            else:
                other = draw(st.sampled_from(found)).name
                found.append(Put(name, target=other if how == "hard" else "~" + other.rpartition("/")[2]))
            loose()
    loose()
    return found


def archive(members: list[Put], kind: int, seed: int = 0) -> bytes:
    rng = random.Random(seed)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind, errors="surrogateescape") as tar:
        for name, size, target in members:
            info = tarfile.TarInfo(name)
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            elif target:
                info.type = tarfile.SYMTYPE if target[0] == "~" else tarfile.LNKTYPE
                info.linkname = target.lstrip("~")
            info.size = size
            tar.addfile(info, io.BytesIO(rng.randbytes(size)))
    return out.getvalue()


def as_the_cluster_finds_them(data: bytes, url: str) -> ShardSamples:
    """Return what AIStore's job says: regular members, by their last header; of double names the first."""
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as tar:
        first: dict[str, tuple[int, int, str]] = {}
        for info in tar:
            if info.isreg():
                first.setdefault(info.name, (info.offset_data - 512, info.size, info.name))
    return samples_in(ClusterIndex("", len(data), sorted(first.values())), url)


def stored(entry: ShardEntry, samples: ShardSamples) -> IndexedSamples:
    folder = MemoryFolder()
    writer = IndexWriter(folder)
    writer.add(entry, samples)
    writer.finish()
    return IndexedSamples([StoredIndex(folder)])


Seen = tuple[list[tuple[str, Any]], int]


def seen(pipe: Any) -> list[Seen]:
    """Return fields in their order, and the offset, of each sample."""
    return [(list(sample.items()), sample.offset) for sample in pipe]


def streamed(source: Any, safety: Safety, **options: Any) -> tuple[list[Seen], list[tuple[str, Any]]]:
    """Return the samples of the stream, and the class and key of those that it refuses."""
    errors: list[tuple[str, Any]] = []
    handler = noting(errors)
    lister = AISSourceLister(source, **options).load_tar(safety=safety, on_error=handler)
    return seen(lister.group_samples(on_error=handler)), errors


def noting(errors: list[tuple[str, Any]]) -> Any:
    def handler(error: Exception) -> bool:
        assert isinstance(error, AISError)
        key = error.place.get("key")
        if key is not None:
            errors.append((type(error).__name__, key))
        return True

    return handler


def by_index(index: Any, safety: Safety, **options: Any) -> tuple[list[Seen], list[tuple[str, Any]]]:
    errors: list[tuple[str, Any]] = []
    return seen(AISSampleReader(index, safety=safety, on_error=noting(errors), **options)), errors


@settings(
    max_examples=examples(100),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    members=members(),
    kind=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    most=st.sampled_from([None, None, 1400]),
)
def test_promise_1_and_2_samples_by_index_are_those_of_the_stream(
    tmp_path: Path, members: list[Put], kind: int, most: int | None
) -> None:
    data = archive(members, kind)
    path = tmp_path / "s.tar"
    path.write_bytes(data)
    safety = Safety(max_sample_bytes=most) if most else Safety()
    samples, errors = streamed([str(path)], safety)
    entry, found = index_shard(str(path), StoreOptions())
    assume(found.keys)
    assert by_index(stored(entry, found), safety) == (samples, errors)
    try:
        by_headers = as_the_cluster_finds_them(data, str(path))
    except UnusableError:
        return  # such a shard is read
    if not by_headers.keys:
        return
    got, refused = by_index(stored(entry, by_headers), safety)
    # A sample of links alone, which lead nowhere or to what is no sample, is in no index of the cluster.
    known = set(by_headers.keys)
    assert got == [one for one in samples if dict(one[0])["__key__"] in known]
    assert refused == [one for one in errors if one[1] in known]


LINK_FIRST = Put("0.txt", target="nowhere")


@pytest.mark.parametrize("before", [[], [Put("_.jpg", 3)]])
@pytest.mark.parametrize("loose", ["._a.jpg", "README"])
def test_promise_1_a_link_before_members_without_a_key_belongs_to_the_sample_after_them(
    tmp_path: Path, before: list[Put], loose: str
) -> None:
    path = tmp_path / "s.tar"
    data = archive([*before, LINK_FIRST, Put(loose, 600), Put("0.jpg", 5)], tarfile.GNU_FORMAT)
    path.write_bytes(data)
    samples, errors = streamed([str(path)], Safety())
    assert errors  # the link leads nowhere
    entry, _ = index_shard(str(path), StoreOptions())
    found = stored(entry, as_the_cluster_finds_them(data, str(path)))
    assert by_index(found, Safety()) == (samples, errors)


@pytest.mark.parametrize("before", [[], [Put("_.jpg", 3)]])
@pytest.mark.parametrize("loose", ["._a.jpg", "README"])
def test_promise_1_a_shard_where_such_a_link_may_stand_far_before_its_sample_is_read(
    before: list[Put], loose: str
) -> None:
    data = archive([*before, LINK_FIRST, Put(loose, 65_000), Put("0.jpg", 5)], tarfile.GNU_FORMAT)
    with pytest.raises(UnusableError, match=r"may be a link of the sample '0'"):
        as_the_cluster_finds_them(data, "s.tar")
    data = archive([*before, Put(loose, 65_000), LINK_FIRST, Put("0.jpg", 5)], tarfile.GNU_FORMAT)
    assert "0" in as_the_cluster_finds_them(data, "s.tar").keys


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=2) as made:
        bucket = made.client().bucket("b").create()
        for number in range(30):
            data = random_shard(random.Random(number))
            bucket.object(f"s-{number:03d}.tar").get_writer().put_content(data)
        yield made


@pytest.fixture(scope="module")
def expected(cluster: LocalCluster) -> list[Seen]:
    samples, errors = streamed("ais://b/s-", Safety(), cluster=cluster)
    assert len(samples) > 50
    assert not errors
    return samples


@pytest.mark.quick(3)
@pytest.mark.parametrize("method", ["read", "cluster"])
@pytest.mark.parametrize("by", ["batches", "ranges", "cache"])
def test_promise_1_and_2_the_cluster_gives_by_index_what_it_gives_as_a_stream(
    cluster: LocalCluster, expected: list[Seen], method: Any, by: str, tmp_path: Path
) -> None:
    options = StoreOptions(endpoint=cluster.endpoint)
    index = SampleIndex.build("ais://b/s-", method=method, cluster=options)
    cache = ObjectCache(tmp_path, 1 << 30) if by == "cache" else None
    order = list(range(len(index)))
    random.Random(1).shuffle(order)
    if by == "ranges":
        order = order[:7]
    cluster.reset_stats()
    assert seen(AISSampleReader(index, positions=order, cache=cache)) == [
        expected[number] for number in order
    ]
    asked = [record.url for record in cluster.requests()]
    assert asked
    assert any("/v1/ml/moss/" in url for url in asked) == (by == "batches")
    dataset = SampleDataset(index, cache=cache)
    assert seen(dataset.__getitems__(order)) == [expected[number] for number in order]
    assert seen([dataset[order[0]]]) == [expected[order[0]]]


class Ranges(BaseHTTPRequestHandler):
    """A web server that knows ranges."""

    def do_GET(self) -> None:
        number = int(self.path.strip("/").partition(".")[0])
        data = random_shard(random.Random(number))
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(found[1]) if found else 0
        stop = min(int(found[2]) + 1 if found and found[2] else len(data), len(data))
        self.send_response(206 if found else 200)
        if found:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self.wfile.write(data[start:stop])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def web() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_promise_1_and_2_a_web_server_with_ranges_gives_the_same(web: str) -> None:
    urls = [f"{web}/{number}.tar" for number in range(10)]
    samples, _ = streamed(urls, Safety())
    index = SampleIndex.build(urls)
    order = list(range(len(index)))[::-1]
    assert seen(AISSampleReader(index, positions=order)) == samples[::-1]
    assert seen(SampleDataset(index).__getitems__(order)) == samples[::-1]
