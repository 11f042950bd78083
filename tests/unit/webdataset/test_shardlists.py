"""What names shards: texts, lists, folders, pipes; and what is done with it."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

import torchdata_ais.webdataset as wds
from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.local import LocalCluster
from torchdata_ais.store import StoreOptions, put_object
from torchdata_ais.testing import example_shards, write_shard


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    return example_shards(tmp_path, [2, 2])


def test_texts_name_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: list[str]) -> None:
    monkeypatch.setenv("WDS_WHERE", str(tmp_path))
    expand = wds.shardlists.expand_urls
    assert expand("${WHERE}/shard-{000..001}.tar") == shards
    assert expand("a.tar::b-{0..1}.tar") == ["a.tar", "b-0.tar", "b-1.tar"]
    assert expand("http://[::1]:8080/a.tar::b.tar") == ["http://[::1]:8080/a.tar", "b.tar"]
    assert expand(f"{tmp_path}/") == shards
    with pytest.raises(UsageError, match="WDS_NOWHERE"):
        expand("${NOWHERE}/a.tar")


@pytest.mark.parametrize("urls", [[], "spec.yaml", "index.json", 7, [3], {"datasets": []}])
def test_what_names_no_shards_is_refused(urls: Any) -> None:
    with pytest.raises(UsageError):
        wds.WebDataset(urls)


def test_a_folder_is_a_list_of_its_shards_and_of_nothing_else(tmp_path: Path, shards: list[str]) -> None:
    """img2dataset leaves tables and statistics beside its shards, macOS and downloads leave others."""
    others = ("00000.parquet", "00000_stats.json", "._shard-000.tar", ".x.tar", "y.tar.part", "README.md")
    for name in others:
        (tmp_path / name).write_bytes(b"x")
    assert wds.shardlists.expand_urls(f"{tmp_path}/") == shards
    (tmp_path / "00001.tar.gz").write_bytes(b"x")
    assert wds.shardlists.expand_urls(f"{tmp_path}/") == [f"{tmp_path}/00001.tar.gz", *shards]


def test_a_prefix_of_a_bucket_is_a_list_of_its_shards(
    ais_cluster: LocalCluster, ais_bucket: Any, shards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIS_ENDPOINT", ais_cluster.endpoint)
    home = f"ais://{ais_bucket.name}"
    for name in (*shards, shards[0] + ".idx"):
        put_object(
            f"{home}/a/{Path(name).name}",
            Path(shards[0]).read_bytes(),
            StoreOptions(ais_cluster.endpoint),
        )
    for prefix in (home, f"{home}/a/", f"{home}/a/shard-", f"{home}/a"):
        names = [url.partition("?")[0][-9:] for url in wds.shardlists.expand_urls(prefix)]
        assert names == ["d-000.tar", "d-001.tar"]
    assert wds.shardlists.expand_urls(f"{home}/a/shard-000.tar") == [f"{home}/a/shard-000.tar"]
    with pytest.raises(NotFoundError, match="A bucket knows no"):
        wds.WebDataset(f"{home}/a/shard-*.tar")


def test_lists_iterables_and_dicts_of_urls(shards: list[str]) -> None:
    for urls in (shards, tuple(shards), iter(shards), [{"url": url} for url in shards]):
        assert len(list(wds.WebDataset(urls))) == 4


@pytest.mark.parametrize("urls", ["s-{0..9}.tar", [f"s-{n}.tar" for n in range(10)]], ids=["text", "list"])
@pytest.mark.parametrize(("most", "used"), [(None, 10), (99, 10), (10, 10), (3, 3), (1, 1)])
def test_max_urls_bounds_the_shards_that_are_drawn(urls: Any, most: int | None, used: int) -> None:
    dataset = wds.ResampledShards(urls, 300, max_urls=most, deterministic=True)
    drawn = {item["url"] for item in dataset}
    assert drawn == {f"s-{n}.tar" for n in range(used)}


def test_max_urls_ends_a_list_that_has_no_end() -> None:
    dataset = wds.ResampledShards((f"s-{n}.tar" for n in itertools.count()), 300, max_urls=4)
    assert {item["url"] for item in dataset} == {f"s-{n}.tar" for n in range(4)}
    for wrong in (0, -1, 1.5):
        with pytest.raises(UsageError, match="max_urls"):
            wds.ResampledShards("s-{0..9}.tar", max_urls=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", ["tarfile_samples", "single steps"])
def test_a_sample_that_is_marked_as_bad_is_left_out(tmp_path: Path, steps: str) -> None:
    members = [("a.cls", b"1"), ("a.__bad__", b"cut"), ("b.cls", b"2"), ("c.__bad__", b""), ("c.cls", b"3")]
    path = write_shard(tmp_path / "s.tar", [*members, ("d.__bad__", b"0")])
    if steps == "tarfile_samples":
        samples: Any = wds.WebDataset(path)
    else:
        opened = wds.tariterators.url_opener([{"url": path}])
        samples = wds.tariterators.group_by_keys(wds.tariterators.tar_file_expander(opened))
    assert [sample["__key__"] for sample in samples] == ["b", "c"]


def test_samples_of_local_files_say_where_they_are(shards: list[str]) -> None:
    sample = next(iter(wds.WebDataset(shards)))
    assert list(sample) == ["__key__", "__url__", "cls", "txt", "__local_path__"]
    assert sample["__local_path__"] == shards[0]


def test_a_missing_file_is_an_ioerror(tmp_path: Path) -> None:
    with pytest.raises(IOError, match="no such file"):
        list(wds.WebDataset(str(tmp_path / "missing.tar")))


def test_a_cache_needs_its_folder(tmp_path: Path, shards: list[str]) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        wds.WebDataset(shards, cache_dir=tmp_path / "none")
    assert len(list(wds.WebDataset(shards, cache_dir=tmp_path, cache_size=1e9))) == 4


def test_single_steps_give_what_the_whole_gives(shards: list[str]) -> None:
    urls = [{"url": url} for url in shards]
    files = list(wds.tariterators.tar_file_expander(wds.tariterators.url_opener(urls)))
    assert files.count({}) == 2
    assert list(wds.tariterators.group_by_keys(files)) == list(wds.tarfile_samples(urls))


def test_a_folder_as_a_queue(tmp_path: Path, shards: list[str]) -> None:
    queue = wds.shardlists.DirectoryShardList(f"{tmp_path}/", poll=None, mode="unlink")
    seen = [len(list(wds.WebDataset(item["url"]))) for item in queue]
    assert seen == [2, 2]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="no folder"):
        wds.shardlists.DirectoryShardList(f"{tmp_path}/none/")


def test_shards_of_a_process_that_is_gone_come_back(tmp_path: Path, shards: list[str]) -> None:
    Path(shards[0]).rename(shards[0] + "._99999999_")
    queue = wds.shardlists.DirectoryShardList(f"{tmp_path}/", poll=None, mode="keep")
    queue.cleanup_files_without_processes()
    assert Path(shards[0] + "._done_").exists()
    assert [item["url"] for item in queue] == [f"{shards[1]}._{os.getpid()}_"]


def test_the_oldest_shard_of_a_folder_is_read_first(tmp_path: Path) -> None:
    for age_s, name in ((10, "b.tar"), (30, "c.tar"), (20, "a.tgz")):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (1e9, 1e9 - age_s))
    shards = wds.shardlists.DirectoryShardList(f"{tmp_path}/", poll=None, mode="keep", select="oldest")
    assert [Path(item["url"]).name.partition("._")[0] for item in shards] == ["c.tar", "a.tgz", "b.tar"]
