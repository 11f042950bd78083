"""Lists of shards."""

from __future__ import annotations

import glob
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from torch.utils.data import IterableDataset

from torchdata_ais import pipes
from torchdata_ais._util.arguments import check_number
from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.base.seed import mix_seed
from torchdata_ais.urls import PROVIDERS, expand_template, parse_url
from torchdata_ais.urls.parsing import VISIBLE_SHARD
from torchdata_ais.webdataset.commands import PREFIX, Command, named_by, with_command, with_commands
from torchdata_ais.webdataset.currying import Through
from torchdata_ais.webdataset.filters import resampled as resampled
from torchdata_ais.webdataset.left_out import explaining
from torchdata_ais.webdataset.utils import Place, loader_seed, pytorch_worker_info, pytorch_worker_seed

_UNION = re.compile(r"::(?![^/]*\])")  # not the colons of http://[::1]:8080
_CLAIMED = re.compile(r"\._(\d+)_$")
_VARIABLE = re.compile(r"\$\{(\w+)\}")

non_empty = Through(pipes.NonEmpty, "non_empty")


def expand_urls(urls: str) -> list[str]:
    """Return the shards that a text names.

    Args:
        urls: Brace templates, joined by ``::``; ``${NAME}`` is the environment variable ``WDS_NAME``. A bucket or a
            prefix in one (``ais://bucket/train-``, ``ais://bucket/train/``), and a folder (``data/``), stand for the
            shards in it. ``pipe:`` URLs become commands (`Command.from_text`), after their braces are expanded.

    Raises:
        UsageError: An environment variable is not set, braces do not match, or a command needs a shell.
        NotFoundError: No shard in the bucket or folder.

    Example:
        >>> expand_urls("a-{0..1}.tar::b.tar")
        ['a-0.tar', 'a-1.tar', 'b.tar']
    """
    found: list[str] = []
    for part in _UNION.split(urls):
        if part.endswith((".yaml", ".yml", ".json")) and not part.startswith(PREFIX):
            raise UsageError.at(
                f"{part!r} is a description of shards, which is not read here",
                todo="list the shards: a template, a bucket, a folder, or several of them joined by ::",
            )
        template = _VARIABLE.sub(_environment, part)
        for url in expand_template(template):
            if _is_collection(url):
                found.extend(_listed(url))
            else:
                found.append(with_command(url) if type(urls) is str else url)
    return found


def _environment(match: re.Match[str]) -> str:
    value = os.environ.get("WDS_" + match[1])
    if value is None:
        raise UsageError.at(
            f"${{{match[1]}}} stands for the environment variable WDS_{match[1]}, which is not set"
        )
    return value


def _is_collection(url: str) -> bool:
    if url.startswith(PREFIX):
        return False
    if url.endswith("/"):
        return True
    if url.partition(":")[0] not in PROVIDERS:
        return False
    name = parse_url(url).name.rpartition("/")[2]
    return "." not in name or "*" in name  # which no bucket knows: the lister says so


def _listed(url: str) -> list[str]:
    return list(pipes.AISSourceLister(url, regex=VISIBLE_SHARD))


def expand_source(source: object, max_urls: int | None = None) -> list[str]:
    """Return the first `max_urls` shards of a text, a path, or an iterable.

    ``pipe:`` URLs become commands in a text, a list and a tuple: see `with_commands`.
    """
    if isinstance(source, Command):
        return [source]
    if isinstance(source, str):
        return expand_urls(source)[:max_urls]
    if isinstance(source, os.PathLike):
        return [named_by(source)]  # letter by letter: a path is no template
    if not isinstance(source, Iterable) or isinstance(source, (bytes, Mapping)):
        raise UsageError.at(
            f"an object of type {type(source).__name__} names no shards",
            todo="pass a string or a list of strings",
        )
    return [named_by(item) for item in islice(with_commands(source), max_urls)]


