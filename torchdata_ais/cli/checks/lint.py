"""lint_shards."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from dataclasses import field as dataclass_field
from typing import Any, Literal

import xxhash

from torchdata_ais._util.arguments import checked
from torchdata_ais.codecs import Decoder, imagehandler
from torchdata_ais.codecs.media import checked_media
from torchdata_ais.errors import (
    AISError,
    AuthError,
    ConnectError,
    NonAdjacentKeyError,
    SampleError,
    UsageError,
)
from torchdata_ais.errors.text import Remedy, Sentences, in_commands, in_programs
from torchdata_ais.index import IndexedShard, IndexWriter, MemoryFolder, StoredIndex
from torchdata_ais.index.build import SampleIndex, ShardWatch
from torchdata_ais.index.build.builder import IndexLocation
from torchdata_ais.pipes import AISFileLoader, TarSampleGrouper
from torchdata_ais.samples import Fields, dots_in_names
from torchdata_ais.store import Cluster, StoreOptions, cluster_options, list_each
from torchdata_ais.urls import parse_url, redact

KEPT_PROBLEMS = 20  # of one shard; more are counted


def shown(url: str) -> str:
    """Return a URL for people: ``ais://bucket/name``, without secrets."""
    place = parse_url(url)
    return place.uri if place.kind == "object" else redact(url)


@dataclass(frozen=True)
class Problem:
    """One problem of a shard.

    Attributes:
        kind: The class of the error that training would raise, or a word of the linter's own: ``FieldsDiffer``,
            ``NoSamples``, ``NoSuchField``, ``RareField``, ``KeysRepeated``, ``UnevenShards``, ``DotsInNames``.
        text: The problem and its remedy.
        severity: ``"error"`` stops training or loses samples; ``"note"`` is worth knowing.
        offset: The byte in the (decompressed) shard.
    """

    kind: str
    text: str
    severity: Literal["error", "note"] = "error"
    url: str | None = None
    member: str | None = None
    key: str | None = None
    field: str | None = None
    offset: int | None = None

    @classmethod
    def of(cls, error: Exception, url: str) -> Problem:
        """Return the problem of an error."""
        place = error.place if isinstance(error, AISError) else {}
        what, todo = (error.what, error.todo) if isinstance(error, AISError) else (str(error), "")
        text = Sentences(" ".join(what.splitlines()).strip(), todo)
        at = {name: place.get(name) for name in ("member", "key", "field", "offset")}
        return cls(type(error).__name__, text, "error", shown(url), **at)

    def __str__(self) -> str:
        """One line: severity, place, text, kind."""
        place = [self.url] if self.url else []
        place += [f"member {self.member!r}"] if self.member is not None else []
        place += [f"key {self.key!r}"] if self.key is not None else []
        place += [f"byte {self.offset}"] if self.offset is not None else []
        return f"{self.severity}: {', '.join([*place, '']) if place else ''}{self.kind}: {self.text}"


@dataclass
class ShardReport:
    """Findings in one shard.

    Attributes:
        url: The shard, as people write it; `source`: as it is read.
        samples: Samples that could be grouped, of which `good` have no problem.
        bytes: Bytes of their fields.
        whole: Whether the shard could be read to a sound end.
        errors: How many problems there are, of which `problems` has the first 20.
        scattered: Keys whose members are not consecutive.
        shapes: For each set of fields: how many samples have it, and key and offset of the first.
    """

    url: str
    source: str = dataclass_field(repr=False)
    samples: int = 0
    bytes: int = 0
    good: int = 0
    whole: bool = True
    errors: int = 0
    problems: list[Problem] = dataclass_field(default_factory=list)
    scattered: set[str] = dataclass_field(default_factory=set)
    shapes: dict[tuple[str, ...], tuple[int, str, int]] = dataclass_field(default_factory=dict)

    def add(self, problem: Problem) -> None:
        """Note a problem."""
        self.errors += 1
        if len(self.problems) < KEPT_PROBLEMS:
            self.problems.append(problem)


