"""What users do wrong, and what they are told: thing, cause and remedy, in at most 40 lines, within two seconds.

Each case is a small program. Its message is the error's text, or what the log and the warnings say.
"""

# ruff: noqa: E501 - a case a line

from __future__ import annotations

import functools
import io
import logging
import re
import sys
import threading
import time
import traceback
import warnings
import wave
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, random_split

import torchdata_ais
import torchdata_ais.webdataset as wds
from torchdata_ais import (
    AISSampleReader,
    AISSourceLister,
    Mixture,
    Normalize,
    Retry,
    Safety,
    SampleIndex,
    ShardWriter,
    StoreOptions,
    ais_loader,
    as_dataset,
    contact_sheet,
    convert,
    explain,
)
from torchdata_ais.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata_ais.local import LocalCluster
from torchdata_ais.store.transport import attempts
from torchdata_ais.testing import write_shard

LINES = 40
SECONDS = 2.0
LAMBDA = r"<lambda>.*cannot be sent|cannot be sent.*<lambda>"
QUICK = Retry(attempts=2, backoff=0.01)


def picture(number: int, size: tuple[int, int] = (16, 16), form: str = "JPEG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((size[1], size[0], 3), number * 13 % 255, np.uint8)).save(out, form)
    return out.getvalue()


class Ground:
    """Shards in a folder and in a cluster."""

    def __init__(self, folder: Path, cluster: LocalCluster) -> None:
        self.folder, self.cluster = folder, cluster
        self.plain = [self._shard(f"train-{number:06d}.tar") for number in range(6)]
        cluster.put_dir(folder, "ais://imgs")
        self.mixed = self._shard("mixed.tar", form=lambda i: "png" if i == 2 else "jpg")
        self.sizes = self._shard("sizes.tar", size=lambda i: (16 + i, 16))
        self.words = self._shard("words.tar", label=lambda i: b"cat")
        self.corrupt = self._shard("corrupt.tar", cut=2)
        self.cut = str(folder / "cut.tar")
        Path(self.cut).write_bytes(Path(self.plain[0]).read_bytes()[:3000])
        (folder / "empty").mkdir()

    def _shard(
        self,
        name: str,
        form: Callable[[int], str] = lambda i: "jpg",
        size: Callable[[int], tuple[int, int]] = lambda i: (16, 16),
        label: Callable[[int], bytes] = lambda i: b"%d" % (i % 3),
        cut: int | None = None,
    ) -> str:
        members: list[tuple[str, bytes]] = []
        for i in range(8):
            data = picture(i, size(i), {"jpg": "JPEG", "png": "PNG"}[form(i)])
            members += [(f"k{i}.{form(i)}", data[:200] if i == cut else data), (f"k{i}.cls", label(i))]
        return write_shard(self.folder / name, members)

    def lister(self, source: str, **named: Any) -> Any:
        return AISSourceLister(source, cluster=self.cluster, **named)

    @property
    def raw(self) -> Any:
        return AISSourceLister(self.plain).load_tar().group_samples()

    @property
    def decoded(self) -> Any:
        return self.raw.decode("torchrgb8")

    @property
    def index(self) -> SampleIndex:
        return SampleIndex.build(self.plain)

    @property
    def pairs(self) -> Any:
        return self.decoded.to_tuple("jpg", "cls")

    def read(self, shard: str) -> Any:
        return AISSourceLister(shard).load_tar().group_samples().decode("torchrgb8").to_tuple("jpg", "cls")


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with LocalCluster() as cluster:
        yield Ground(tmp_path_factory.mktemp("shards"), cluster)


def first(items: Any) -> Any:
    return next(iter(items))


def load(pipe: Any, workers: int = 0, **named: Any) -> Any:
    with ais_loader(pipe, num_workers=workers, **named) as loader:
        return first(loader)


def through(pipe: Any, workers: int = 0, **named: Any) -> None:
    with ais_loader(pipe, num_workers=workers, **named) as loader:
        for _ in loader:
            pass


def broken(value: Any) -> Any:
    raise RuntimeError("my transform is broken")


def needs_shape(value: Any) -> Any:
    return value.shape


class NoSuchPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: Any) -> None:
        pass


def other_server() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), NoSuchPage) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            first(AISSourceLister("ais://b/", cluster=f"http://127.0.0.1:{server.server_port}").load_tar())
        finally:
            server.shutdown()


def two_chains(pipe: Any) -> None:
    for _ in zip(pipe.to_tuple("jpg"), pipe.to_tuple("cls"), strict=True):
        pass


def nothing(value: Any) -> None:
    return None


def twice(make: Callable[[], Any]) -> None:
    loader = make()
    one = iter(loader)
    next(one)
    next(iter(loader))
    next(one)


def closed(ground: Ground) -> Any:
    loader = ais_loader(ground.pairs.batched(4))
    loader.close()
    return first(loader)


def write(ground: Ground, sample: dict[str, Any]) -> None:
    with ShardWriter(str(ground.folder / "empty" / "w-%d.tar")) as writer:
        writer.write(sample)


class Case(NamedTuple):
    program: Callable[[Ground], Any]
    says: tuple[str, ...]


def case(program: Callable[[Ground], Any], *says: str) -> Case:
    return Case(program, says)


