"""The filters: stages between the shards and the batches.

Each is one of the stages of `torchdata_ais.pipes` under webdataset's name and with its arguments. As there, ``_map`` is
the plain function of ``map``, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchdata_ais import pipes
from torchdata_ais._util.arguments import check_function, check_number
from torchdata_ais.errors import MissingFieldError, UsageError
from torchdata_ais.pipes.batched import listed as lists_of
from torchdata_ais.pipes.fields import first_field
from torchdata_ais.samples import Fields
from torchdata_ais.webdataset.currying import AlikeRandomStage, RandomStage, through
from torchdata_ais.webdataset.currying import FilterFunction as FilterFunction
from torchdata_ais.webdataset.currying import pipelinefilter as pipelinefilter
from torchdata_ais.webdataset.handlers import Handler, handled
from torchdata_ais.webdataset.handlers import reraise_exception as reraise_exception
from torchdata_ais.webdataset.left_out import explaining
from torchdata_ais.webdataset.shuffling import detshuffle as detshuffle
from torchdata_ais.webdataset.shuffling import pick as pick
from torchdata_ais.webdataset.shuffling import shuffle as shuffle
from torchdata_ais.webdataset.shuffling import shuffled
from torchdata_ais.webdataset.utils import PipelineStage
from torchdata_ais.webdataset.utils import identity as identity


def default_collation_fn(
    samples: Sequence[Any], combine_tensors: bool = True, combine_scalars: bool = True
) -> Any:
    """Make one batch of samples.

    Numbers become numpy arrays, tensors and arrays are stacked, and others become lists.

    Args:
        samples: Dicts with the same fields, or tuples (lists) of the same length; at least one.
        combine_tensors: Whether to stack tensors and arrays; else they become a list.
        combine_scalars: Whether numbers become a numpy array.

    Returns:
        A dict of columns for dicts, else a tuple of columns.

    Raises:
        UsageError: Samples that do not fit together; names the column.

    Example:
        >>> default_collation_fn([(1, "a"), (2, "b")])
        (array([1, 2]), ['a', 'b'])
    """
    rows = [row if isinstance(row, Mapping) else dict(enumerate(row)) for row in samples]
    if any(row.keys() != rows[0].keys() for row in rows):
        raise UsageError.at(
            f"samples with different fields cannot make one batch: {sorted({tuple(row) for row in rows})[:3]}",
            todo='pick the fields first, with .to_tuple("jpg;png", "cls")',
        )
    columns = {
        name: _combined([row[name] for row in rows], combine_tensors, combine_scalars, str(name))
        for name in rows[0]
    }
    return columns if isinstance(samples[0], Mapping) else tuple(columns.values())


def _combined(values: Sequence[Any], combine_tensors: bool, combine_scalars: bool, name: str) -> Any:
    """Return one column of `values`."""
    first = values[0]
    if isinstance(first, (int, float, np.number, np.bool_)):
        return np.array(values) if combine_scalars else values
    if not isinstance(first, (torch.Tensor, np.ndarray)):
        return list(values)
    if not combine_tensors:
        return values
    shapes = {tuple(value.shape) for value in values}
    if len(shapes) > 1:
        raise UsageError.at(
            f"arrays of different shapes cannot make one batch: {sorted(shapes)[:4]} in column {name!r}",
            todo='give images one size, for example with .decode("torchrgb8", size=224)',
        )
    return torch.stack(list(values)) if isinstance(first, torch.Tensor) else np.array(values)


def _batched(
    data: Iterable[object],
    batchsize: int = 20,
    collation_fn: Callable[[list[Any]], object] | None = default_collation_fn,
    partial: bool = True,
    handler: Handler = reraise_exception,
) -> Iterator[Any]:
    """Put `batchsize` items together.

    Each worker has a smaller last batch, unless `partial` is False.

    Args:
        data: The items.
        batchsize: Items in a batch.
        collation_fn: Makes a batch of a list of items; None leaves the list.
        partial: Whether to yield the last batch when it is smaller.
        handler: Called with what `collation_fn` raises; True gives up that batch.
    """
    check_number(batchsize, 1, "batchsize")
    lists = lists_of(data, batchsize, partial)
    if collation_fn is None:
        return lists
    check_function(collation_fn, 1, "batched(collation_fn=)")
    return handled(lists, collation_fn, handler, "batched")


class MissingKeyError(MissingFieldError, KeyError):
    """A field for a function of `map_dict` is missing: a KeyError as well."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class _DictMapper(pipes.DictMapper):
    def _one(self, item: object) -> Fields:
        try:
            return super()._one(item)
        except MissingFieldError as error:
            raise MissingKeyError(error.what, todo=error.todo, place=error.place) from error


