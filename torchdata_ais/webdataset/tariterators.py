"""Shards to samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from torchdata_ais.pipes import AISFileLoader, TarSampleGrouper
from torchdata_ais.pipes._load_state import url_of
from torchdata_ais.pipes._pipe import as_pipe
from torchdata_ais.samples import Sample, split_name
from torchdata_ais.urls import MemberPath, parse_url
from torchdata_ais.webdataset.currying import pipelinefilter
from torchdata_ais.webdataset.gopen import direct_url
from torchdata_ais.webdataset.handlers import Handler, reraise_exception

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
        src: Shards: ``{"url": ...}`` or plain URLs and paths.
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
    loader = AISFileLoader(
        as_pipe(map(direct, src)),
        on_error=handler,
        select_files=select_files,
        rename_files=rename_files,
        **loading,
    )
    for sample in TarSampleGrouper(loader, adjacent=adjacent, require=require, on_error=handler):
        if local_path and parse_url(sample["__url__"]).kind == "file":
            sample["__local_path__"] = parse_url(sample["__url__"]).name
        if valid_sample(sample):
            yield sample


tarfile_to_samples = pipelinefilter(tarfile_samples)


def direct(item: Any) -> str:
    """Return the URL in `item` as it can be read; keeps what a listing knew of it."""
    url = os.fspath(item) if isinstance(item, os.PathLike) else url_of(item)
    return direct_url(url)


# The single steps, for programs that put them together by themselves.


def url_opener(
    data: Iterable[Any], handler: Handler = reraise_exception, **named: Any
) -> Iterator[dict[str, Any]]:
    """Yield ``{"url": ...}``; the shard is opened by `tar_file_expander`, which can go on after a broken line."""
    del handler, named
    for item in data:
        yield {"url": direct(item)}


def tar_file_expander(
    data: Iterable[Any],
    handler: Handler = reraise_exception,
    select_files: Callable[[str], bool] | None = None,
    rename_files: Callable[[str], str] | None = None,
    eof_value: Any = {},  # noqa: B006 - webdataset's mark for the end of a shard; never changed
) -> Iterator[dict[str, Any]]:
    """Yield ``{"fname", "data", "__url__"}`` for each member, and `eof_value` behind each shard."""
    loader = AISFileLoader(
        as_pipe(map(direct, data)), on_error=handler, select_files=select_files, rename_files=rename_files
    )
    for url, run in loader.whole_runs():
        for member in run.members:
            yield {"fname": member.name, "data": member.data, "__url__": url}
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