# The fifty that a new user made, in their order; what each message must name, as regular expressions.
FIFTY: dict[str, Case] = {
    "wrong field": case(
        lambda g: load(g.decoded.to_tuple("image", "cls").batched(4), 2),
        "'k0'",
        "no field 'image'",
        "Did you mean jpg",
    ),
    "some samples are png": case(
        lambda g: through(g.read(g.mixed).batched(4)), "'k2'", "no field 'jpg'", '"jpg;png"'
    ),
    "a transform raises in workers": case(
        lambda g: load(g.pairs.map_tuple(broken, None).batched(4), 2),
        "my transform is broken",
        r"in \.map_tuple\(\)",
        "key 'k0'",
        "given .Tensor uint8 3 x 16 x 16",
        "worker process 0",
    ),
    "a transform raises in one process": case(
        lambda g: load(g.decoded.map_sample(broken)),
        "my transform is broken",
        r"\.map_sample\(\)",
        "key 'k0'",
    ),
    "a function of torch's map raises under DataLoader2": case(
        lambda g: first(DataLoader2(g.pairs.map(broken), reading_service=MultiProcessingReadingService(1))),
        "my transform is broken",
        "Mapper",
        "key 'k0'",
    ),
    "wrong bucket": case(
        lambda g: load(g.lister("ais://imgz/train-").load_tar(), 2),
        "ais://imgz/train-",
        "does not exist",
        "Check the spell",
    ),
    "wrong prefix": case(
        lambda g: load(g.lister("ais://imgs/trian-").load_tar()),
        "ais://imgs/trian-",
        "no object",
        "Check bucket and prefix",
    ),
    "a template reaches too far": case(
        lambda g: through(g.lister("ais://imgs/train-{000000..000099}.tar").load_tar().group_samples()),
        "train-000006.tar does not exist",
        "100 objects are named",
        "bucket has 6",
        "train-000000.tar to train-000005.tar",
    ),
    "the cluster is down": case(
        lambda g: load(
            AISSourceLister("ais://imgs", cluster=StoreOptions("http://127.0.0.1:9", retry=QUICK)).load_tar()
        ),
        "no connection to 127.0.0.1:9",
        "refused; trying again",
        r"tried 2 times",
        "Check that the cluster is up",
    ),
    "no endpoint": case(
        lambda g: load(AISSourceLister("ais://imgs/train-").load_tar()),
        "no cluster is named",
        "cluster=, or set AIS_ENDPOINT",
    ),
    "more workers than shards": case(
        lambda g: through(
            AISSourceLister(g.plain[:1]).load_tar().group_samples().to_tuple("cls").batched(4), 2
        ),
        "1 shard for 2 workers",
        "1 get none",
        "Use at most as many workers as shards",
    ),
    "a lambda for ais_loader": case(
        lambda g: load(g.pairs.map_tuple(lambda x: x, None).batched(4), 1, multiprocessing_context="spawn"),
        LAMBDA,
        "top level of a module",
        r"pip install",
    ),
    "a lambda for DataLoader2": case(
        lambda g: DataLoader2(
            g.pairs.map_tuple(lambda x: x), reading_service=MultiProcessingReadingService(1)
        ),
        LAMBDA,
        "top level of a module",
    ),
    "an engine for ais_loader": case(
        lambda g: load(g.pairs.batched(4), 1, engine="dataloader"),
        r"ais_loader\(\) has no option 'engine'",
        r"DataLoader\(as_dataset\(pipe\), batch_size=None\)",
    ),
    "a lambda for DataLoader, spawned": case(
        lambda g: first(
            DataLoader(
                as_dataset(g.pairs.map_tuple(lambda x: x).batched(4)),
                batch_size=None,
                num_workers=1,
                multiprocessing_context="spawn",
            )
        ),
        LAMBDA,
        r"of map_tuple\(",
        "top level of a module",
    ),
    "a lambda for WebLoader, spawned": case(
        lambda g: first(
            wds.WebLoader(
                wds.WebDataset(g.plain, shardshuffle=False).map(lambda x: x),
                batch_size=None,
                num_workers=1,
                multiprocessing_context="spawn",
            )
        ),
        LAMBDA,
        "of map ",
        "top level of a module",
    ),
    "forgot batched": case(lambda g: load(g.pairs), "single samples, not batches", r"\.batched\(32\)"),
    "batched twice": case(
        lambda g: first(DataLoader(g.pairs.batched(8), batch_size=4)),
        "makes batches by itself",
        "batch_size=None",
    ),
    "batched, and DataLoader's default": case(
        lambda g: first(DataLoader(as_dataset(g.pairs.batched(8)), num_workers=1)),
        "makes batches by itself",
        "batch_size=None",
    ),
    "dicts batched, and DataLoader's default": case(
        lambda g: first(DataLoader(g.decoded.batched(8))), "makes batches by itself", "batch_size=None"
    ),
    "no size=": case(
        lambda g: load(g.read(g.sizes).batched(4), 1),
        "different shapes",
        r"\(3, 16, 17\)",
        r"size=224",
        "column '0'",
    ),
    "forgot decode": case(
        lambda g: load(g.raw.to_tuple("jpg", "cls").batched(4)), "columns 0, 1", "bytes", r"\.decode\("
    ),
    "forgot group_samples": case(
        lambda g: load(AISSourceLister(g.plain).load_tar().decode()),
        "Decoding takes samples",
        r"after \.group_samples",
    ),
    "forgot group_samples and decode": case(
        lambda g: load(AISSourceLister(g.plain).load_tar().batched(4)),
        "column 1",
        "bytes",
        r"\.group_samples\(\)\.decode",
    ),
    "forgot load_tar": case(
        lambda g: first(AISSourceLister(g.plain).group_samples()),
        "ObjectURL",
        r"Put \.load_tar\(\) before \.group_samples",
    ),
    "spec torchrgb9": case(
        lambda g: g.raw.decode("torchrgb9"), "no spec 'torchrgb9'", "Did you mean torchrgb"
    ),
    "spec PIL": case(lambda g: g.raw.decode("PIL"), "no spec 'PIL'", r"Did you mean pil\?"),
    "a damaged picture": case(
        lambda g: through(g.read(g.corrupt).batched(4), 1),
        "'jpg' of sample 'k2'",
        "corrupt.tar",
        'on_error="skip"',
    ),
    "a cut shard": case(
        lambda g: through(g.read(g.cut), 1), "ends at byte 3000", "cut.tar", "write it again"
    ),
    ".shuffle(1000) on samples": case(
        lambda g: g.decoded.shuffle(1000),
        r"\.shuffle\(1000\)",
        "takes no number",
        r"\.shuffled\(1000\), behind \.group_samples",
    ),
    ".shuffle(1000) on shards": case(
        lambda g: AISSourceLister(g.plain).shuffle(1000),
        "takes no number",
        r"Write \.shuffle\(\), and mix samples with",
    ),
    ".shuffle() below decode": case(
        lambda g: g.decoded.shuffle(), "10,000 items in memory", "no checkpoint", r"\.shuffled\(1000\)"
    ),
    "map_tuple on dicts": case(
        lambda g: load(g.decoded.map_tuple(broken)),
        "type Sample, not a tuple",
        r"Put \.to_tuple\(\) before it, or use \.map_dict",
    ),
    "a transform gets another kind": case(
        lambda g: load(g.raw.decode("pil").to_tuple("jpg").map_tuple(needs_shape)),
        "no attribute 'shape'",
        r"in \.map_tuple\(\)",
        "given .PIL image RGB 16 x 16",
        "key 'k0'",
    ),
    "PIL pictures batched": case(
        lambda g: load(g.raw.decode("pil").to_tuple("jpg").batched(4)),
        "column 0",
        "PIL images",
        'decode\\("torchrgb8"',
    ),
    "len(loader)": case(
        lambda g: len(ais_loader(g.pairs.batched(4))), "not known before the epoch ends", "epoch_steps=N"
    ),
    "len(pipe)": case(lambda g: len(g.raw), "known when they have come", r"\.with_length\(n\)"),
    "len(as_dataset(pipe))": case(
        lambda g: len(as_dataset(g.raw)), "known when they have come", r"\.with_length\(n\)"
    ),
    "ais_loader(batch_size=)": case(
        lambda g: ais_loader(g.pairs, batch_size=32),
        r"ais_loader\(\) has no option 'batch_size'",
        r"\.batched\(32\)",
    ),
    "a closed loader": case(closed, "was closed", "Make a new one"),
    "regexp=": case(lambda g: g.lister("ais://imgs", regexp="x"), "'regexp'", r"Did you mean regex\?"),
    "no backend": case(
        lambda g: first(g.lister("s3://imgs/train-")), "s3://imgs", "cannot reach that provider", "backend"
    ),
    "dead web URL": case(
        lambda g: first(AISSourceLister("http://127.0.0.1:9/a.tar").load_tar(retry=QUICK)),
        "http://127.0.0.1:9/a.tar",
        "no connection",
        "Check the URL",
    ),
    "three dots": case(
        lambda g: first(g.lister("ais://imgs/train-{000000...000005}.tar")),
        r"\.\.\.000005} in the template",
        r"000000\.\.000005",
    ),
    "a local pattern without a match": case(
        lambda g: first(AISSourceLister(f"{g.folder}/x-*.tar")),
        r"x-\*\.tar: no file matches",
        "Check the path",
    ),
    "sharding_filter twice": case(
        lambda g: AISSourceLister(g.plain).load_tar().sharding_filter().group_samples(),
        "split items over ranks and workers",
        r"Remove the \.sharding_filter",
    ),
    "wds: wrong field": case(
        lambda g: first(
            wds.WebLoader(
                wds.WebDataset(g.plain, shardshuffle=False).to_tuple("image"), num_workers=1, batch_size=None
            )
        ),
        "'k0'",
        "no field 'image'",
        "Did you mean jpg",
    ),
    "wds: a transform raises": case(
        lambda g: first(
            wds.WebLoader(
                wds.WebDataset(g.plain, shardshuffle=False).map(broken), num_workers=1, batch_size=None
            )
        ),
        "my transform is broken",
        r"\.map_sample\(\)|\.map\(\)",
        "key 'k0'",
    ),
    "wds: fewer shards than workers": case(
        lambda g: list(
            wds.WebLoader(wds.WebDataset(g.plain[:1], shardshuffle=False), num_workers=2, batch_size=None)
        ),
        "no sample at all",
        "1 shard, 2 workers",
        "Use no more workers.*empty_check=False",
    ),
    "labels are strings": case(
        lambda g: load(g.read(g.words).batched(4)),
        "'cls' of sample 'k0'",
        "no whole number",
        r"\.txt.*map_dict\(cls=",
    ),
    "two iterators at once": case(
        lambda g: twice(lambda: ais_loader(g.pairs.batched(4))),
        "newer iterator of this loader",
        "second ais_loader",
    ),
    "two iterators at once, workers": case(
        lambda g: twice(lambda: ais_loader(g.pairs.batched(4), num_workers=1)),
        "newer iterator of this loader",
        "second ais_loader",
    ),
    "random_split(pipe)": case(
        lambda g: random_split(g.raw, [0.9, 0.1]),
        "known when they have come",
        'give each part its own shards, "train-',
    ),
}