class SimpleShardList(IterableDataset[dict[str, str]]):
    """Yield ``{"url": shard}`` for each shard.

    Args:
        urls: A text as for `expand_urls`, a path, or an iterable of strings and paths.
        seed: Shuffle the list by this seed, in the same way in each epoch and process; True is 0. `shuffle` after the
            list makes a new order in each epoch.

    Raises:
        UsageError: The list has no shard.

    Example:
        >>> list(SimpleShardList("s-{0..1}.tar"))
        [{'url': 's-0.tar'}, {'url': 's-1.tar'}]
    """

    def __init__(self, urls: object, seed: int | bool | None = None) -> None:
        super().__init__()
        self.urls = expand_source(urls)
        if not self.urls:
            raise UsageError.at("the list of shards is empty", todo="check what it is made of")
        self.seed = 0 if seed is True else seed

    def __len__(self) -> int:
        return len(self.urls)

    def __iter__(self) -> Iterator[dict[str, str]]:
        urls = list(self.urls)
        if self.seed is not None:
            random.Random(self.seed).shuffle(urls)
        for url in urls:
            yield {"url": url}


ShardList = SimpleShardList


@dataclass
class MSSource:
    """A source of webdataset's obsolete `MultiShardSample`; use `RandomMix`."""

    name: str = ""
    perepoch: int = -1
    resample: bool = False
    urls: list[str] = field(default_factory=list)


def shardspec(spec: str) -> SimpleShardList:
    """Return the shards of a text."""
    return SimpleShardList(spec)


class ResampledShards(IterableDataset[dict[str, str]]):
    """Yield ``{"url": shard}`` for random shards, drawn with replacement.

    Each worker draws its own sequence.

    Args:
        urls: As for `SimpleShardList`.
        nshards: How many to draw in an epoch; by default endless.
        seed: For `deterministic`.
        worker_seed: Function that returns a number of each worker's own.
        deterministic: Draw by `seed`, worker and epoch instead of the system's entropy.
        max_urls: Use only so many of the shards.
        empty_check: Kept for its name: no shards at all is always an error.

    Example:
        >>> len(list(ResampledShards("s-{0..1}.tar", 5)))
        5
    """

    def __init__(
        self,
        urls: object,
        nshards: int = sys.maxsize,
        seed: object = 0,
        worker_seed: Callable[[], object] | None = None,
        deterministic: bool = False,
        max_urls: int | None = None,
        empty_check: bool = True,
    ) -> None:
        super().__init__()
        del empty_check
        if max_urls is not None:
            check_number(max_urls, 1, "max_urls")
        self.urls = expand_source(urls, max_urls)
        if not self.urls:
            raise UsageError.at("there are no shards to draw from", todo="check what the list is made of")
        self.nshards = nshards
        self.worker_seed = pytorch_worker_seed if worker_seed is None else worker_seed
        self.deterministic = deterministic
        self.seed = seed
        self.epoch = -1

    def __iter__(self) -> Iterator[dict[str, str]]:
        self.epoch += 1
        seed = mix_seed(self.worker_seed(), self.epoch, self.seed, loader_seed())
        for url in pipes.Resampler(self.urls, self.nshards, seed=seed, deterministic=self.deterministic):
            yield {"url": url}


ResampledShardList = ResampledShards


def split_by_node(
    src: Iterable[object], group: object = None, *, place: Place | None = None
) -> Iterator[Any]:
    """Yield the items of this rank: every n-th of `n` ranks.

    Args:
        src: Items in an order that is the same in every rank.
        group: The process group to count ranks in; default all.
        place: Which rank this is, if that is known already.
    """
    place = place or pytorch_worker_info(group)
    return islice(src, place.rank, None, place.world_size)


def split_by_worker(src: Iterable[object], *, place: Place | None = None) -> Iterator[Any]:
    """Yield the items of this worker: every n-th of `n` workers.

    Args:
        src: Items in an order that is the same in every worker.
        place: Which worker this is, if that is known already.
    """
    place = place or pytorch_worker_info()
    return islice(src, place.worker, None, place.num_workers)


