"""The facade's steps that open and keep files, and its secure mode."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import torchdata_ais.webdataset as wds
from torchdata_ais.codecs import table
from torchdata_ais.errors import DecodeError, UsageError
from torchdata_ais.store import StoreOptions
from torchdata_ais.testing import example_shards
from torchdata_ais.webdataset.cache import FileKeeper, url_to_cache_name


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        del args


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    return example_shards(tmp_path, [2, 2])


@pytest.fixture
def web(tmp_path: Path, shards: list[str]) -> Iterator[str]:
    """A web server for the shards."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/{Path(shards[0]).name}"
        server.shutdown()
        thread.join(60)


def contents(opened: dict[str, Any]) -> bytes:
    with opened["stream"] as stream:
        return bytes(stream.read())


def test_shards_are_opened_where_they_are(shards: list[str], web: str) -> None:
    data = Path(shards[0]).read_bytes()
    local, remote = wds.cache.StreamingOpen()([shards[0], {"url": web}])
    assert (local["local_path"], contents(local)) == (shards[0], data)
    assert "local_path" not in remote
    assert contents(remote) == data


def test_what_cannot_be_opened_goes_to_the_handler(shards: list[str]) -> None:
    urls = ["/none.tar", shards[0]]
    (opened,) = wds.cache.StreamingOpen(handler=wds.ignore_and_continue)(urls)
    opened["stream"].close()
    assert list(wds.cache.StreamingOpen(handler=wds.ignore_and_stop)(urls)) == []
    with pytest.raises(FileNotFoundError):
        list(wds.cache.StreamingOpen()(urls))


def test_files_are_kept_and_local_ones_opened(
    tmp_path: Path,
    shards: list[str],
    web: str,
    ais_bucket: Any,
    ais_cluster: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIS_ENDPOINT", ais_cluster.endpoint)
    ais_bucket.object("a/s.tar").get_writer().put_content(b"one")
    ais_bucket.object("b/s.tar").get_writer().put_content(b"other")
    cache = wds.cache.FileCache(tmp_path / "kept")
    one, other, local, page = cache(
        [f"ais://{ais_bucket.name}/{name}/s.tar" for name in "ab"] + [shards[0], web]
    )
    assert [contents(one), contents(other)] == [b"one", b"other"]
    assert one["local_path"] != other["local_path"]
    assert one["local_path"].startswith(str(tmp_path / "kept"))
    assert contents(local) == contents(page)
    assert local["local_path"] == shards[0]
    seen = []
    refusing = wds.cache.FileCache(tmp_path / "kept", validator=lambda path: bool(seen.append(path)))
    with pytest.raises(UsageError, match="validator refused"):
        next(refusing([one["url"]]))
    assert seen == [one["local_path"]]
    assert not Path(seen[0]).exists()


def test_web_files_are_kept_until_they_change(tmp_path: Path, web: str, shards: list[str]) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    dataset = wds.WebDataset([web, web], cache_dir=kept)
    samples = [dict(sample) for sample in dataset]
    (file,) = {sample["__local_path__"] for sample in samples}
    assert {sample["__url__"] for sample in samples} == {web}
    assert len(samples) == 4
    assert Path(file).read_bytes() == Path(shards[0]).read_bytes()
    before = Path(file).stat()
    assert [dict(sample) for sample in dataset] == samples
    after = Path(file).stat()
    assert (after.st_ino, after.st_mtime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
    )  # others may be reading it
    Path(shards[1]).replace(shards[0])
    os.utime(shards[0], (2e9, 2e9))
    assert [sample["__key__"] for sample in dataset] == ["00002", "00003"] * 2


@pytest.mark.parametrize(
    ("size", "kept"), [(None, 2), (-1, 2), (0, 0), (1 << 30, 2), (20480, 2), (20479, 1), (1, 1)]
)
def test_cache_size_is_the_most_that_is_kept(
    tmp_path: Path, web: str, shards: list[str], size: int | None, kept: int
) -> None:
    """0 is no cache; the shard that is being read is kept in any case."""
    assert [Path(shard).stat().st_size for shard in shards] == [10240, 10240]
    folder = tmp_path / "kept"
    folder.mkdir()
    given = {} if size is None else {"cache_size": size}
    dataset = wds.WebDataset([web, web.replace("shard-000", "shard-001")], cache_dir=folder, **given)
    for _ in range(2):
        samples = list(dataset)
        assert len(samples) == 4
        assert all(("__local_path__" in sample) == bool(kept) for sample in samples)
        assert sum(path.stat().st_size == 10240 for path in folder.rglob("*")) == kept


def test_a_web_file_that_is_not_there_goes_to_the_handler(tmp_path: Path, web: str) -> None:
    urls = [web + "x", web]
    assert len(list(wds.WebDataset(urls, cache_dir=tmp_path, handler=wds.ignore_and_continue))) == 2
    assert (
        list(wds.WebDataset(urls, cache_dir=tmp_path, handler=wds.ignore_and_stop, empty_check=False)) == []
    )
    with pytest.raises(FileNotFoundError):
        list(wds.WebDataset(urls, cache_dir=tmp_path))


def test_what_was_used_longest_ago_is_deleted(tmp_path: Path) -> None:
    for number in range(6):
        path = tmp_path / f"folder{number % 2}" / str(number)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (1000 + number, 1000 + number))
    os.utime(tmp_path / "folder0" / "0", (2000, 1000))  # read since
    cleanup = wds.LRUCleanup(cache_size=350, interval=None)
    cleanup.cleanup()
    cleanup.set_cache_dir(tmp_path)
    cleanup.cleanup()
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["0", "4", "5"]
    seldom = wds.LRUCleanup(tmp_path, cache_size=1e9, interval=1000)
    seldom.cleanup()
    seldom.cache_size = 0
    seldom.cleanup()
    assert (tmp_path / "folder0" / "0").exists()