# Others of their kind.
OTHERS: dict[str, Case] = {
    "another web server as a cluster": case(
        lambda g: other_server(),
        r"what answers at http://127\.0\.0\.1:\d+ is not an AIStore: it answered 404 with a web page",
        "AIS_ENDPOINT",
    ),
    "url= for cluster=": case(
        lambda g: AISSourceLister(g.plain, url="http://x"), "no option 'url'", "called cluster"
    ),
    "two chains of one pipe, zipped": case(
        lambda g: two_chains(g.raw),
        "nother chain has begun to read the pipe",
        "rite a function that returns the chain",
    ),
    "a function without return behind batched": case(
        lambda g: through(g.pairs.batched(4).map(nothing)), "the items are None", "let it return the value"
    ),
    "DataLoader over a SampleDataset without Decoder": case(
        lambda g: first(DataLoader(torchdata_ais.SampleDataset(g.index), batch_size=2)),
        r"hold bytes, as stored \(jpg, cls\)",
        r"Decoder\(\)",
    ),
    "DataLoader over an index": case(
        lambda g: first(DataLoader(g.index, batch_size=2)),  # type: ignore[arg-type]
        "n index has the places of samples",
        r"SampleDataset\(index, Decoder\(\)\)",
    ),
    "keys for select": case(
        lambda g: g.index.select(["k0", "k1"]), "select\\(\\) got values of type", r"pc\.field\('key'\)\.isin\(keys\)"
    ),
    "a pattern of a writer as a source": case(
        lambda g: first(AISSourceLister(f"{g.folder}/train-%06d.tar").load_tar()),
        "'%06d' in it is a placeholder, as of a writer",
        "a template of two numbers",
    ),
    "an f-string without its f": case(
        lambda g: first(AISSourceLister("ais://imgs/train-{i}.tar", cluster=g.cluster).load_tar()),
        r"'{i}' in it is a placeholder, as of an f-string",
        "a template of two numbers",
    ),
    "a key that is not in the index": case(
        lambda g: g.index["cat"], "no sample has the key 'cat'", "up to the first dot, as 'k0'"
    ),
    "decode(sise=)": case(lambda g: g.raw.decode("torchrgb8", sise=224), r"decode\(\) has no option 'sise'", "Did you mean size"),
    "load_tar(open_shard=)": case(lambda g: AISSourceLister(g.plain).load_tar(open_shard=4), "Did you mean open_shards"),
    "lod_tar()": case(lambda g: AISSourceLister(g.plain).lod_tar(), "no attribute or stage 'lod_tar'", "Did you mean load_tar"),
    "map_samples(f)": case(lambda g: g.raw.map_samples(str), "'map_samples'", r"Did you mean map_sample\?"),
    "take(5)": case(lambda g: g.raw.take(5), "'take'", r"Did you mean slice_samples\?"),
    "pipe[0]": case(lambda g: g.raw[0], "no item 0", r"next\(iter\(pipe\)\)"),
    "batched()'s option": case(lambda g: g.pairs.batched(4, drop_last=True), "no option 'drop_last'", "partial=False"),
    "batched('32')": case(lambda g: g.pairs.batched("32"), "batchsize='32' is no whole number"),
    "shuffled('1000')": case(lambda g: g.raw.shuffled("1000"), "bufsize='1000' is no whole number"),
    "num_workers='4'": case(lambda g: ais_loader(g.pairs, num_workers="4"), "num_workers='4' is no whole number"),
    "with_epoch('3')": case(lambda g: g.pairs.with_epoch("3"), "nsamples='3' is no whole number"),
    "ais_loader(shuffle=)": case(lambda g: ais_loader(g.pairs, shuffle=True), "'shuffle'", r"\.shuffle\(\) before \.load_tar"),
    "ais_loader(num_worker=)": case(lambda g: ais_loader(g.pairs, num_worker=2), "Did you mean num_workers"),
    "as_dataset(shuffle=)": case(lambda g: as_dataset(g.pairs, shuffle=True), r"as_dataset\(\) has no option", r"\.shuffle\(\)"),
    "ais_loader of a list": case(lambda g: ais_loader(g.plain), "type list, not a pipe", "AISSourceLister"),
    "start method": case(
        lambda g: load(g.pairs, 1, multiprocessing_context="forkk"), "must be a start method, got 'forkk'", "Use fork"
    ),
    "no source": case(lambda g: AISSourceLister(), "missing a required argument: 'ais_sources'", r"Call list_ais\(ais_sources"),
    "a dash in braces": case(lambda g: first(g.lister("ais://imgs/train-{0-5}.tar")), "no range", r"write \{0\.\.5\}|Write \{0"),
    "dots between commas": case(lambda g: first(g.lister("ais://imgs/train-{0,...,5}.tar")), "no range", r"0\.\.5"),
    "blanks in braces": case(lambda g: first(g.lister("ais://imgs/train-{0 .. 5}.tar")), "no range", r"0\.\.5"),
    "an open brace": case(lambda g: first(g.lister("ais://imgs/train-{0..5.tar")), "braces", "do not match", "Write name-"),
    "a local template reaches too far": case(
        lambda g: list(AISSourceLister(f"{g.folder}/train-{{000000..000099}}.tar").load_tar()),
        "train-000006.tar does not exist", "100 objects are named", "folder has 6",
    ),
    "a template in workers": case(
        lambda g: through(g.lister("ais://imgs/train-{000004..000009}.tar").load_tar().group_samples(), 1), "bucket has 6"
    ),
    "to_tuple('.jpg')": case(lambda g: load(g.decoded.to_tuple(".jpg")), "no field '.jpg'", "Did you mean jpg"),
    "to_tuple('jpg, cls')": case(lambda g: load(g.decoded.to_tuple("jpg, cls")), "no field 'jpg,'", "Did you mean jpg"),
    "to_tuple('label')": case(lambda g: load(g.decoded.to_tuple("label")), "no field 'label'", "Did you mean cls"),
    "decode after to_tuple": case(lambda g: load(g.raw.to_tuple("jpg").decode()), "not tuple", r"before \.to_tuple"),
    "decode twice": case(lambda g: load(g.decoded.decode()), "'jpg' of sample 'k0'", "Decode once"),
    "select('cls')": case(lambda g: g.raw.select("cls"), r"select\(\) was given a str", "Pass a function"),
    "a function returns nothing": case(
        lambda g: load(g.pairs.map_tuple(nothing, None).batched(4)), "column 0", "None", "returned nothing"
    ),
    "torch's batch": case(lambda g: load(g.pairs.batch(4)), "lists of samples", r"\.batched\(n\) makes columns"),
    "a picture for a shard": case(
        lambda g: first(AISSourceLister(str(picture_file(g))).load_tar()), "Not a tar archive: a JPEG picture", "regex="
    ),
    "a folder without shards": case(lambda g: first(AISSourceLister(f"{g.folder}/empty")), "empty: no file matches", "Check"),
    "unknown scheme": case(lambda g: first(g.lister("hdfs://imgs")), "Unknown scheme 'hdfs'", "Use one of ais"),
    "StoreOptions(endpont=)": case(lambda g: StoreOptions(endpont="x"), "Did you mean endpoint"),
    "Retry(attempt=)": case(lambda g: Retry(attempt=1), "Did you mean attempts"),
    "Safety(max_sample_byte=)": case(lambda g: Safety(max_sample_byte=1), "Did you mean max_sample_bytes"),
    "ShardWriter(max_count=)": case(lambda g: ShardWriter("w-%d.tar", max_count=1), "Did you mean maxcount"),
    "a sample without a key": case(lambda g: write(g, {"jpg": b""}), "no __key__", "Give it a str"),
    "convert(shufle=)": case(lambda g: convert("x", "ais://x/a-%d.tar", shufle=True), "Did you mean shuffle"),
    "contact_sheet(labels=)": case(lambda g: contact_sheet([], labels=3), "Did you mean label"),
    "explain(loader)": case(lambda g: explain(ais_loader(g.pairs)), "is no pipe", "not the loader"),
    "explain(worlds=)": case(lambda g: explain(g.pairs, worlds=2), "Did you mean world"),
    "wds.WebDataset(shard_shuffle=)": case(
        lambda g: wds.WebDataset(g.plain, shard_shuffle=10), r"WebDataset\(\) has no option", "Did you mean shardshuffle"
    ),
    "wds.shuffle(bufsz=)": case(lambda g: wds.WebDataset(g.plain).shuffle(100, bufsz=3), "Did you mean bufsize"),
    "wds.shuffle of a text": case(
        lambda g: wds.WebDataset(g.plain).shuffle("1000"), r"shuffle\(size='1000'\): this is a str", "whole number"
    ),
    "wds.repeat of a text": case(
        lambda g: wds.WebDataset(g.plain).repeat("2"), r"repeat\(nepochs='2'\): this is a str", "whole number"
    ),
    "wds.with_epoch of a text": case(
        lambda g: wds.WebDataset(g.plain).with_epoch("10"), r"with_epoch\(nsamples='10'\)", "whole number"
    ),
    "wds, a sample by number": case(
        lambda g: wds.WebDataset(g.plain)[0], "stream", r"next\(iter\(dataset\)\)", "SampleIndex"
    ),
    "wds.WebDatset": case(lambda g: wds.WebDatset, r"Did you mean WebDataset\?"),
    "a name of the package": case(lambda g: torchdata_ais.AISSourceListr, r"Did you mean AISSourceLister\?"),
    "the service's workers=": case(lambda g: MultiProcessingReadingService(workers=2), "Did you mean num_workers"),
    # A second round: wrong folders, slips of templates, wrong kinds, wrong device, wrong columns.
    "batched(size=)": case(lambda g: g.pairs.batched(size=4), "no option 'size'", r"Did you mean batchsize\?"),
    "decode(device=)": case(lambda g: g.raw.decode("torchrgb8", device="cuda"), "'device'", r"ais_loader\(device='cuda'\)"),
    "ais_loader(device=)": case(lambda g: ais_loader(g.pairs, device="gpu"), "device='gpu' is no device", 'Use "cpu", "cuda"'),
    "pin_memory='yes'": case(lambda g: ais_loader(g.pairs, pin_memory="yes"), "pin_memory='yes'", "Pass True or False"),
    "seed='7'": case(lambda g: ais_loader(g.pairs, seed="7"), "seed='7' is no whole number", "Pass one such as"),
    "epoch_steps=2.5": case(lambda g: ais_loader(g.pairs, epoch_steps=2.5), "must be a whole number, got 2.5", "number of batches"),
    "decode(size='224')": case(lambda g: g.raw.decode("torchrgb8", size="224"), "size='224'", r"Write size=224"),
    "rename() the wrong way round": case(
        lambda g: load(g.decoded.rename(jpg="image")), "no field 'image'", r'rename\(image="jpg"\): the new name comes first'
    ),
    "with_length('48')": case(lambda g: g.pairs.with_length("48"), "n='48' is no whole number"),
    "repeated('2')": case(lambda g: g.pairs.repeated("2"), "nepochs='2'", "Use at least 1"),
    "mix_random(weights=)": case(lambda g: g.raw.mix_random(g.raw, weights=[1]), "'weights'", "called probs"),
    "%06d to read": case(
        lambda g: first(g.lister("ais://imgs/train-%06d.tar")), "train-%06d.tar: no object", r"write train-\{000000"
    ),
    "a star in a bucket": case(lambda g: first(g.lister("ais://imgs/train-*.tar")), r"train-\*", r"knows no \* \? \[: write the prefix"),
    "brackets in a bucket": case(lambda g: first(g.lister("ais://imgs/train-[0-5].tar")), "no object", r"write the prefix"),
    "a template of other digits": case(
        lambda g: list(g.lister("ais://imgs/train-{0..5}.tar").load_tar()), "train-0.tar does not exist", "Name only what is there"
    ),
    "require='JPG'": case(
        lambda g: list(AISSourceLister(g.plain).load_tar().group_samples(require="JPG")), "no field 'JPG'", "Fields are lower case: did you mean jpg"
    ),
    "require='JPEG;JPG'": case(
        lambda g: list(AISSourceLister(g.plain).load_tar().group_samples(require="JPEG;JPG")), "no field 'JPEG;JPG'", "did you mean jpeg;jpg"
    ),
    "a folder of pictures to read": case(
        lambda g: first(AISSourceLister(photos(g))), "the folder holds no shard", "torchdata-ais convert"
    ),
    "a Path of a bucket": case(lambda g: first(g.lister(Path("ais://imgs"))), "names no bucket", "Write ais://bucket"),
    "the endpoint is a bucket": case(lambda g: StoreOptions("ais://imgs"), "no address of a cluster", "http://host:51080"),
    "no index was built": case(
        lambda g: SampleIndex.open("ais://imgs/train-", cluster=g.cluster), "no sample index", "torchdata-ais index ais://imgs"
    ),
    "SampleIndex.open of a list": case(lambda g: SampleIndex.open(g.plain), "one place, not a list", r"concat.*build"),  # type: ignore[arg-type]
    "index[b'k0']": case(lambda g: SampleIndex.build(g.plain[0])[b"k0"], "asked for b'k0', of type bytes", "numbers from 0 on, and keys"),
    "index[1.5]": case(lambda g: SampleIndex.build(g.plain[0])[1.5], "asked for 1.5", "numbers from 0 on"),
    "a Mixture of a list": case(lambda g: Mixture([SampleIndex.build(g.plain[0])]), "without weights", r"\{index: weight"),
    "read_samples(shuffle=True)": case(
        lambda g: AISSampleReader(SampleIndex.build(g.plain[0]), shuffle=True), "shuffle=True", 'Use "samples"'
    ),
    "the state of a model": case(lambda g: ais_loader(g.pairs).load_state_dict({"w": 1}), "no state of", "Pass what state_dict"),
    "wds: shardshuffle='yes'": case(lambda g: wds.WebDataset(g.plain, shardshuffle="yes"), "shardshuffle='yes' is no whole number"),
    "wds: batched('4')": case(
        lambda g: first(wds.WebDataset(g.plain, shardshuffle=False).batched("4")), "batchsize='4' is no whole number"
    ),
    "keys with dots": case(
        lambda g: first(
            AISSourceLister(str(write_shard(f"{g.folder}/dots.tar", {"a.00.jpg": b"", "a.01.jpg": b""})))
            .load_tar()
            .group_samples()
            .to_tuple("jpg;png")
        ),
        r"has no field 'jpg;png', only \['00.jpg', '01.jpg'\]", "ame one of them, such as '00.jpg'; if keys have dots"
    ),
    "convert: source and target swapped": case(
        lambda g: convert(f"{g.folder}/n-%d.tar", photos(g)), "is no pattern of shards", "Write out/train-%06d.tar"
    ),
    "convert: braces in the target": case(
        lambda g: convert(photos(g), f"{g.folder}/n-{{000..009}}.tar"), "is no pattern of shards", "%06d"
    ),
    "convert: one picture": case(
        lambda g: convert(f"{photos(g)}/a.jpg", f"{g.folder}/n-%d.tar"), "A .jpg file is no source", "the folder it is in"
    ),
    "convert: a folder that is not there": case(
        lambda g: convert("/none/photos", f"{g.folder}/n-%d.tar"), "no such shard or folder", "Check the path"
    ),
    "convert: maxsize='1GB'": case(
        lambda g: convert(photos(g), f"{g.folder}/n-%d.tar", maxsize="1GB"), "maxsize='1GB' is no number", "1e9 for 1 GB"
    ),
    "convert: columns=[...]": case(
        lambda g: convert("t.csv", f"{g.folder}/n-%d.tar", columns=["label"]), "columns=", "this is a list", "a dict or None"
    ),
    "convert: a wrong column": case(
        lambda g: convert(labels(g), f"{g.folder}/n-%d.tar", columns={"lable": "cls"}), "no row has a column 'lable'", "Did you mean label"
    ),
    "convert: paths in an unknown column": case(
        lambda g: convert(labels(g), f"{g.folder}/n-%d.tar"), "'path' holds pictures", r'"path": "jpg", "label": "cls"'
    ),
    "convert: split without a place": case(
        lambda g: convert(photos(g), f"{g.folder}/n-%d.tar", split="0.9/0.1"), "needs a place in the names", r"\{split\}-%06d"
    ),
    "a sheet of a loader": case(
        lambda g: contact_sheet(ais_loader(g.pairs.batched(4))), "type AISLoader", r"display_loader_images\(loader\)"
    ),
    # A third round: habits from webdataset, torch's loaders and Hugging Face, and values for writers.
    "sample['image'] in a function": case(
        lambda g: through(g.decoded.map_sample(wants_image)), "'k0' has no field 'image', only", "'jpg'", r"in \.map_sample\(\)"
    ),
    "sample.jpg": case(lambda g: first(g.raw).jpg, "no attribute 'jpg'", r'write sample\["jpg"\]'),
    "pipe + pipe": case(lambda g: ais_loader(g.pairs + g.pairs), "type ChainDataset, not a pipe", r"one\.concat\(other\)"),
    "a list of pipes": case(lambda g: ais_loader([g.pairs, g.pairs]), "type list, not a pipe", r"one\.mix_random\(other\)"),
    "as_dataset of a list": case(lambda g: as_dataset([g.pairs]), "this is a list", "Pass an IterDataPipe"),
    "ais_loader(timeout=)": case(lambda g: ais_loader(g.pairs, timeout=5), "no option 'timeout'", "called stall_after"),
    "decode(transform=)": case(lambda g: g.raw.decode("pil", transform=str), "no option 'transform'", r"\.map_dict\(jpg=transform\)"),
    "slice_samples(start=)": case(lambda g: g.raw.slice_samples(start=1), "no option 'start'", r"\.slice_samples\(start, stop\)"),
    "a stage with a wrong option": case(lambda g: g.raw.unlisted(zzz=1), "no option 'zzz'", "values, and no options by name"),
    "rename('jpg', 'image')": case(lambda g: g.raw.rename("jpg", "image"), "too many positional", r"Call rename\(keep, "),
    "pipe.to('cuda')": case(lambda g: g.pairs.to("cuda"), "stage 'to'", r"ais_loader\(pipe, device='cuda'\)"),
    "Normalize of tuples": case(
        lambda g: first(g.pairs.map(Normalize())), r"was given \(Tensor uint8", r"normalize=Normalize\(\)"
    ),
    "DataLoader2(num_workers=)": case(
        lambda g: DataLoader2(g.pairs, num_workers=2), "no option 'num_workers'", r"MultiProcessingReadingService\(4\)"
    ),
    "DataLoader2 with the service in second place": case(
        lambda g: DataLoader2(g.pairs, MultiProcessingReadingService(1)), "in another place", "reading_service=service"
    ),
    "an endpoint with a path of its API": case(
        lambda g: StoreOptions("http://h:51080/v1/objects"), "no address of a cluster", "http://host:51080"
    ),
    "~ in a path": case(
        lambda g: first(AISSourceLister("~/none/train-*.tar")), "no file matches", r"os\.path\.expanduser"
    ),
    "~ in a template": case(
        lambda g: first(AISSourceLister("~/none/train-{0..1}.tar").load_tar()), "no such file", r"os\.path\.expanduser"
    ),
    "a field of a batch": case(
        lambda g: first(g.decoded.batched(40).to_tuple("image")), "no field 'image'", "Did you mean jpg"
    ),
    "a word for a class to write": case(
        lambda g: write(g, {"__key__": "a", "cls": "cat"}), "'cls' of sample 'a'", "'cat' is no whole number", "words go into txt"
    ),
    "five channels to write": case(
        lambda g: write(g, {"__key__": "a", "jpg": torch.zeros(5, 8, 8, dtype=torch.uint8)}), r"\(5, 8, 8\) is no image", "Pass bytes"
    ),
    "convert: a table without names of columns": case(
        lambda g: convert(table(g, "photos/a.jpg,a cat\n"), f"{g.folder}/n-%d.tar"),
        "first line of a table names its columns, and 'photos/a.jpg'", "Put a line above it",
    ),
    "convert: fields with dots": case(
        lambda g: convert(labels(g), f"{g.folder}/n-%d.tar", columns={"path": ".jpg"}), "'.jpg' begins with a dot", r'columns=\{"path": "jpg"'
    ),
    "convert: base64": case(
        lambda g: convert(table(g, f"image\n/9j/{'4AAQ' * 9000}\n"), f"{g.folder}/n-%d.tar", columns={"image": "jpg"}),
        "column 'image': no such file", "data:image/jpeg;base64", r"^(?!.*4{9000}).{0,8000}$",
    ),
    "convert: a .json table": case(
        lambda g: convert(table(g, "[]", "t.json"), f"{g.folder}/n-%d.tar", columns={"a": "jpg"}), "A .json file is no source", ".jsonl"
    ),
    "convert: a function that wants another field": case(
        lambda g: convert(photos(g), f"{g.folder}/n-%d.tar", map=wants_image), "KeyError: 'image'; its fields are", "Mend the function"
    ),
    "convert: a sound that is cut": case(
        lambda g: convert(sounds(g), f"{g.folder}/n-%d.tar", check=True), "'wav' of sample 'b'", "the sound is cut: .* 44 bytes", "Mend or remove it"
    ),
    "zip(loader, loader)": case(
        lambda g: list(zip(*[ais_loader(g.pairs.batched(4))] * 2, strict=False)), "newer iterator"
    ),
}  # fmt: skip