def single_node_only(
    src: Iterable[object], group: object = None, *, place: Place | None = None
) -> Iterator[Any]:
    """Pass items on, but raise if there are several ranks.

    Raises:
        UsageError: There are.
    """
    place = place or pytorch_worker_info(group)
    if place.world_size > 1:
        raise UsageError.at(
            f"there are {place.world_size} ranks, and nothing splits the shards over them",
            todo="pass nodesplitter=wds.split_by_node, or nodesplitter=None if each rank has shards of its own",
        )
    yield from src


class DirectoryShardList(IterableDataset[dict[str, str]]):
    """Yield ``{"url": shard}`` for the shards of a folder.

    Each is claimed by a new name while it is read.
    A shard ``s.tar`` is renamed to ``s.tar._PID_``. When the next one is requested, it is deleted (``mode="unlink"``),
    kept as ``s.tar._done_`` (``"keep"``), or put back (``"resample"``). Shards of processes that are gone are treated
    so, too. To read a folder once, `WebDataset("folder/")` is simpler.

    Args:
        path: The folder, with a slash at its end.
        pattern: Name of a shard; braces stand for alternatives.
        poll: Seconds between two looks at an empty folder; None ends the stream when it is empty.
        timeout: Seconds without a shard after which the stream ends.
        mode: Action on a shard that was read; None leaves it as it is.
        select: ``"random"`` or ``"oldest"``.
        fate: No effect, as in webdataset.
    """

    def __init__(
        self,
        path: str,
        pattern: str = "*.{tar,tgz,tar.gz}",
        poll: float | None = 1,
        timeout: float = 600,
        mode: Literal["unlink", "keep", "resample"] | None = "resample",
        select: Literal["random", "oldest"] = "random",
        fate: object = None,
    ) -> None:
        del fate
        if not path.endswith("/") or not Path(path).is_dir():
            raise UsageError.at(f"{path!r} is no folder", todo="name one, with a slash at its end")
        if select not in ("random", "oldest"):
            raise UsageError.at(f"select={select!r}", todo='use "random" or "oldest"')
        self.path = path
        self.pattern = pattern
        self.poll = poll
        self.timeout = timeout
        self.mode = mode
        self.select = select

    def __iter__(self) -> Iterator[dict[str, str]]:
        last = time.monotonic()
        while time.monotonic() - last < self.timeout:
            claimed = self._claim()
            if claimed is not None:
                yield {"url": claimed}
                self.recycle(claimed)
                self.cleanup_files_without_processes()
                last = time.monotonic()
            elif self.poll is None:
                return
            else:
                time.sleep(self.poll)

    def _claim(self) -> str | None:
        patterns = expand_template(self.pattern)
        found = sorted({file for pattern in patterns for file in glob.glob(glob.escape(self.path) + pattern)})  # noqa: PTH207 - text in, text out
        if self.select == "random":
            random.shuffle(found)
        else:
            found.sort(key=_age)
        for file in found:
            claimed = f"{file}._{os.getpid()}_"
            # A rename is atomic: one of several processes gets the file.
            try:
                Path(file).rename(claimed)
            except FileNotFoundError:
                continue  # another process was faster
            return claimed
        return None

    def recycle(self, activename: str) -> None:
        """Do with a shard that was read what `mode` says."""
        original = activename.rpartition(".")[0]
        if self.mode == "unlink":
            Path(activename).unlink(missing_ok=True)
        elif self.mode == "keep":
            Path(activename).rename(original + "._done_")
        elif self.mode == "resample":
            Path(activename).rename(original)

    def cleanup_files_without_processes(self) -> None:
        """Do the same with the shards that processes which are gone had claimed."""
        for file in Path(self.path).iterdir():
            claim = _CLAIMED.search(file.name)
            if claim is not None and not _is_running(int(claim[1])):
                self.recycle(str(file))


def _age(file: str) -> float:
    try:
        return Path(file).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


__getattr__ = explaining(__name__)
