"""One argument names a cluster in every call: ``cluster=``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import torchdata_ais.webdataset as wds
from torchdata_ais import (
    AISFileLoader,
    AISObjectLoader,
    AISSourceLister,
    ShardWriter,
    StoreOptions,
    TarWriter,
    display_shard_images,
    object_url,
)
from torchdata_ais.cli.checks.doctor import diagnose
from torchdata_ais.cli.checks.lint import lint_shards
from torchdata_ais.cli.checks.resharding import reshard
from torchdata_ais.cli.checks.speed import measure
from torchdata_ais.errors import UsageError
from torchdata_ais.examples.pets import make_shards
from torchdata_ais.index.build import build_index
from torchdata_ais.jobs.dsort import run_dsort
from torchdata_ais.jobs.etl import list_etls
from torchdata_ais.store import Retry, cluster_options, given_options
from torchdata_ais.webdataset.cache import FileCache
from torchdata_ais.webdataset.gopen import gopen
from torchdata_ais.writing import convert

NO_CLUSTER = "No cluster is named. Pass cluster=, or set AIS_ENDPOINT"


@pytest.fixture(autouse=True)
def no_cluster_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AIS_"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def bucket(ais_local_cluster: Any) -> Iterator[Any]:
    made = ais_local_cluster.client().bucket("cluster-argument").create()
    made.object("s.tar").get_writer().put_content(next(make_shards([3])))
    yield made
    made.delete(missing_ok=True)


# Every way to name the same cluster.
WAYS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "address": lambda ais: {"cluster": ais.endpoint},
    "StoreOptions": lambda ais: {"cluster": StoreOptions(ais.endpoint, ais.token)},
    "SDK client": lambda ais: {"cluster": ais.client()},
    "LocalCluster": lambda ais: {"cluster": ais},
}

URL = "ais://cluster-argument/s.tar"


def _written(writer: Any) -> int:
    with writer:
        writer.write({"__key__": "a", "txt": "b"})
    return 3


# Every call that takes it, asked for the three samples of the shard.
CALLS: dict[str, Callable[..., int]] = {
    "list_ais": lambda tmp, **how: len(list(AISSourceLister(URL, **how).load_tar().group_samples())),
    "load_tar": lambda tmp, **how: len(list(AISFileLoader([URL], **how).group_samples())),
    "load_objects": lambda tmp, **how: 3 * len(list(AISObjectLoader([URL], **how))),
    "TarWriter": lambda tmp, **how: _written(TarWriter("ais://cluster-argument/w.tar", **how)),
    "ShardWriter": lambda tmp, **how: _written(
        ShardWriter("ais://cluster-argument/w-%d.tar", overwrite=True, **how)
    ),
    "convert": lambda tmp, **how: convert(URL, f"{tmp}/c-%d.tar", **how).samples,
    "lint_shards": lambda tmp, **how: sum(
        shard.samples for shard in lint_shards(URL, decode=False, **how).shards
    ),
    "reshard": lambda tmp, **how: (
        reshard(lint_shards(URL, decode=False, **how), f"{tmp}/r-%d.tar", decode=False, **how).samples
    ),
    "measure": lambda tmp, **how: 3 * (len(measure(URL, seconds=0.0, workers=(), **how).rates) > 3),
    "diagnose": lambda tmp, **how: 3 * any(check.name == "clock" for check in diagnose(**how)),
    "build_index": lambda tmp, **how: len(build_index(URL, **how)),
    "WebDataset": lambda tmp, **how: len(list(wds.WebDataset([URL], shardshuffle=False, **how))),
    "WebDataset, kept": lambda tmp, **how: len(
        list(wds.WebDataset([URL], shardshuffle=False, cache_dir=str(tmp), **how))
    ),
    "gopen": lambda tmp, **how: 3 * bool(gopen(URL, **how).read()),
    "FileCache": lambda tmp, **how: 3 * (FileCache(str(tmp), **how).get_file(object_at(how)) is not None),
}


def object_at(how: dict[str, Any]) -> str:
    return object_url(cluster_options(**how), "cluster-argument", "s.tar")


@pytest.mark.parametrize(
    ("call", "way"),
    [("list_ais", way) for way in WAYS]
    + [(call, way) for call in CALLS for way in ("SDK client", "StoreOptions")],
)
def test_every_call_takes_every_way(
    ais_local_cluster: Any, bucket: Any, tmp_path: Any, call: str, way: str
) -> None:
    assert CALLS[call](tmp_path, **WAYS[way](ais_local_cluster)) == 3


@pytest.mark.parametrize("way", ["address", "StoreOptions", "SDK client", "LocalCluster"])
def test_the_calls_that_take_it_first_take_every_form(ais_local_cluster: Any, bucket: Any, way: str) -> None:
    cluster = WAYS[way](ais_local_cluster)["cluster"]
    assert display_shard_images(cluster, "cluster-argument", "s.tar", objects=2).size[0] > 0
    assert object_url(cluster, "b", "o").startswith(ais_local_cluster.endpoint)


@pytest.mark.parametrize(
    "call", [call for call in CALLS if call not in ("diagnose", "FileCache", "WebDataset, kept")]
)
def test_without_any_cluster_one_sentence_says_so(tmp_path: Any, call: str) -> None:
    with pytest.raises(UsageError, match=r"o cluster is named\. Pass cluster=, or set AIS_ENDPOINT"):
        CALLS[call](tmp_path)


def test_jobs_without_any_cluster_say_the_same() -> None:
    for call in (lambda: list_etls(None), lambda: run_dsort(None, {}), lambda: object_url(None, "b", "o")):
        with pytest.raises(UsageError) as caught:
            call()
        assert str(caught.value).startswith(NO_CLUSTER)


@pytest.mark.parametrize("call", [call for call in CALLS if call != "convert"])
def test_an_unknown_name_is_refused_by_its_name(tmp_path: Any, call: str) -> None:
    with pytest.raises((TypeError, UsageError), match="endpiont"):
        CALLS[call](tmp_path, endpiont="http://h:1")


def test_a_thing_that_is_no_cluster_is_named_with_what_is_one() -> None:
    for wrong in (3, {"endpoint": "h"}, object()):
        with pytest.raises(UsageError, match=rf"A {type(wrong).__name__} names no cluster. Pass http://host"):
            given_options(wrong)


def test_settings_without_an_address_take_that_of_the_sources(ais_local_cluster: Any, bucket: Any) -> None:
    options = StoreOptions(retry=Retry(attempts=7))
    lister = AISSourceLister(bucket, "s.", cluster=options)
    assert lister.endpoint() == ais_local_cluster.endpoint
    assert len(list(lister.load_tar().group_samples())) == 3


def test_settings_without_an_address_take_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIS_ENDPOINT", "http://env:1")
    found = cluster_options(StoreOptions(retry=Retry(attempts=7)))
    assert (found.endpoint, found.retry.attempts) == ("http://env:1", 7)


def test_signatures_name_it_once() -> None:
    for function in (AISSourceLister, AISFileLoader, AISObjectLoader, TarWriter, ShardWriter, convert):
        parameters = inspect.signature(function).parameters
        assert "cluster" in parameters
        assert not {"endpoint", "client", "token", "options"} & parameters.keys()
