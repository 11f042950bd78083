"""``pipe:`` text in webdataset's names: run without a shell for the program, refused from data."""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
import pickle
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.raw_server import RawServer, whole
from torch.utils.data import DataLoader, IterableDataset

import torchdata_ais.webdataset as wds
from torchdata_ais import AISFileLoader, AISObjectLoader, AISSourceLister
from torchdata_ais.errors import AISError, DuplicateFieldError, ReadError, TruncatedShardError, UsageError
from torchdata_ais.pipes.base.pipe import as_pipe
from torchdata_ais.testing import example_shards, shard_bytes
from torchdata_ais.urls import ObjectURL, parse_url
from torchdata_ais.webdataset.tariterators import tar_file_expander, url_opener

PYTHON = shlex.quote(sys.executable)


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    return example_shards(tmp_path, [2, 2])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the test, in which at the end no command has made a file."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not list(tmp_path.rglob("made*"))


def keys(samples: Any) -> list[str]:
    return [sample["__key__"] for sample in samples]


# What a program passes.

WAYS: dict[str, Callable[[str], Any]] = {
    "string": wds.WebDataset,
    "list": lambda text: wds.WebDataset([text]),
    "tuple": lambda text: wds.WebDataset((text,)),
    "mapping": lambda text: wds.WebDataset([{"url": text}]),
    "resampled": lambda text: wds.WebDataset(text, resampled=True).slice(2),
    "cache_dir": lambda text: wds.WebDataset(text, cache_dir="."),
    "handler": lambda text: wds.WebDataset(text, handler=wds.ignore_and_continue),
    "SimpleShardList": lambda text: wds.DataPipeline(wds.SimpleShardList(text), wds.tarfile_to_samples()),
    "ResampledShards": lambda text: wds.DataPipeline(wds.ResampledShards([text], 1), wds.tarfile_to_samples()),
    "list of a pipeline": lambda text: wds.DataPipeline([text], wds.shuffle(9), wds.tarfile_to_samples()),
    "tarfile_samples": lambda text: wds.tarfile_samples([{"url": text}]),
    "tarfile_samples, tuple": lambda text: wds.tarfile_samples((text,)),
    "single steps": lambda text: wds.tariterators.group_by_keys(tar_file_expander(url_opener([{"url": text}]))),
    "expander": lambda text: wds.tariterators.group_by_keys(tar_file_expander([text])),
    "stages": lambda text: wds.DataPipeline(
        [text], functools.partial(url_opener, bufsize=64), tar_file_expander, wds.tariterators.group_by_keys
    ),
    "StreamingOpen": lambda text: wds.tariterators.group_by_keys(
        tar_file_expander(wds.cache.StreamingOpen()([text]))
    ),
    "FileCache": lambda text: wds.DataPipeline(
        [text], wds.cache.FileCache("."), tar_file_expander, wds.tariterators.group_by_keys
    ),
    "gopen": lambda text: wds.tariterators.group_by_keys(
        tar_file_expander([{"url": "a name | that is not run", "stream": wds.gopen(text)}])
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_the_text_of_a_program_is_run_without_a_shell(way: str, shards: list[str], here: Path) -> None:
    expected = keys(wds.WebDataset(shards[0]))
    assert keys(WAYS[way](f"pipe:cat {shards[0]}")) == expected
    with pytest.raises(UsageError, match=r"needs no shell, got '>' outside of quotes.*Command\(\["):
        list(WAYS[way](f"pipe:cat {shards[0]} > made"))
    with pytest.raises((ReadError, UsageError)):
        list(WAYS[way](f"pipe:cat {shards[0]} '; touch made'"))


@pytest.mark.parametrize("program", ["curl", "python"])
def test_a_url_in_quotes_reaches_the_program(program: str) -> None:
    code = "import sys, urllib.request as r; sys.stdout.buffer.write(r.urlopen(sys.argv[1]).read())"
    start = "curl -s -S -L" if program == "curl" else f"{PYTHON} -c {shlex.quote(code)}"
    if program == "curl":
        pytest.importorskip("shutil").which("curl") or pytest.skip("there is no curl")
    with RawServer(whole(shard_bytes({"a.txt": b"1"}))) as server:
        url = f"{server.endpoint}/s.tar?a=1&b=$x*~;c"
        samples = list(wds.WebDataset(f"pipe:{start} '{url}' || true"))
        # A program of another test may still ask for /health: ports are used again.
        (target,) = [one.target for one in server.requests if one.target != "/health"]
        assert target.endswith("/s.tar?a=1&b=$x*~;c")
    assert keys(samples) == ["a"]
    assert samples[0]["__url__"].endswith("/s.tar?***'")


def test_templates_are_expanded_before_and_lists_have_a_length(tmp_path: Path, shards: list[str]) -> None:
    start = shards[0].removesuffix("0.tar")
    text = f"pipe:cat {start}{{0..1}}.tar::{shards[0]}"
    listed = wds.SimpleShardList(text)
    assert len(listed) == len(wds.SimpleShardList([f"pipe:cat {shard}" for shard in [*shards, "x"]])) == 3
    assert [item["url"] for item in listed] == [f"pipe:cat {shards[0]}", f"pipe:cat {shards[1]}", shards[0]]
    assert len(list(wds.WebDataset(text))) == 6
    assert wds.WebDataset(f"pipe:cat {shards[0]}").with_length(2).__len__() == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("curl -s -L http://h/s.tar", ["curl", "-s", "-L", "http://h/s.tar"]),
        ("aws s3 cp s3://b/k -", ["aws", "s3", "cp", "s3://b/k", "-"]),
        ("cat x.tar || true", ["cat", "x.tar"]),
        ("cat x.tar||true \n", ["cat", "x.tar"]),
        ("cat 'x || true'", ["cat", "x || true"]),
        ("  cat\tx.tar  ", ["cat", "x.tar"]),
        (r"cat /data/a\ b.tar '/c d'.tar", ["cat", "/data/a b.tar", "/c d.tar"]),
        ("get 'a|b;c&d>e<f$g`h`(i)*~#j\n'", ["get", "a|b;c&d>e<f$g`h`(i)*~#j\n"]),
        ('get "a|b;c&d>e<f(i)*~#j" "\\"k\\\\"', ["get", "a|b;c&d>e<f(i)*~#j", '"k\\']),
        (r"get \$HOME \~ \* a\&b", ["get", "$HOME", "~", "*", "a&b"]),
        ("curl http://h/~me/s.tar?x=1#y", ["curl", "http://h/~me/s.tar?x=1#y"]),
        ("sh -c 'cat a | zcat'", ["sh", "-c", "cat a | zcat"]),
        ("get ''", ["get", ""]),
    ],
)
def test_words_are_those_of_a_shell(text: str, words: list[str]) -> None:
    command = wds.Command.from_text(f"pipe:{text}", timeout=3)
    assert command.words == tuple(words)
    assert command == wds.Command(words)
    assert pickle.loads(pickle.dumps(command)).timeout == 3


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("cat a | zcat", r"'\|' outside"),
        ("cat a | zcat || true", r"'\|' outside"),
        ("cat a || cat b", r"'\|\|' outside"),
        ("cat a || true; touch made", r"'\|\|' outside"),
        ("cat a && touch made", "'&&' outside"),
        ("cat a; touch made", "';' outside"),
        ("cat a > made", "'>' outside"),
        ("cat a 2>made", "'>' outside"),
        ("cat < a", "'<' outside"),
        ("touch made &", "'&' outside"),
        ("curl http://h/s.tar?a=1&b=2", "'&' outside.*Put a URL in quotes"),
        ("cat $(touch made)", r"'\$\(' outside"),
        ("cat `touch made`", "'`' outside"),
        ("cat $HOME/a", r"'\$' outside"),
        ('cat "$HOME/a"', r"'\$' or '`' in double quotes"),
        ('cat "`touch made`"', r"'\$' or '`' in double quotes"),
        ("cat ~/a", "'~' outside"),
        ("cat *.tar", r"'\*' outside"),
        ("(cat a)", r"'\(' outside"),
        ("cat a\ntouch made", r"'\\n' outside"),
        ("cat a # b", "'#' outside"),
        ("cat 'a", "an open quote"),
        ('cat "a', "an open quote"),
        ("cat a\\", "an open quote or a backslash"),
        ("A=b cat a", r"a variable.*\[\"env\""),
        ("cd /tmp", "'cd', a word of the shell"),
        ("! cat a", "'!', a word of the shell"),
        ("curl 'http://h/s.tar?***'", r"'\*\*\*', which takes the place of secrets"),
        ("", "no word"),
        (" || true", "no word"),
    ],
)
def test_what_only_a_shell_understands_is_refused(text: str, got: str, here: Path) -> None:
    with pytest.raises(UsageError, match=f"(?s)Expected a command that needs no shell, got {got}"):
        wds.WebDataset([f"pipe:{text}"], handler=wds.ignore_and_continue)
    with pytest.raises(UsageError, match="needs no shell"):
        wds.gopen(f"pipe:{text}")