@dataclass
class LintReport:
    """Findings in a set of shards, in the order of the listing.

    Attributes:
        across: Problems between shards: fields, keys, sizes.
        required: The fields each sample must have, as alternatives (``("jpg;png", "cls")``).
        seconds: How long it took.
        index: The sample index of the shards, if it was requested and errors are absent.
    """

    shards: list[ShardReport]
    across: list[Problem] = dataclass_field(default_factory=list)
    required: tuple[str, ...] = ()
    seconds: float = 0.0
    index: SampleIndex | None = dataclass_field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        """True without errors. Notes do not count."""
        return next(self.errors(), None) is None

    def errors(self) -> Iterator[Problem]:
        """Yield the errors: those kept of each shard, then of the comparison."""
        return (problem for problem in self.problems() if problem.severity == "error")

    def problems(self) -> Iterator[Problem]:
        """Yield all problems: those kept of each shard, then of the comparison."""
        for shard in self.shards:
            yield from shard.problems
        yield from self.across

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        names = ("url", "whole", "samples", "good", "bytes", "errors")
        return {
            "ok": self.ok,
            "shards": [
                {name: getattr(shard, name) for name in names}
                | {"problems": [asdict(problem) for problem in shard.problems]}
                for shard in self.shards
            ],
            "across": [asdict(problem) for problem in self.across],
            "required": list(self.required),
            "seconds": round(self.seconds, 3),
        }


_NAME_FIELDS = Remedy(
    in_programs("leave it out with decode(only=...) or to_tuple()"),
    in_commands("name what each sample must have, and alternatives, by --require 'jpg;png cls'"),
)
_LEAVE_OUT = Remedy(
    "write it again",
    in_programs("leave such samples out with group_samples(require=...)"),
    in_commands("name alternatives: --require 'jpg;png cls'"),
)
_UNEVEN = 4  # times as many samples in the largest shard as in the median one, or as few in the smallest


def compared(
    shards: Sequence[ShardReport], require: tuple[str, ...]
) -> tuple[list[Problem], tuple[str, ...]]:
    """Return the problems, and the fields that each sample should have."""
    notes = [*_merged(shards), *_uneven(shards)]
    if require:  # checked sample by sample
        return notes, require
    counts: Counter[str] = Counter()
    total = 0
    for shard in shards:
        for fields, (count, _, _) in shard.shapes.items():
            total += count
            counts.update(dict.fromkeys(fields, count))
    common = tuple(field for field, count in counts.items() if 2 * count >= total)
    found = [problem for shard in shards for problem in _lacks(shard, common)]
    rare = {field: count for field, count in counts.items() if field not in common}
    for field, count in sorted(rare.items()):
        text = Sentences(f"{count} of {total} samples have the field {field!r}", _NAME_FIELDS)
        found.append(Problem("RareField", text, "note", field=field))
    return [*found, *notes], common


def lacking(fields: tuple[str, ...] | dict[str, object], required: tuple[str, ...]) -> list[str]:
    """Return the missing required fields; alternatives are joined by ``;``."""
    return [names for names in required if not any(name in fields for name in names.split(";"))]


def unmatched(shards: Sequence[ShardReport], only: tuple[str, ...]) -> Iterator[Problem]:
    """Yield an error for each field to decode that no sample has."""
    there = sorted({field for shard in shards for shape in shard.shapes for field in shape})
    for field in only:
        if there and field not in there:
            what = f"no sample has the field {field!r}, which only= names"
            text = Sentences(what, f"the fields are {' '.join(there)}")
            yield Problem("NoSuchField", text, "error", field=field)


def _lacks(shard: ShardReport, common: tuple[str, ...]) -> Iterator[Problem]:
    """Yield an error for each common field that some samples of a shard lack."""
    for field in common:
        without = [met for fields, met in shard.shapes.items() if field not in fields]
        if without:
            count = sum(met[0] for met in without)
            _, key, offset = min(without, key=lambda met: met[2])
            what = (
                f"{count} of {shard.samples} samples have no field {field!r}, which most others have; this is the"
                " first"
            )
            text = Sentences(what, _LEAVE_OUT)
            yield Problem("FieldsDiffer", text, "error", shard.url, key=key, field=field, offset=offset)


def _merged(shards: Sequence[ShardReport]) -> Iterator[Problem]:
    """Yield a note if dots in file names may have merged samples."""
    shapes = [(shard, shape) for shard in shards for shape in shard.shapes]
    what = dots_in_names({field for _, shape in shapes for field in shape})
    if what:
        shard, shape = next(one for one in shapes if dots_in_names(one[1]))
        _, key, offset = shard.shapes[shape]
        field = next(field for field in shape if dots_in_names([field]))
        yield Problem("DotsInNames", Sentences(what), "note", shard.url, key=key, field=field, offset=offset)


