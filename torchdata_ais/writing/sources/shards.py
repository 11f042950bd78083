"""Samples of existing shards, as a source of new shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import xxhash

from torchdata_ais._util.files import naming
from torchdata_ais.errors import NonAdjacentKeyError, NotFoundError
from torchdata_ais.reading.runs import KeySet, Run, whole_runs, whole_samples
from torchdata_ais.samples import Sample
from torchdata_ais.store import StoreOptions, list_objects, open_blocks
from torchdata_ais.tar import TarReader, decompress
from torchdata_ais.urls import ObjectURL, file_fault, parse_url, redact
from torchdata_ais.urls.parsing import is_shard
from torchdata_ais.writing.sources.files import NO_FILE, OUTSIDE_LINK, Omitted, leads_out
from torchdata_ais.writing.sources.source import Source

_MAX_SAMPLE_BYTES = 1 << 30


class ShardSource(Source):
    """The samples of existing shards; a cursor is a shard and an offset in it.

    Memory: one sample, `StoreOptions.prefetch_bytes`, and about 100 bytes a sample of one shard, to notice keys that
    come back.
    """

    def __init__(self, shards: Sequence[str], options: StoreOptions) -> None:
        self.shards = list(shards)
        self._options = options
        digest = xxhash.xxh64()
        for url in self.shards:
            digest.update(f"{parse_url(url).uri} {_facts(url)}\n".encode("utf-8", "surrogateescape"))
        super().__init__("shard", len(self.shards), digest.hexdigest(), dict)

    def items(self, cursor: Any = None) -> Iterator[tuple[Any, Any]]:
        """Yield ``(cursor, sample of bytes)``, from a cursor on.

        Reads the shard of the cursor again, and passes over its head.
        """
        shard, offset = cursor or (0, 0)
        for index in range(shard, len(self.shards)):
            for run, sample in read_samples(self.shards[index], self._options, start=offset):
                yield [index + 1, 0] if run.last else [index, run.end], sample
            offset = 0

    def done(self, cursor: Any) -> int:
        """Return the number of shards read to the end."""
        return int(cursor[0]) if cursor else 0

    def chosen(self, positions: Callable[[int], Sequence[int]]) -> ShardSource:
        """Return a source of some of the shards."""
        chosen = ShardSource([self.shards[number] for number in positions(self.total)], self._options)
        chosen.left_out = self.left_out
        return chosen


def read_samples(url: str, options: StoreOptions, *, start: int = 0) -> Iterator[tuple[Run, Sample]]:
    """Yield the samples of a shard with their runs, whole ones only.

    Those that begin before `start`, in the decompressed shard, are read and passed over. Conversions never continue
    after an error: more samples could be lost.

    Example:
        >>> from torchdata_ais.testing import example_shards
        >>> [(run.end, sample["__key__"]) for run, sample in read_samples(example_shards()[1], StoreOptions())]
        [(2048, '00001'), (4096, '00002'), (6144, '00003')]
    """
    keys = KeySet()
    place = parse_url(url)
    url = place.shown
    with open_blocks(place, options) as blocks:
        reader = TarReader(decompress(blocks, url=url), url=url, max_member_bytes=_MAX_SAMPLE_BYTES)
        runs = whole_runs(reader, url=url, max_bytes=_MAX_SAMPLE_BYTES)
        for run, sample in whole_samples(runs, url):
            if not keys.add(sample["__key__"]):
                raise NonAdjacentKeyError.at(
                    f"the key {run.key!r} was met before in this shard: the members of a sample must stand together",
                    todo="sort the shard first (tar --sort=name)",
                    url=url,
                    offset=run.offset,
                    key=run.key,
                )
            if run.offset >= start:
                yield run, sample


def find_shards(
    source: object, options: Callable[[], StoreOptions], omitted: Omitted, *, outside: bool = False
) -> list[str]:
    """Return the shards of paths, URLs, templates, prefixes and folders.

    Left-out contents of a folder, pipes and, without `outside`, links out of the folder, are counted in `omitted`.
    """
    found: list[str] = []
    for one in (
        [source] if isinstance(source, str | os.PathLike) or not isinstance(source, Sequence) else source
    ):
        if isinstance(one, str | os.PathLike) and Path(one).is_dir():
            inside = _inside(os.fspath(one), omitted, outside=outside)
            if not inside and OUTSIDE_LINK in omitted:
                raise NotFoundError.at(
                    f"the folder holds no shard but {omitted[OUTSIDE_LINK][1]}, {OUTSIDE_LINK}",
                    todo="if you trust the author of the folder, pass allow_outside=True",
                    url=str(one),
                )
            if not inside:
                raise NotFoundError.at(
                    "the folder holds no shard",
                    todo="name one that does; folders of pictures or sound are converted one by one",
                    url=str(one),
                )
            found += inside
            continue
        name = os.fspath(one) if isinstance(one, os.PathLike) else one
        local = isinstance(name, str) and parse_url(name).kind == "file"
        found += list_objects(name, options=StoreOptions() if local else options())
    return found


def _inside(folder: str, omitted: Omitted, *, outside: bool) -> list[str]:
    found = []
    for path in shards_in(folder):
        if not outside and leads_out(folder, path):
            omitted.add(OUTSIDE_LINK, Path(path).name)
        elif file_fault(path):
            omitted.add(NO_FILE, Path(path).name)
        else:
            found.append(path)
    return found


def shards_in(folder: str | os.PathLike[str]) -> list[str]:
    """Return the shards in a folder, by their names' ends, sorted."""
    with naming(str(folder)):
        return sorted(str(path) for path in Path(folder).iterdir() if is_shard(path.name))


def _facts(url: str) -> str:
    if isinstance(url, ObjectURL) and (url.checksum or url.size is not None):
        return f"{url.size} {url.checksum}"
    place = parse_url(url)
    if place.kind == "file":
        try:
            return str(os.stat(place.name).st_size)  # noqa: PTH116 - text in
        except FileNotFoundError:
            raise NotFoundError.at(
                "there is no such shard or folder", todo="check the path", url=redact(url)
            ) from None
    return ""
