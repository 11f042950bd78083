"""The data part of programs in public use, reduced to what broke: as they are written, only the import changed."""

from __future__ import annotations

import importlib
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import webdataset

import torchdata_ais.webdataset as wds
from torchdata_ais import AISSourceLister
from torchdata_ais.errors import UsageError
from torchdata_ais.testing import example_shards
from torchdata_ais.urls import parse_url
from torchdata_ais.webdataset.left_out import REASONS


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    return example_shards(tmp_path, [2, 3])


# Local files, in all the ways they are named.


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "file://localhost{}", "{}"])
def test_local_files_by_url(shards: list[str], form: str) -> None:
    assert len(list(wds.WebDataset([form.format(shard) for shard in shards]))) == 5
    with wds.gopen(form.format(shards[0])) as stream:
        assert stream.read() == Path(shards[0]).read_bytes()


def test_file_urls_may_be_relative_templates_and_folders(
    shards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(Path(shards[0]).parent)
    monkeypatch.chdir(folder)
    for text in ("file:shard-{000..001}.tar", "file:./shard-000.tar::file:shard-001.tar", f"file:{folder}/"):
        assert len(list(wds.WebDataset(text))) == 5
    assert len(list(AISSourceLister("file:shard-*.tar").load_tar().group_samples())) == 5
    Path("a b.tar").write_bytes(Path(shards[0]).read_bytes())
    assert [sample["__local_path__"] for sample in wds.WebDataset("file:a%20b.tar")] == ["a b.tar"] * 2


def test_a_file_of_another_host_and_none_are_refused() -> None:
    with pytest.raises(UsageError, match="names the host 'data', and files are read on this machine"):
        list(wds.WebDataset("file://data/s.tar"))
    for text in ("file:", "file://", "file://localhost"):
        with pytest.raises(UsageError, match="names no file"):
            parse_url(text)


def test_a_program_that_rewrites_shards_by_file_url(shards: list[str], tmp_path: Path) -> None:
    """cc12m: "file:" + path to read, and to write."""
    source = wds.WebDataset("file:" + shards[0]).decode().to_tuple("__key__", "cls", "txt")
    target = f"file:{tmp_path}/new.tar"
    with wds.TarWriter(target, encoder=True) as writer:
        for key, cls, txt in source:
            writer.write({"__key__": key, "cls": cls, "caption.txt": txt.upper()})
    assert list(wds.WebDataset(target).decode().to_tuple("caption.txt")) == [("",), ("X",)]


def test_paths_are_shards(shards: list[str]) -> None:
    paths = [Path(shard) for shard in shards]
    for source in (paths, tuple(paths), iter(paths), [{"url": path} for path in paths]):
        assert len(list(wds.WebDataset(source))) == 5
    assert len(list(wds.WebDataset(paths[0]))) == 2
    assert len(list(wds.ResampledShards(paths, 3))) == 3
    assert len(list(wds.tarfile_samples({"url": path} for path in paths))) == 5
    braces = Path(shards[0]).parent / "{a,b}.tar"
    braces.write_bytes(paths[0].read_bytes())
    assert len(list(wds.WebDataset(braces))) == 2  # a path is letters, a text is a template


# A cache that cannot keep anything.


class _NoVersions(BaseHTTPRequestHandler):
    """A web server that tells neither ETag nor date."""

    body: bytes

    def do_GET(self) -> None:
        self.send_response_only(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *args: Any) -> None:
        del args


@pytest.fixture
def unversioned(shards: list[str]) -> Iterator[str]:
    handler = type("Handler", (_NoVersions,), {"body": Path(shards[0]).read_bytes()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/s.tar"
        server.shutdown()
        thread.join(60)


def test_a_cache_that_keeps_nothing_says_so_once(
    tmp_path: Path, unversioned: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    dataset = wds.WebDataset([unversioned, unversioned], cache_dir=kept)
    for _ in range(2):
        assert len(list(dataset)) == 4
    (said,) = [record.getMessage() for record in caplog.records]
    assert "neither ETag nor Last-Modified" in said
    assert f"not kept in cache_dir={kept}" in said
    assert not any(kept.rglob("*.tar"))
    assert pickle.loads(pickle.dumps(dataset))


def test_a_cache_says_that_it_keeps_no_transformed_objects(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = "http://127.0.0.1:9/v1/objects/b/s.tar?provider=ais&etl_name=crop"
    dataset = wds.WebDataset([url], cache_dir=tmp_path, retry=wds_retry(), empty_check=False)
    with pytest.raises(OSError, match="no connection"):
        list(dataset)
    assert "what a transform makes of an object is not kept" in caplog.text


def wds_retry() -> Any:
    from torchdata_ais import Retry

    return Retry(attempts=1)


# A worker without a shard.


def test_fewer_shards_than_workers_is_an_error_that_names_them(shards: list[str]) -> None:
    dataset = wds.WebDataset(shards[:1]).to_tuple("__key__")
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=2)
    with pytest.raises(UsageError) as caught:
        list(loader)
    assert "Worker 1 of rank 0 has no sample at all: 1 shard, 2 workers" in str(caught.value)
    assert "empty_check=False" in str(caught.value)
    allowed = wds.WebDataset(shards[:1], empty_check=False).to_tuple("__key__")
    assert len(list(wds.WebLoader(allowed, batch_size=None, num_workers=2))) == 2


def test_an_empty_data_set_says_what_may_leave_samples_out(
    shards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="The data set has no sample at all: 2 shards, 1 worker") as caught:
        list(wds.WebDataset(shards, select_files=lambda name: False))
    assert "select_files=" in str(caught.value)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(
        UsageError, match="Worker 0 of rank 3 has no sample at all: 2 shards, 4 ranks, 1 worker"
    ):
        list(wds.WebDataset(shards, nodesplitter=wds.split_by_node))
    with pytest.raises(ValueError, match="has no sample"):
        list(wds.compat.check_empty([]))


# Names of modules.


def test_a_table_of_openers_says_why_it_is_not_there() -> None:
    """A trainer on GCS: gopen_schemes["gs"] = f."""
    module = importlib.import_module("torchdata_ais.webdataset.gopen")
    with pytest.raises(AttributeError, match=r"on purpose: .*decides what a URL runs.*tar_file_expander"):
        module.gopen_schemes["gs"] = open  # type: ignore[index]


def stock_names(name: str) -> set[str]:
    """Return what is defined in a module of webdataset."""
    module = importlib.import_module(f"webdataset.{name}")
    return {
        found
        for found, value in vars(module).items()
        if not found.startswith("_") and getattr(value, "__module__", "") == module.__name__
    }


MODULES = sorted(
    path.stem
    for path in Path(webdataset.__file__).parent.glob("*.py")
    if path.stem not in ("__init__", "multi", "typecheck")  # of programs that are not part of it
)


@pytest.mark.parametrize("name", MODULES)
def test_every_name_of_a_module_is_there_or_says_why_not(name: str) -> None:
    module = importlib.import_module(f"torchdata_ais.webdataset.{name}")
    left_out = REASONS.get(name, {})
    for wanted in stock_names(name) - set(left_out):
        assert hasattr(module, wanted), wanted
    for wanted in left_out:
        with pytest.raises(AttributeError, match="on purpose: "):
            getattr(module, wanted)
    with pytest.raises(AttributeError, match=r"has no (attribute )?'nonsense'$"):
        module.nonsense  # noqa: B018


def test_the_small_helpers_of_modules(shards: list[str]) -> None:
    utils, filters, writer = wds.utils, wds.filters, wds.writer
    assert 0 <= utils.make_seed(1, "a") == utils.make_seed(1, "a") < 1 << 31
    assert utils.make_seed(1, "a") != utils.make_seed("a", 1)
    assert utils.guess_batchsize(([1, 2, 3], [4, 5, 6])) == 3
    assert utils.lookup_sym("shuffle", [".utils", ".filters"]) is wds.shuffle
    assert utils.lookup_sym("nonsense", [".utils"]) is None
    buffer = list(range(5))
    assert sorted([filters.pick(buffer, __import__("random").Random(n)) for n in range(5)]) == list(range(5))
    assert buffer == []
    doubled = pickle.loads(pickle.dumps(filters.FilterFunction(_times, n=2)))
    assert list(wds.DataPipeline([1, 2], doubled)) == [2, 4]
    assert filters.identity(3) == 3
    assert writer.make_encoder(True)({"__key__": "a", "cls": 7}) == {"__key__": "a", "cls": b"7"}
    assert writer.make_encoder({"n": lambda n: b"%d" % n})({"__key__": "a", "n": 7})["n"] == b"7"
    assert wds.shardlists.MSSource(name="a").urls == []
    gopen = importlib.import_module("torchdata_ais.webdataset.gopen")
    with gopen.gopen_file("file:" + shards[0]) as file:
        assert file.read() == Path(shards[0]).read_bytes()
    with pytest.raises(UsageError, match="no local file"):
        gopen.gopen_file("ais://b/o")
    assert wds.extradatasets.MockDataset is wds.MockDataset


def _times(items: Iterator[int], n: int) -> Iterator[int]:
    return (item * n for item in items)


# torchdata's way to name a bucket.


def test_torchdatas_form_of_a_prefix_is_refused_in_words() -> None:
    """``aws:bucket/prefix/`` is a file's name as well, so the sentence says both ways to write it."""
    for source in ("aws:bucket/prefix/", "ais:pets/train-000.tar", "gcp:bucket"):
        with pytest.raises(UsageError, match="as torchdata wrote it") as caught:
            parse_url(source)
        provider, _, name = source.partition(":")
        assert f"Write {provider}://{name}, or ./{source} for a local file" in str(caught.value)
        with pytest.raises(UsageError, match="as torchdata wrote it"):
            list(AISSourceLister([source], cluster="http://127.0.0.1:1").load_tar())
    assert parse_url("aws://bucket/prefix/").uri == "s3://bucket/prefix/"
    assert [parse_url(name).kind for name in ("./aws:x", "C:x", "ais", "file")] == ["file"] * 4
    with pytest.raises(UsageError, match="names no bucket"):
        parse_url("ais://")
