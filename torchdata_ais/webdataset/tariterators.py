"""Shards to samples."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, groupby
from typing import Any, Literal

from torchdata_ais.errors import AISError, ReadError, UsageError
from torchdata_ais.pipes import AISFileLoader, TarSampleGrouper
from torchdata_ais.pipes.base.meter import StageStats
from torchdata_ais.pipes.base.pipe import as_pipe
from torchdata_ais.pipes.base.policy import ErrorPolicy
from torchdata_ais.reading.open_shard import Safety, ShardOptions
from torchdata_ais.reading.runs import Run
from torchdata_ais.samples import Fields, Sample, split_name
from torchdata_ais.store import Cluster, ObjectCache, Retry
from torchdata_ais.urls import MemberPath, parse_url, shown_url
from torchdata_ais.webdataset.cache import FileKeeper
from torchdata_ais.webdataset.commands import Command, named_by, readable, with_commands
from torchdata_ais.webdataset.currying import pipelinefilter
from torchdata_ais.webdataset.gopen import open_stream
from torchdata_ais.webdataset.handlers import Handler, reraise_exception
from torchdata_ais.webdataset.left_out import explaining

_BLOCK_BYTES = 256 << 10


class ShardStream(io.RawIOBase):
    """A shard that is opened by the first read.

    Until then, code that knows its URL can read it in a better way.
    """

    def __init__(self, url: str, *, bufsize: int = 8192, cluster: Cluster = None) -> None:
        super().__init__()
        self.url = url
        self.opened = False
        self._open = partial(open_stream, url, bufsize=bufsize, cluster=cluster)
        self._stream: Any = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: object) -> int:
        """Read into `buffer`; return how many bytes, 0 at the end."""
        if self._stream is None:
            self.opened = True
            self._stream = self._open()
        return int(self._stream.readinto(buffer))

    def close(self) -> None:
        """Let go of the shard."""
        if self._stream is not None:
            self._stream.close()
        super().close()


def stream_in(item: object) -> Any:
    """Return an item's stream, if it has one but an unread `ShardStream`."""
    stream = item.get("stream") if isinstance(item, Mapping) else None
    return None if isinstance(stream, ShardStream) and not stream.opened else stream


def readable_runs(stream: object, url: str, handler: Handler, options: ShardOptions) -> Iterator[Run]:
    """Yield the whole runs of members that a stream holds from its position.

    It may be compressed, and stays open. Its errors are the handler's: True continues without a sample that is wrong in
    itself; the rest of a damaged shard is given up.

    Memory:
        One sample, one member and some blocks; samples are bounded by 1 GiB.
    """
    policy, stats = ErrorPolicy(handler), StageStats()
    try:
        for run in options.runs(_blocks(stream, url), url):
            if run.error is None:
                yield run
            elif not policy.goes_on(run.error, stats, "tar_file_expander"):
                return
    except Exception as error:  # noqa: BLE001 - the policy decides
        policy.goes_on(error, stats, "tar_file_expander")


def _blocks(stream: object, url: str) -> Iterator[bytes]:
    read = getattr(stream, "read", None)
    if not callable(read):
        raise _no_stream(f"an object of type {type(stream).__name__}", url)
    while True:
        try:
            block = read(_BLOCK_BYTES)
        except AISError:
            raise
        except Exception as error:  # a stream of any kind raises errors of any kind
            raise ReadError.at(
                f"the stream that was passed for the shard failed ({type(error).__name__}: {error})", url=url
            ) from error
        if not isinstance(block, bytes | bytearray | memoryview):
            raise _no_stream(f"a stream whose read() gives {type(block).__name__}", url)
        if not block:
            return
        yield bytes(block)


def _no_stream(what: str, url: str) -> UsageError:
    return UsageError.at(
        f"{what} is no shard", todo='pass {"url": name, "stream": a file opened with "rb"}', url=url
    )