def getfirst(
    a: Mapping[str, object], keys: str | Sequence[str], default: object = None, missing_is_error: bool = True
) -> Any:
    """Return the first field of `a` that `keys` names.

    `keys` is a list, or a string with ``;`` between them.

    Example:
        >>> getfirst({"png": 1}, "jpg;png"), getfirst({}, "jpg", 0, missing_is_error=False)
        (1, 0)
    """
    try:
        return first_field(a, _spec(keys))
    except MissingFieldError:
        if missing_is_error:
            raise
        return default


def transform_with(
    sample: Sequence[object], transformers: Sequence[Callable[[Any], object] | None] | None
) -> Any:
    """Return `sample` with the first function applied to its first value.

    And so on; None leaves a value.
    """
    if not transformers:
        return sample
    if len(transformers) > len(sample):
        raise UsageError.at(f"{len(transformers)} functions for {len(sample)} values")
    rest = [None] * (len(sample) - len(transformers))
    return [v if f is None else f(v) for v, f in zip(sample, [*transformers, *rest], strict=True)]


def _spec(names: Any) -> str:
    return names if isinstance(names, str) else ";".join(names)


def _joined(args: tuple[object, ...], named: dict[str, Any]) -> tuple[object, ...]:
    named.update({new: _spec(old) for new, old in named.items() if isinstance(old, (list, tuple))})
    return tuple(_spec(arg) for arg in args)


def _nothing(name: str, data: bytes) -> None:
    """Decode nothing: where no image spec is named, images stay bytes."""
    del name, data


def _fields(args: tuple[object, ...], named: dict[str, Any]) -> tuple[object, ...]:
    if named.get("none_is_error") is None:
        named["none_is_error"] = named.get("missing_is_error", True)
    return _joined(args, named)


def _decoding(args: tuple[object, ...], named: dict[str, Any]) -> tuple[object, ...]:
    del named
    return args or (_nothing,)


def _no_extras(args: tuple[object, ...], named: dict[str, Any]) -> tuple[object, ...]:
    named.clear()
    return args


def _log_keys(data: Iterable[Any], logfile: str | None = None) -> Iterator[object]:
    """Append the number and the key of each sample to a file."""
    if not logfile:
        yield from data
        return
    with Path(logfile).open("a", buffering=1) as stream:
        for number, sample in enumerate(data):
            stream.write(f"{number}\t{sample.get('__key__')}\n")
            yield sample


class Cached(PipelineStage):
    """Keep the items of the first whole pass in memory.

    Later passes yield them again.

    Memory:
        All items, in each worker. For shards of a far cluster ``cache_dir=`` keeps files instead.
    """

    def __init__(self) -> None:
        self.cached: list[Any] | None = None

    def run(self, source: Iterable[object]) -> Iterator[Any]:
        """Yield the items of `source`, or those kept."""
        if self.cached is not None:
            yield from self.cached
            return
        items = []
        for item in source:
            items.append(item)
            yield item
        self.cached = items


_map, map = through(pipes.SampleMapper, "map")  # noqa: A001 - webdataset's name
_map_dict, map_dict = through(_DictMapper, "map_dict")
_map_tuple, map_tuple = through(pipes.TupleMapper, "map_tuple")
_to_tuple, to_tuple = through(pipes.TupleMaker, "to_tuple", _fields)
_rename, rename = through(pipes.Renamer, "rename", _joined)
_rename_keys, rename_keys = through(pipes.KeyRenamer, "rename_keys")
_extract_keys, extract_keys = through(pipes.KeyExtractor, "extract_keys")
_select, select = through(pipes.Selector, "select")
_decode, decode = through(pipes.SampleDecoder, "decode", _decoding)
_xdecode, xdecode = through(pipes.StreamDecoder, "xdecode")
_associate, associate = through(pipes.Associator, "associate", _no_extras)
_info, info = through(pipes.InfoPrinter, "info")
_slice, slice = through(pipes.Slicer, "slice")  # noqa: A001 - webdataset's name
_unbatched, unbatched = through(pipes.Unbatcher, "unbatched")
_unlisted, unlisted = through(pipes.Unlister, "unlisted")
_rsample, rsample = through(pipes.Subsampler, "rsample", stage=AlikeRandomStage)
_resampled, resampled = through(pipes.Resampler, "resampled", stage=RandomStage)
_shuffle, _listed = shuffled, lists_of
batched = pipelinefilter(_batched)
listed = pipelinefilter(_listed)
log_keys = pipelinefilter(_log_keys)


__getattr__ = explaining(__name__)
