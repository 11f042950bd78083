"""`lint_shards`: read every shard as training would, and go on after each problem."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any

import xxhash

from torchdata_ais.arguments import checked
from torchdata_ais.checking.across import compared, unmatched
from torchdata_ais.checking.findings import LintReport, Problem, ShardReport, shown
from torchdata_ais.codecs import Decoder
from torchdata_ais.error_text import Remedy, Sentences, in_commands, in_programs
from torchdata_ais.errors import AuthError, ConnectError, NonAdjacentKeyError, SampleError, UsageError
from torchdata_ais.index import IndexWriter, MemoryFolder, ShardEntry, ShardSamples, StoredIndex
from torchdata_ais.indexing import SampleIndex, ShardWatch
from torchdata_ais.indexing.beside import Beside
from torchdata_ais.pipes import AISFileLoader, TarSampleGrouper
from torchdata_ais.store import Cluster, StoreOptions, cluster_options, list_objects

# It is the cluster that cannot be read: all shards would say the same.
_NO_DECODE = Remedy(
    in_programs("lint can also leave decoding out: --no-decode, decode=False"),
    in_commands("lint can also leave decoding out: --no-decode"),
)
_NOT_THE_SHARD = (ConnectError, AuthError)

_PATIENCE_S = 1.0  # for threads that are under way when the check is broken off

_Indexed = tuple[ShardEntry, ShardSamples]
_Met = tuple[str, int, tuple[str, ...]]  # key, offset and fields of a sample


@checked
def lint_shards(
    source: Any,
    *,
    require: str | Sequence[str] = (),
    decode: bool = True,
    only: Iterable[str] | str | None = None,
    jobs: int | None = None,
    progress: Callable[[int, int], object] | None = None,
    index: bool = False,
    read: Callable[[int], object] | None = None,
    cluster: Cluster = None,
) -> LintReport:
    """Read every shard to its end and report all that is wrong with it.

    Checked for each shard: tar headers, end of archive, length and checksum of the object; that keys are unique, and
    the members of each key stand together; that no field is there twice; that every field decodes. Then across the
    shards: that samples have the same fields, that no key comes back in another shard, that sizes are even.

    Takes:
        What `AISSourceLister` takes: a prefix, a template, a path or pattern, a bucket, or a list of these.

    Order:
        Reports stand in the order of the listing, whatever `jobs` is.

    Memory:
        For each of `jobs` shards what `load_tar` needs, and about 100 bytes a sample for its key.

    Args:
        source: See above.
        require: Fields each sample must have, alternatives by ``;`` (``"jpg;png cls"``). Default: those that at least
            half of all samples have.
        decode: Whether to decode the fields, as ``.decode()`` would, images to the last pixel.
        only: Decode these fields only.
        jobs: How many shards to read at the same time; default one for each core, at most 8.
        progress: Called with (shards done, shards in all) after each.
        index: Whether to make the sample index on the way, of the bytes that are read anyway. It is the report's
            `LintReport.index` if there is no error, to be stored by ``SampleIndex.save``.
        read: Called with the bytes of each before that.
        cluster: See `torchdata_ais.store.Cluster`.

    Raises:
        NotFoundError: There is no such bucket, or no shard.
        ConnectError, AuthError: The cluster cannot be asked at all.
        UsageError: `source` is none; or a field needs a library that is not installed.

    Example:
        >>> from torchdata_ais.testing import write_shard
        >>> import tempfile
        >>> path = write_shard(tempfile.mkdtemp() + "/s.tar", [("a.cls", b"1"), ("b.cls", b"x"), ("a.txt", b"cat")])
        >>> for problem in lint_shards(path).problems():
        ...     print(problem.kind, problem.key, problem.offset)
        DecodeError b 1024
        NonAdjacentKeyError a 2048
    """
    began = time.monotonic()
    options = cluster_options(cluster)
    urls = sources(source, options)
    wanted = tuple(require.split()) if isinstance(require, str) else tuple(require)
    only = tuple(only.split() if isinstance(only, str) else only or ())
    codec = Decoder(only=only or None) if decode else None
    stop = threading.Event()
    seen = _Keys()

    writer = IndexWriter(folder := MemoryFolder()) if index else None

    def one(url: str) -> tuple[ShardReport, list[_Met], _Indexed | None]:
        watch = ShardWatch(url) if index else None
        report, met = _lint_one(url, wanted, codec, options, stop, watch)
        return report, met, None if watch is None or report.errors else watch.finish()

    reports: list[ShardReport] = []
    repeats: list[Problem] = []
    for report, met, indexed in _in_order(one, urls, jobs or min(8, os.cpu_count() or 1), stop):
        reports.append(report)
        repeats += seen.repeated(report.url, met)
        if writer is not None and indexed is not None:
            writer.add(*indexed)
        if read is not None:
            read(report.bytes)
        if progress is not None:
            progress(len(reports), len(urls))
    across, required = compared(reports, wanted)
    across += unmatched(reports, only)
    found = LintReport(reports, [*repeats, *across], required, time.monotonic() - began)
    if writer is not None and found.ok:
        writer.finish(source=str(source))
        found.index = SampleIndex([StoredIndex(folder)], home=Beside(source, options).home, options=options)
    return found


def sources(source: Any, options: StoreOptions) -> list[str]:
    """Return the URLs of the shards of one source or several."""
    several = source if isinstance(source, (list, tuple)) else [source]
    return [url for one in several for url in list_objects(one, options=options)]


def _in_order(
    function: Callable[[str], Any], urls: Iterable[str], jobs: int, stop: threading.Event
) -> Iterator[Any]:
    """Yield the results in order, `jobs` at a time.

    The threads are daemons, which those of an executor are not: one that waits for a node must not keep Ctrl-C waiting.
    """
    slots = threading.Semaphore(jobs)
    window: deque[Future[Any]] = deque()

    def work(future: Future[Any], url: str) -> None:
        with slots:
            try:
                future.set_result(None if stop.is_set() else function(url))
            except BaseException as error:  # noqa: BLE001 - whoever waits for the result raises it
                future.set_exception(error)

    try:
        for url in urls:
            window.append(Future())
            threading.Thread(target=work, args=(window[-1], url), daemon=True).start()
            if len(window) >= 2 * jobs:
                yield window.popleft().result()
        while window:
            yield window.popleft().result()
    finally:
        stop.set()
        wait(window, _PATIENCE_S)


def _lint_one(
    url: str,
    require: tuple[str, ...],
    codec: Callable[[dict[str, Any]], Any] | None,
    options: StoreOptions,
    stop: threading.Event,
    watch: ShardWatch | None,
) -> tuple[ShardReport, list[_Met]]:
    report = ShardReport(shown(url), url)
    met: list[_Met] = []
    fields: dict[tuple[str, ...], tuple[str, ...]] = {}  # each set of fields once

    def noted(error: Exception) -> bool:
        if isinstance(error, _NOT_THE_SHARD):
            raise error
        if isinstance(error, NonAdjacentKeyError):
            report.scattered.add(error.key or "")
        report.whole = report.whole and isinstance(error, SampleError)
        report.add(Problem.of(error, url))
        return True

    members = AISFileLoader([url], on_error=noted, cluster=options)
    if watch is not None:
        members.watched_by(watch)
    for sample in TarSampleGrouper(members, require=require, on_error=noted):
        if stop.is_set():
            break
        report.samples += 1
        report.bytes += sum(map(len, sample.values()))
        shape = tuple(sorted(name for name in sample if not name.startswith("__")))
        met.append((sample["__key__"], sample.offset, fields.setdefault(shape, shape)))
        try:
            if codec is not None:
                codec(sample)
        except UsageError as error:  # before SampleError: some are both
            raise error.noting(_NO_DECODE) from error
        except SampleError as error:
            noted(error)
        else:
            report.good += 1
    if not report.samples and not report.errors:
        report.add(
            Problem(
                "NoSamples", Sentences("the shard is sound and holds no sample", "remove it"), url=report.url
            )
        )
    for key, offset, shape in met:
        if key not in report.scattered:  # else it is only a part of its sample, and the error says so
            count, first, at = report.shapes.get(shape, (0, key, offset))
            report.shapes[shape] = count + 1, first, at
    return report, met


class _Keys:
    """Which shard each key was met in, by a hash of 64 bits."""

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._urls: list[str] = []

    def repeated(self, url: str, met: list[_Met]) -> list[Problem]:
        """Add the keys of a shard; return one note if some of them were met in other shards."""
        number = len(self._urls)
        self._urls.append(url)
        first: tuple[str, int, int] | None = None
        count = 0
        for key, offset, _ in met:
            digest = xxhash.xxh64_intdigest(key.encode("utf-8", "surrogateescape"))
            before = self._first.setdefault(digest, number)
            if before != number:
                count += 1
                first = first or (key, offset, before)
        if first is None:
            return []
        key, offset, before = first
        text = Sentences(
            f"{count} of its keys stand in other shards, too, this one in {self._urls[before]}",
            "both samples are used; if they are the same sample, remove one",
        )
        return [Problem("KeysRepeated", text, "note", url, key=key, offset=offset)]