def tarfile_samples(
    src: Iterable[object],
    handler: Handler = reraise_exception,
    select_files: Callable[[str], bool] | None = None,
    rename_files: Callable[[str], str] | None = None,
    *,
    adjacent: Literal["error", "split"] = "error",
    require: str = "",
    local_path: bool = False,
    cache: ObjectCache | None = None,
    open_shards: int = 1,
    prefetch_bytes: int | None = None,
    retry: Retry | None = None,
    max_errors: float | None = None,
    cluster: Cluster = None,
    safety: Safety | None = None,
) -> Iterator[Sample]:
    """Yield the samples of shards, only whole ones.

    Args:
        src: Shards: ``{"url": ...}`` or plain URLs and paths. A path and ``file://`` name any file that the process
            may read, unless `utils.enforce_security` (``WDS_SECURE=1``) is set. A ``pipe:`` URL is run if `src` is a
            list or tuple; from other sources only `Command` objects are.
        handler: Called with the error. True continues: without the rest of a shard that cannot be read, without
            a sample that is wrong in itself.
        select_files: Function of a (renamed) member name: whether to read it.
        rename_files: Function applied to member names before all else.
        adjacent: A key that comes back later in its shard is an error, or a separate sample (``"split"``).
        require: Fields that every sample must have.
        local_path: Whether samples of local files say where theirs is, as ``__local_path__``.
        cache: `torchdata_ais.store.ObjectCache`, to keep whole shards in a folder; of web files, too.
        open_shards: As in `torchdata_ais.AISFileLoader`.
        prefetch_bytes: As in `torchdata_ais.AISFileLoader`.
        retry: As in `torchdata_ais.AISFileLoader`.
        max_errors: As in `torchdata_ais.AISFileLoader`.
        cluster: See `torchdata_ais.store.Cluster`.
        safety: As in `torchdata_ais.AISFileLoader`.

    Yields:
        `Sample`: a dict ``{"__key__": str, "__url__": str, field: bytes, ...}``. One with a field ``__bad__`` that is
        not empty is left out.
    """
    names: dict[str, str] = {}
    shards = readable(src, names, handler, open_shards, local_path)
    keeper = None if cache is None else FileKeeper.of(cache)
    first = next(shards, None)
    if first is None:
        return
    loader = AISFileLoader(
        as_pipe(chain([first], shards)),
        on_error=handler,
        select_files=select_files,
        rename_files=rename_files,
        cache=keeper,
        open_shards=open_shards,
        prefetch_bytes=prefetch_bytes,
        retry=retry,
        max_errors=max_errors,
        cluster=cluster,
        safety=safety,
    )
    shard = name = shown = ""
    path: str | None = None
    for sample in TarSampleGrouper(loader, adjacent=adjacent, require=require, on_error=handler):
        if sample["__url__"] != shard:
            # A listed URL knows size and version, which samples need not carry.
            shard = str(sample["__url__"])
            name = names.get(shard, shard)
            shown = shown_url(name)  # plain text: a `Command` holds its words
            path = None
            if local_path and not isinstance(name, Command):
                place = parse_url(shard)
                kept = None if keeper is None else keeper.paths.get(shard)
                path = place.name if place.kind == "file" else kept
        sample["__url__"] = shown
        if path is not None:
            sample["__local_path__"] = path
        if valid_sample(sample):
            yield sample


tarfile_to_samples = pipelinefilter(tarfile_samples)


# The single steps, for programs that put them together by themselves.


def url_opener(
    data: Iterable[object],
    handler: Handler = reraise_exception,
    *,
    bufsize: int = 8192,
    cluster: Cluster = None,
) -> Iterator[Fields]:
    """Yield ``{"url", "stream"}`` for each shard.

    A stream is opened by its first read. Where `tar_file_expander` takes it as it comes, it reads the shard by its URL
    instead, and can go on after a broken line.

    Args:
        data: URLs, paths, or ``{"url": ...}``.
        handler: Called with an item that names no shard.
        bufsize: As in `gopen`.
        cluster: See `torchdata_ais.store.Cluster`.
    """
    for item in with_commands(data):
        try:
            url = named_by(item)
        except Exception as error:  # noqa: BLE001 - the handler decides
            if not handler(error):
                return
            continue
        more = item if isinstance(item, Mapping) else {}
        yield {**more, "url": url, "stream": ShardStream(url, bufsize=bufsize, cluster=cluster)}