def _uneven(shards: Sequence[ShardReport]) -> Iterator[Problem]:
    """Yield a note if some shards are several times larger than others."""
    sizes = sorted((shard.samples, shard.url) for shard in shards if shard.whole)
    if len(sizes) < 2:
        return
    median = sizes[len(sizes) // 2][0]
    # The last shard of a series is usually short: that the smallest of all differs is expected.
    if sizes[-1][0] > _UNEVEN * median or (len(sizes) > 2 and sizes[1][0] * _UNEVEN < median):
        text = (
            f"shards hold {sizes[0][0]} ({sizes[0][1]}) to {sizes[-1][0]} samples ({sizes[-1][1]}), {median} in the"
            " middle: workers end at different times. --fix or torchdata-ais convert makes them even"
        )
        yield Problem("UnevenShards", text, "note")


# It is the cluster that cannot be read: all shards would say the same.
_NO_DECODE = Remedy(
    in_programs("lint can also leave decoding out: --no-decode, decode=False"),
    in_commands("lint can also leave decoding out: --no-decode"),
)
_NOT_THE_SHARD = (ConnectError, AuthError)

_PATIENCE_S = 1.0  # for threads that are under way when the check is broken off

_Met = tuple[str, int, tuple[str, ...]]  # key, offset and fields of a sample


@checked
def lint_shards(
    source: object,
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
    """Read every shard to its end and report all problems in it.

    Checked for each shard: tar headers, end of archive, length and checksum of the object; that keys are unique, and
    the members of each key are consecutive; that no field is there twice; that every field decodes. Then across the
    shards: that samples have the same fields, that no key comes back in another shard, that sizes are even.

    Order: that of the listing, for any `jobs`.

    Memory: for each of `jobs` shards the memory of `load_tar`, and about 100 bytes a sample for its key.

    Args:
        source: As for `AISSourceLister`: a prefix, a template, a path or pattern, a bucket, or a list of these.
        require: Fields each sample must have, alternatives by ``;`` (``"jpg;png cls"``). Default: those that at least
            half of all samples have.
        decode: Whether to decode the fields, as ``.decode()`` would, images to the last pixel; sounds where soundfile
            is installed (extra ``[audio]``). Videos are not decoded, but must be complete.
        only: Decode these fields only.
        jobs: How many shards to read at the same time; default one for each core, at most 8.
        progress: Called with (shards done, shards in all) after each.
        index: Whether to make the sample index of the bytes that are read anyway: `LintReport.index` without errors.
        read: Called with the bytes of each before that.
        cluster: See `torchdata_ais.store.Cluster`.

    Raises:
        ConnectError, AuthError: The cluster cannot be reached at all.
        UsageError: `source` is not a source; or a field needs a library that is not installed.

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
    codec = Decoder(imagehandler("pil"), checked_media, only=only or None) if decode else None
    stop = threading.Event()
    seen = _Keys()

    writer = IndexWriter(folder := MemoryFolder()) if index else None

    def one(url: str) -> tuple[ShardReport, list[_Met], IndexedShard | None]:
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
        found.index = SampleIndex(
            [StoredIndex(folder)], home=IndexLocation(source, options).home, options=options
        )
    return found


def sources(source: object, options: StoreOptions) -> list[str]:
    """Return the URLs of the shards of one source or several."""
    several = source if isinstance(source, (list, tuple)) else [source]
    return [url for urls in list_each(several, options=options) for url in urls]


def _in_order(
    function: Callable[[str], object], urls: Iterable[str], jobs: int, stop: threading.Event
) -> Iterator[Any]:
    """Yield the results in order, `jobs` at a time.

    The threads are daemons, which those of an executor are not: one that waits for a node must not keep Ctrl-C waiting.
    """
    slots = threading.Semaphore(jobs)
    window: deque[Future[Any]] = deque()

    def work(future: Future[object], url: str) -> None:
        with slots:
            try:
                future.set_result(None if stop.is_set() else function(url))
            except BaseException as error:  # noqa: BLE001 - the thread that waits for the result raises it
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
    codec: Callable[[Fields], object] | None,
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
        if key not in report.scattered:  # else it is only a part of its sample, which the error covers
            count, first, at = report.shapes.get(shape, (0, key, offset))
            report.shapes[shape] = count + 1, first, at
    return report, met


class _Keys:
    """Shards of each key, by a hash of 64 bits."""

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._urls: list[str] = []

    def repeated(self, url: str, met: list[_Met]) -> list[Problem]:
        """Add the keys of a shard; return a note if other shards have some."""
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
