"""Shards to samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Literal

from torchdata_ais.pipes import AISFileLoader, TarSampleGrouper
from torchdata_ais.pipes._load_state import url_of
from torchdata_ais.pipes._pipe import as_pipe
from torchdata_ais.samples import Sample, split_name
from torchdata_ais.store import resolve_options
from torchdata_ais.urls import MemberPath, parse_url, shown_url
from torchdata_ais.webdataset.commands import Command, readable
from torchdata_ais.webdataset.currying import pipelinefilter
from torchdata_ais.webdataset.errors import as_read_errors
from torchdata_ais.webdataset.handlers import Handler, reraise_exception
from torchdata_ais.webdataset.keeping import FileKeeper, kept_web_files

__all__ = [
    "base_plus_ext",
    "group_by_keys",
    "tar_file_expander",
    "tarfile_samples",
    "tarfile_to_samples",
    "url_opener",
    "valid_sample",
]


def tarfile_samples(
    src: Iterable[Any],
    handler: Handler = reraise_exception,
    select_files: Callable[[str], bool] | None = None,
    rename_files: Callable[[str], str] | None = None,
    *,
    adjacent: Literal["error", "split"] = "error",
    require: str = "",
    local_path: bool = False,
    **loading: Any,
) -> Iterator[Sample]:
    """Yield the samples of shards, only whole ones.

    Args:
        src: Shards: ``{"url": ...}`` or plain URLs and paths. A path, ``file://`` and ``pipe:cat`` name any file that
            the process may read, unless `utils.enforce_security` (``WDS_SECURE=1``) is set.
        handler: Called with what goes wrong. True goes on: without the rest of a shard that cannot be read, without
            a sample that is wrong in itself.
        select_files: Function of a (renamed) member name: whether to read it.
        rename_files: Function applied to member names before all else.
        adjacent: A key that comes back later in its shard is an error, or a sample of its own (``"split"``).
        require: Fields that every sample must have.
        local_path: Whether samples of local files say where theirs is, as ``__local_path__``.
        **loading: Further arguments of `torchdata_ais.AISFileLoader`: ``open_shards prefetch_bytes retry require_end
            max_errors cache_dir cache_bytes endpoint client token options ...``.

    Yields:
        `Sample`: a dict ``{"__key__": str, "__url__": str, field: bytes, ...}``. One with a field ``__bad__`` that is
        not empty is left out.
    """
    names: dict[str, str] = {}
    shards = readable(src, names, handler, loading.get("open_shards", 1), local_path)
    if loading.get("cache_dir") is not None:
        keeper = FileKeeper(os.fspath(loading["cache_dir"]), loading.get("cache_bytes", 10 << 30))
        shards = kept_web_files(shards, keeper, loading.get("options") or resolve_options(), names, handler)
    first = next(shards, None)
    if first is None:
        return
    loader = AISFileLoader(
        as_pipe(chain([first], shards)),
        on_error=as_read_errors(handler),
        select_files=select_files,
        rename_files=rename_files,
        **loading,
    )
    shard = name = ""
    path: str | None = None
    for sample in TarSampleGrouper(loader, adjacent=adjacent, require=require, on_error=handler):
        if sample["__url__"] != shard:
            shard = sample["__url__"]
            name = names.get(shard, shard)
            is_file = parse_url(shard).kind == "file" and not isinstance(name, Command)
            path = parse_url(shard).name if local_path and is_file else None
        sample["__url__"] = _shown(name)
        if path is not None:
            sample["__local_path__"] = path
        if valid_sample(sample):
            yield sample


def _shown(name: str) -> str:
    return name if isinstance(name, Command) else shown_url(name)


tarfile_to_samples = pipelinefilter(tarfile_samples)


# The single steps, for programs that put them together by themselves.


def url_opener(
    data: Iterable[Any], handler: Handler = reraise_exception, **named: Any
) -> Iterator[dict[str, Any]]:
    """Yield ``{"url": ...}``; the shard is opened by `tar_file_expander`, which can go on after a broken line."""
    del handler, named
    for item in data:
        yield {"url": url_of(item)}


def tar_file_expander(
    data: Iterable[Any],
    handler: Handler = reraise_exception,
    select_files: Callable[[str], bool] | None = None,
    rename_files: Callable[[str], str] | None = None,
    eof_value: Any = {},  # noqa: B006 - webdataset's mark for the end of a shard; never changed
) -> Iterator[dict[str, Any]]:
    """Yield ``{"fname", "data", "__url__"}`` for each member, and `eof_value` behind each shard."""
    names: dict[str, str] = {}
    loader = AISFileLoader(
        as_pipe(readable(data, names, handler, local_files=False)),
        on_error=as_read_errors(handler),
        select_files=select_files,
        rename_files=rename_files,
    )
    for url, run in loader.whole_runs():
        for member in run.members:
            yield {"fname": member.name, "data": member.data, "__url__": _shown(names.get(url, url))}
        if run.last and eof_value is not None:
            yield eof_value


def group_by_keys(data: Iterable[dict[str, Any]], handler: Handler = reraise_exception) -> Iterator[Sample]:
    """Group the members that `tar_file_expander` gives into samples."""
    members = ((MemberPath.of(item["__url__"], item["fname"], -1), item["data"]) for item in data if item)
    return iter(TarSampleGrouper(as_pipe(members), on_error=handler))


def base_plus_ext(path: str) -> tuple[str, str] | tuple[None, None]:
    """Return key and field of a member name.

    Example:
        >>> base_plus_ext("d.x/cat.seg.PNG"), base_plus_ext("README")
        (('d.x/cat', 'seg.PNG'), (None, None))
    """
    parts = split_name(path)
    return (None, None) if parts is None else (parts[0], path[len(parts[0]) + 1 :])


def valid_sample(sample: Any) -> bool:
    """Return whether `sample` is a dict with something in it, not marked as bad."""
    return isinstance(sample, dict) and bool(sample) and not sample.get("__bad__")