def tar_file_iterator(
    fileobj: object,
    skip_meta: str | None = r"__[^/]*__($|/)",
    handler: Handler = reraise_exception,
    select_files: Callable[[str], bool] | None = None,
    rename_files: Callable[[str], str] | None = None,
) -> Iterator[Fields]:
    """Yield ``{"fname", "data"}`` for each member of an open tar archive.

    Only members of whole samples are yielded.

    Args:
        fileobj: A stream of bytes, compressed or not; it is read from its position, and stays open.
        skip_meta: Regular expression: members whose names begin so are left out.
        handler: Called with the error; the rest of the archive is given up.
        select_files: Function of a (renamed) member name: whether to read it.
        rename_files: Function applied to member names before all else.
    """
    name = str(getattr(fileobj, "name", "")) or "a stream"
    options = ShardOptions(rename_files=rename_files, select_files=select_files)
    for run in readable_runs(fileobj, name, handler, options):
        for member in run.members:
            if skip_meta is None or not re.match(skip_meta, member.name):
                yield {"fname": member.name, "data": member.data}


def tar_file_expander(
    data: Iterable[object],
    handler: Handler = reraise_exception,
    select_files: Callable[[str], bool] | None = None,
    rename_files: Callable[[str], str] | None = None,
    eof_value: object = {},
) -> Iterator[Fields]:
    """Yield ``{"fname", "data", "__url__"}`` for each member.

    Args:
        data: ``{"url", "stream"}``: the stream is read from its position; it stays open, but for one of a
            cache (with ``"local_path"``). Or URLs, paths, ``{"url": ...}``.
        handler: Called with the error: True gives up the rest of the shard.
        select_files: Function of a (renamed) member name: whether to read it.
        rename_files: Function applied to member names before all else.
        eof_value: Value to yield after each shard; None for nothing.
    """
    options = ShardOptions(rename_files=rename_files, select_files=select_files)
    stop = False

    def handle(error: Exception) -> bool:
        nonlocal stop
        stop = not handler(error)
        return not stop

    names: dict[str, str] = {}
    for opened, items in groupby(with_commands(data), key=lambda item: stream_in(item) is not None):
        if not opened:
            loader = AISFileLoader(
                as_pipe(readable(items, names, handle, local_files=False)),
                on_error=handle,
                select_files=select_files,
                rename_files=rename_files,
            )
            for url, run in loader.whole_runs():
                yield from _files(run, {"__url__": shown_url(names.get(url, url))}, eof_value)
        else:
            for item in items:
                more = {"__url__": shown_url(named_by(item))}
                if item.get("local_path") is not None:
                    more["__local_path__"] = item["local_path"]
                stream = item["stream"]
                try:
                    for run in readable_runs(stream, more["__url__"], handle, options):
                        yield from _files(run, more, eof_value)
                finally:
                    if "__local_path__" in more:
                        stream.close()  # opened by a cache, for whoever reads it
                if stop:
                    break
        if stop:
            return


def _files(run: Run, more: Fields, eof_value: Any) -> Iterator[Fields]:
    for member in run.members:
        yield {"fname": member.name, "data": member.data, **more}
    if run.last and eof_value is not None:
        yield eof_value


def group_by_keys(data: Iterable[Fields], handler: Handler = reraise_exception) -> Iterator[Sample]:
    """Group the members from `tar_file_expander` into samples.

    The end of a shard ends a sample, too. A sample with a field ``__bad__`` that is not empty is left out.
    """
    places: dict[str, str] = {}
    for sample in TarSampleGrouper(as_pipe(_members(data, places)), on_error=handler):
        path = places.get(sample["__url__"])
        if path is not None:
            sample["__local_path__"] = path
        if valid_sample(sample):
            yield sample


def _members(data: Iterable[Fields], places: dict[str, str]) -> Iterator[tuple[MemberPath, object]]:
    last: Fields | None = None

    def member(item: Fields, ends: str = "") -> tuple[MemberPath, Any]:
        return MemberPath.of(item["__url__"], item["fname"], -1, ends), item["data"]

    for item in data:
        if last is not None:
            yield member(last, "" if item else "shard")
        last = item or None
        if item and "__local_path__" in item:
            places[item["__url__"]] = item["__local_path__"]
    if last is not None:
        yield member(last)


def base_plus_ext(path: str) -> tuple[str, str] | tuple[None, None]:
    """Return key and field of a member name.

    Example:
        >>> base_plus_ext("d.x/cat.seg.PNG"), base_plus_ext("README")
        (('d.x/cat', 'seg.PNG'), (None, None))
    """
    parts = split_name(path)
    return (None, None) if parts is None else (parts[0], path[len(parts[0]) + 1 :])


def valid_sample(sample: object) -> bool:
    """Return whether `sample` is a dict with a field, not marked as bad."""
    return isinstance(sample, dict) and bool(sample) and not sample.get("__bad__")


__getattr__ = explaining(__name__)