def test_secure_mode_refuses_local_files_and_commands(
    shards: list[str], web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = wds.DataPipeline(wds.SimpleShardList(shards), wds.tarfile_to_samples())
    assert len(list(pipeline)) == 4
    monkeypatch.setattr(wds.utils, "enforce_security", True)
    for run in (
        lambda: wds.gopen(shards[0]),
        lambda: wds.gopen("file://" + shards[0]),
        lambda: list(pipeline),
        lambda: list(wds.tariterators.tar_file_expander(shards)),
    ):
        with pytest.raises(ValueError, match="Local files are not read"):
            run()
    with wds.gopen(web) as stream:
        assert stream.read(5)
    with pytest.raises(ValueError, match="Commands are not run"):
        list(wds.WebDataset(wds.Command(["cat", shards[0]]), handler=wds.ignore_and_continue))
    assert len(list(wds.WebDataset(shards))) == 4  # as in webdataset, which reads them, too


def test_the_functions_of_the_field_table() -> None:
    decoders = wds.autodecode.decoders
    assert (decoders["cls"](b"7"), decoders["json"](b"[1]"), decoders["txt"](b"a")) == (7, [1], "a")
    with pytest.raises(DecodeError, match="not allowed"):
        decoders["pkl"](pickle.dumps(1))
    with pytest.raises(DecodeError, match="not allowed"):
        wds.autodecode.unpickle_loads(pickle.dumps(1))
    assert wds.autodecode.unpickle_loads(pickle.dumps(1), allow_pickle=True) == 1
    assert set(decoders) == set(table._LOADERS)


@pytest.mark.parametrize("folders", [0, 1, 2, 9])
@pytest.mark.parametrize("url", ["http://h/a/b/c/s.tar?x=1", "/a/b/c/s.tar", "s.tar", "pipe:cat a/b/s.tar"])
def test_names_for_a_cache_are_those_of_webdataset(url: str, folders: int) -> None:
    theirs = pytest.importorskip("webdataset.cache")
    assert url_to_cache_name(url, folders) == theirs.url_to_cache_name(url, folders)


def test_a_wrong_call_is_raised_whatever_the_handler_says(tmp_path: Path) -> None:
    class Keeper(FileKeeper):
        def open(self, url: Any, options: StoreOptions) -> Any:
            raise UsageError.at("The call is wrong", url=url.shown)

    keeper = Keeper(str(tmp_path), 1)
    samples = wds.tarfile_samples(["http://h/s.tar"], wds.ignore_and_continue, cache=keeper)
    with pytest.raises(UsageError, match="The call is wrong") as caught:
        list(samples)
    assert caught.value.url == "http://h/s.tar"