def wants_image(sample: dict[str, Any]) -> Any:
    return {"x": sample["image"]}


def table(ground: Ground, text: str, name: str = "t.csv") -> str:
    path = ground.folder / "empty" / name
    path.write_text(text)
    return str(path)


def sounds(ground: Ground) -> str:
    """A folder with a sound, and one of which the end is missing."""
    folder = ground.folder / "sounds"
    folder.mkdir(exist_ok=True)
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(400))
    (folder / "a.wav").write_bytes(out.getvalue())
    (folder / "b.wav").write_bytes(out.getvalue()[:44])
    return str(folder)


def photos(ground: Ground) -> str:
    folder = ground.folder / "photos"
    folder.mkdir(exist_ok=True)
    (folder / "a.jpg").write_bytes(picture(1))
    return str(folder)


def labels(ground: Ground) -> str:
    path = Path(photos(ground), "t.csv")
    path.write_text("path,label\na.jpg,cat\n")
    return str(path)


def picture_file(ground: Ground) -> Path:
    path = ground.folder / "empty" / "x.jpg"
    path.write_bytes(picture(1))
    return path


@pytest.fixture
def shows(caplog: pytest.LogCaptureFixture) -> Callable[[Callable[[], Any]], tuple[str, int, float]]:
    def run(program: Callable[[], Any]) -> tuple[str, int, float]:
        attempts._said.clear()
        lines: list[str] = []
        begin = time.monotonic()
        with (
            warnings.catch_warnings(record=True) as caught,
            caplog.at_level(logging.WARNING, "torchdata_ais"),
        ):
            warnings.simplefilter("always")
            # Python hides it from users, unless their own program forks with threads.
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            try:
                program()
            except Exception as error:
                lines = "".join(traceback.format_exception(error)).splitlines()
                lines = [line for line in lines if line.strip(" ~^")]  # Python 3.13 marks more of them
                lines += [
                    line for line in getattr(error, "__notes__", ()) if line not in lines
                ]  # Python 3.10
        took_s = time.monotonic() - begin
        told = [*map(str, (warning.message for warning in caught)), *caplog.messages]
        return "\n".join([*lines, *told]), len(lines), took_s

    return run