@pytest.mark.parametrize("word", ["a\0b", "\ud800"])
def test_a_word_that_no_program_can_get_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="list of words"):
        wds.WebDataset(f"pipe:cat {word}")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x" * 300_000, "is not there"),
        pytest.param(
            "cat " + f"{'a' * 100_000} " * 24,
            "cannot be started: Argument list too long",
            marks=pytest.mark.ci,
        ),
    ],
)
def test_a_command_that_is_too_long_is_an_error_of_its_shard(
    text: str, message: str, shards: list[str]
) -> None:
    with pytest.raises(ReadError, match=message):
        list(wds.WebDataset(f"pipe:{text}"))
    assert len(list(wds.WebDataset([f"pipe:{text}", shards[0]], handler=wds.ignore_and_continue))) == 2


def test_a_shard_cannot_set_the_url_of_its_samples(here: Path) -> None:
    (here / "s.tar").write_bytes(shard_bytes({"a.__url__": b"pipe:touch made"}))
    with pytest.raises(DuplicateFieldError):
        list(wds.WebDataset("s.tar"))


@pytest.mark.quick(1)
@pytest.mark.parametrize("unit", ["'a' ", "\\a", '"a"', "a", '"', "'", "~a", "|"])
def test_a_long_text_is_split_in_linear_time(unit: str) -> None:
    begun = time.thread_time()
    with contextlib.suppress(UsageError):
        wds.Command.from_text("pipe:c " + unit * 200_000)
    assert time.thread_time() - begun < 5