@pytest.mark.parametrize("name", [*FIFTY, *OTHERS])
def test_a_mistake_is_told_with_thing_cause_and_remedy(
    name: str, ground: Ground, shows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    if name.startswith("a lambda"):
        monkeypatch.setitem(sys.modules, "dill", None)  # with dill, lambdas travel
    program, says = {**FIFTY, **OTHERS}[name]
    text, lines, took_s = shows(functools.partial(program, ground))
    missing = [pattern for pattern in says if not re.search(pattern, text, re.DOTALL)]
    assert not missing, text
    assert lines <= LINES, text
    assert took_s < SECONDS * 15, f"{took_s:.1f} s"  # for a loaded machine


def test_there_are_fifty() -> None:
    assert len(FIFTY) >= 50


def test_what_is_right_stays_without_a_word(ground: Ground, shows: Any) -> None:
    def right() -> None:
        through(ground.pairs.batched(4), 2)
        with ais_loader(ground.decoded.shuffled(10).to_tuple("jpg", "cls").batched(4)) as loader:
            assert [len(list(loader)) for _ in range(2)] == [12, 12]
        images, labels = first(DataLoader(ground.pairs, batch_size=4))
        assert (images.shape, labels.shape) == ((4, 3, 16, 16), (4,))
        images, labels = first(
            DataLoader(as_dataset(ground.pairs.batched(4)), batch_size=None, num_workers=1)
        )
        assert isinstance(images, torch.Tensor)
        assert len(ground.raw.with_length(48)) == len(as_dataset(ground.raw.with_length(48))) == 48
        assert first(ground.raw.to_tuple("{12345678-1234}.x;cls"))  # braces that are no slip

    assert shows(right) == ("", 0, pytest.approx(0, abs=60))