# Whole shards only, once in each epoch.


@pytest.mark.parametrize("hidden", ["", " || true"])
def test_a_command_that_fails_gives_no_sample(hidden: str, shards: list[str]) -> None:
    """Even if it printed a whole shard, and its text hides errors."""
    code = shlex.quote("import sys; print(end=open(sys.argv[1]).read()); sys.exit('lost the line')")
    text = f"pipe:{PYTHON} -c {code} {shards[0]}{hidden}"
    with pytest.raises(ReadError, match="ended with status 1: lost the line"):
        next(iter(wds.WebDataset(text)))
    assert len(list(wds.WebDataset([text, shards[1]], handler=wds.ignore_and_continue))) == 2
    with pytest.raises(ReadError, match="'no-such-program' is not there"):
        list(wds.WebDataset("pipe:no-such-program"))
    with pytest.raises(TruncatedShardError):
        list(wds.WebDataset(f"pipe:head -c 1000 {shards[0]}"))


COUNTING = """
import os, sys
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
sys.stdout.buffer.write(open(sys.argv[2], "rb").read())
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_each_epoch_runs_each_command_once(workers: int, tmp_path: Path, shards: list[str]) -> None:
    log = tmp_path / "log"
    texts = [f"pipe:{PYTHON} -c {shlex.quote(COUNTING)} {log} {shard}" for shard in shards]
    expected = sorted(keys(wds.WebDataset(shards)))
    for dataset in (
        wds.WebDataset(texts, shardshuffle=10),
        wds.DataPipeline(texts, wds.split_by_worker, wds.tarfile_to_samples()),
    ):
        log.unlink(missing_ok=True)
        loader = wds.WebLoader(dataset, batch_size=None, num_workers=workers)
        for epoch in (1, 2):
            assert sorted(keys(loader)) == expected
            assert len(log.read_text().split()) == 2 * epoch


@pytest.mark.ci
def test_a_spawned_worker_has_the_words(shards: list[str]) -> None:
    dataset = wds.WebDataset([f"pipe:cat {shard}" for shard in shards]).to_tuple("__key__")
    context = multiprocessing.get_context("spawn")
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=context)
    assert [key for (key,) in loader] == keys(wds.WebDataset(shards))


def test_an_epoch_continues_where_the_last_one_stopped(shards: list[str]) -> None:
    dataset = wds.WebDataset([f"pipe:cat {shard}" for shard in shards]).with_epoch(3)
    found = [*keys(dataset), *keys(dataset)]
    assert found == [*keys(wds.WebDataset(shards)), *keys(wds.WebDataset(shards))][:6]
    dataset.close()


def test_security_refuses_the_text_too(
    shards: list[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wds.utils, "enforce_security", True)
    for way in ("string", "list", "handler", "SimpleShardList", "tarfile_samples", "FileCache", "gopen"):
        with pytest.raises(UsageError, match="Commands are not run while enforce_security is set"):
            list(WAYS[way]("pipe:touch made"))


# What may be data.

TOUCH = "pipe:touch made.tar"


def refused(read: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match=r"got the text of a command, which is not run here.*Command\(\["):
        list(read())


class Listed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield {"url": TOUCH}


def of_a_function() -> Iterator[Any]:
    yield {"url": TOUCH}


SOURCES: dict[str, Callable[[], Any]] = {
    "iterator": lambda: iter([TOUCH]),
    "generator": lambda: (line for line in [TOUCH]),
    "open file": lambda: io.StringIO(TOUCH),
    "pipe": lambda: as_pipe([TOUCH]),
    "pipe of mappings": lambda: as_pipe([{"url": TOUCH}]),
    "lister": lambda: AISSourceLister([TOUCH]),
    "lister, mapped": lambda: AISSourceLister([TOUCH]).map(lambda url: {"url": url}),
    "dataset": Listed,
    "names of a listing": lambda: [ObjectURL(TOUCH)],
    "name of a listing": lambda: ObjectURL(TOUCH),
    "paths": lambda: [Path(TOUCH)],
    "path": lambda: Path(TOUCH),
    "path of a mapping": lambda: [{"url": Path(TOUCH)}],
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("resampled", [False, True])
def test_text_that_may_be_data_is_not_run(source: str, resampled: bool, here: Path) -> None:
    made = SOURCES[source]
    if resampled and source == "dataset":
        pytest.skip("it has no end")
    refused(lambda: wds.WebDataset(made(), resampled=resampled, handler=wds.ignore_and_continue))


@pytest.mark.parametrize("item", [TOUCH, {"url": TOUCH}, ObjectURL(TOUCH), Path(TOUCH), {"url": Path(TOUCH)}])
def test_stages_do_not_run_text_of_other_stages(item: Any, here: Path) -> None:
    streams = wds.map(lambda opened: opened["stream"].read())
    refused(lambda: wds.tarfile_samples(iter([item]), wds.ignore_and_continue))
    refused(lambda: tar_file_expander(iter([item]), wds.ignore_and_continue))
    refused(lambda: streams(url_opener(iter([item]))))
    refused(lambda: streams(wds.cache.StreamingOpen(handler=wds.ignore_and_continue)(iter([item]))))
    refused(lambda: streams(wds.cache.FileCache("kept")(iter([item]))))
    refused(lambda: wds.DataPipeline(as_pipe([item]), wds.tarfile_to_samples()))


@pytest.mark.parametrize("ending", ["yaml", "yml", "json"])
def test_files_that_describe_shards_are_not_read(ending: str, here: Path) -> None:
    (here / f"list.{ending}").write_text(f'["{TOUCH}"]')
    with pytest.raises(UsageError, match="a description of shards, which is not read here"):
        wds.WebDataset(f"list.{ending}")


@pytest.mark.parametrize("listed", ["./", ".", "*.tar"])
def test_names_in_a_folder_are_not_run(listed: str, here: Path) -> None:
    (here / "pipe:touch made.tar").write_bytes(shard_bytes({"a.txt": b"1"}))
    (here / "pipe:touch made.tar").rename(here / "pipe:touch x.tar")
    lister = AISSourceLister(listed)
    assert list(lister) == ["pipe:touch x.tar"]
    refused(lambda: wds.WebDataset(lister))
    refused(lambda: wds.WebDataset(list(lister)))
    refused(lambda: wds.DataPipeline(list(lister), wds.tarfile_to_samples()))
    if listed == "./":
        refused(lambda: wds.WebDataset(listed))
        assert keys(
            wds.DataPipeline(
                wds.shardlists.DirectoryShardList("./", poll=None, mode="keep"), wds.tarfile_to_samples()
            )
        )
    assert not (here / "x.tar").exists()


def test_a_folder_with_a_name_like_a_command_is_not_run(here: Path) -> None:
    (here / "pipe:touch made").mkdir()
    (here / "pipe:touch made" / "s.tar").write_bytes(b"")
    source = wds.shardlists.DirectoryShardList("pipe:touch made/", poll=None, mode="keep")
    refused(lambda: wds.DataPipeline(source, wds.tarfile_to_samples()))
    (here / "pipe:touch made").rename(here / "x")


def test_a_field_of_a_sample_is_not_run(here: Path) -> None:
    """Neither as the name of another shard, nor where a data set passes it on."""
    (here / "s.tar").write_bytes(
        shard_bytes({"a.url": TOUCH.encode(), "a.json": b'{"url": "pipe:touch made"}'})
    )
    found = wds.WebDataset("s.tar").map(lambda sample: {"url": sample["url"].decode()})
    refused(lambda: found.compose(wds.tarfile_to_samples()))
    assert list(wds.DataPipeline([{"url": TOUCH, "x": 1}], wds.map(lambda x: x["url"]))) == [TOUCH]


@pytest.mark.parametrize(
    "use",
    [
        parse_url,
        lambda text: AISFileLoader([text]),
        lambda text: AISFileLoader(wds.SimpleShardList(text)),
        lambda text: AISObjectLoader([text]),
        lambda text: AISSourceLister([text]).load_tar(),
        lambda text: wds.gopen(text, "wb"),
        lambda text: wds.gopen.__globals__["gopen_file"](text),
        lambda text: AISFileLoader([wds.Command.from_text(text)]),
    ],
)
def test_native_classes_refuse_all_commands(use: Callable[[str], Any], here: Path) -> None:
    refused(lambda: use(TOUCH))


def test_a_writer_refuses_a_command(here: Path) -> None:
    for writer in (wds.TarWriter, wds.ShardWriter):
        with pytest.raises(AISError, match="no command is run to write to"):
            writer(TOUCH)
