"""The filters: what stands between the shards and the batches.

Each is one of the stages of `torchdata_ais.pipes` under webdataset's name and with its arguments. As there, ``_map`` is
the plain function of ``map``, and so on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from torchdata_ais import pipes
from torchdata_ais.errors import MissingFieldError, UsageError
from torchdata_ais.pipes.to_tuple import first_field
from torchdata_ais.stage.each_item import EachItem
from torchdata_ais.stage.place import require_dict
from torchdata_ais.webdataset import collation
from torchdata_ais.webdataset.currying import FilterFunction, RandomFilter, Through, pipelinefilter
from torchdata_ais.webdataset.handlers import reraise_exception
from torchdata_ais.webdataset.left_out import missing
from torchdata_ais.webdataset.shuffling import detshuffle, shuffle, shuffled
from torchdata_ais.webdataset.utils import PipelineStage, identity

__all__ = [
    "Cached",
    "FilterFunction",
    "MissingKeyError",
    "associate",
    "batched",
    "decode",
    "default_collation_fn",
    "detshuffle",
    "extract_keys",
    "getfirst",
    "identity",
    "info",
    "listed",
    "log_keys",
    "map",
    "map_dict",
    "map_tuple",
    "pick",
    "pipelinefilter",
    "rename",
    "rename_keys",
    "reraise_exception",
    "resampled",
    "rsample",
    "select",
    "shuffle",
    "slice",
    "to_tuple",
    "transform_with",
    "unbatched",
    "unlisted",
    "xdecode",
]

default_collation_fn = collation.default_collation_fn

_MISSING = object()


class MissingKeyError(MissingFieldError, KeyError):
    """A field that a function of `map_dict` is for is not there; also a KeyError, as in webdataset."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class _DictMapper(pipes.DictMapper):
    def _one(self, item: Any) -> dict[str, Any]:
        try:
            return super()._one(item)
        except MissingFieldError as error:
            raise MissingKeyError(error.what, todo=error.todo, place=error.place) from error


class _TupleMaker(EachItem):
    """Pick fields of each sample as a tuple; a missing field, and a None, is an error unless it is allowed.

    Args:
        source: Samples.
        *specs: Field names, with alternatives ``"jpg;png"``. One string with spaces is several.
        missing_is_error: False gives None for a missing field.
        none_is_error: Whether a None is an error; default: as `missing_is_error` says.
        on_error: See `torchdata_ais.pipes`; webdataset's ``handler=``.
        max_errors: How many samples to give up.
    """

    functional_name = "to_tuple"

    def __init__(
        self,
        source: Any,
        *specs: Any,
        missing_is_error: bool = True,
        none_is_error: bool | None = None,
        on_error: Any = "raise",
        max_errors: float | None = None,
    ) -> None:
        super().__init__(source, on_error, max_errors)
        self._specs = tuple(specs[0].split()) if len(specs) == 1 else specs
        self._missing_is_error = missing_is_error
        self._none_is_error = missing_is_error if none_is_error is None else none_is_error

    def _one(self, item: Any) -> tuple[Any, ...]:
        sample = require_dict(item, "to_tuple")
        values = tuple(getfirst(sample, spec, _MISSING, self._missing_is_error) for spec in self._specs)
        if self._none_is_error:
            for spec, value in zip(self._specs, values, strict=True):
                if value is None or value is _MISSING:
                    raise MissingFieldError.at(
                        f"the field {spec!r} of the sample {sample.get('__key__')!r} is None",
                        todo="allow it with none_is_error=False",
                        key=sample.get("__key__"), url=sample.get("__url__"), field=spec,
                    )  # fmt: skip
        return tuple(None if value is _MISSING else value for value in values)


def getfirst(
    a: Mapping[str, Any], keys: str | Sequence[str], default: Any = None, missing_is_error: bool = True
) -> Any:
    """Return the first field of `a` that `keys` names: a list, or a string with ``;`` between them.

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


def transform_with(sample: Sequence[Any], transformers: Sequence[Callable[[Any], Any] | None] | None) -> Any:
    """Return `sample` with the first function applied to its first value, and so on; None leaves a value."""
    if not transformers:
        return sample
    if len(transformers) > len(sample):
        raise UsageError.at(f"{len(transformers)} functions for {len(sample)} values")
    rest = [None] * (len(sample) - len(transformers))
    return [v if f is None else f(v) for v, f in zip(sample, [*transformers, *rest], strict=True)]


def _spec(names: Any) -> str:
    return names if isinstance(names, str) else ";".join(names)


def _joined(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    named.update({new: _spec(old) for new, old in named.items() if isinstance(old, (list, tuple))})
    return tuple(_spec(arg) for arg in args)


def _nothing(name: str, data: bytes) -> None:
    """Decode nothing: where no image spec is named, images stay bytes."""
    del name, data


def _decoding(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    del named
    return args or (_nothing,)


def _no_extras(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    named.clear()
    return args


def _log_keys(data: Iterable[Any], logfile: str | None = None) -> Iterator[Any]:
    """Append the number and the key of each sample to a file."""
    if not logfile:
        yield from data
        return
    with Path(logfile).open("a", buffering=1) as stream:
        for number, sample in enumerate(data):
            stream.write(f"{number}\t{sample.get('__key__')}\n")
            yield sample


def _listed(data: Iterable[Any], batchsize: int = 20, partial: bool = True) -> Iterator[Any]:
    return collation.batched(data, batchsize, None, partial)


class Cached(PipelineStage):
    """Keep the items of the first whole pass in memory, and yield them again in later ones.

    Memory:
        All items, in each worker. For shards of a far cluster ``cache_dir=`` keeps files instead.
    """

    def __init__(self) -> None:
        self.cached: list[Any] | None = None

    def run(self, source: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of `source`, or those kept."""
        if self.cached is not None:
            yield from self.cached
            return
        items = []
        for item in source:
            items.append(item)
            yield item
        self.cached = items


_map = Through(pipes.SampleMapper, "map")
_map_dict = Through(_DictMapper, "map_dict")
_map_tuple = Through(pipes.TupleMapper, "map_tuple")
_to_tuple = Through(_TupleMaker, "to_tuple", _joined)
_rename = Through(pipes.Renamer, "rename", _joined)
_rename_keys = Through(pipes.KeyRenamer, "rename_keys")
_extract_keys = Through(pipes.KeyExtractor, "extract_keys")
_select = Through(pipes.Selector, "select")
_decode = Through(pipes.SampleDecoder, "decode", _decoding)
_xdecode = Through(pipes.StreamDecoder, "xdecode")
_associate = Through(pipes.Associator, "associate", _no_extras)
_info = Through(pipes.InfoPrinter, "info")
_slice = Through(pipes.Slicer, "slice")
_unbatched = Through(pipes.Unbatcher, "unbatched")
_unlisted = Through(pipes.Unlister, "unlisted")
_rsample = Through(pipes.Subsampler, "rsample", draws_per_worker=False)
_resampled = Through(pipes.Resampler, "resampled")
_shuffle, _batched = shuffled, collation.batched


def pick(buf: list[Any], rng: random.Random) -> Any:
    """Take an item out of a list at random; the last one takes its place."""
    place = rng.randrange(len(buf))
    buf[place], buf[-1] = buf[-1], buf[place]
    return buf.pop()


map = pipelinefilter(_map)  # noqa: A001 - webdataset's name
map_dict = pipelinefilter(_map_dict)
map_tuple = pipelinefilter(_map_tuple)
to_tuple = pipelinefilter(_to_tuple)
rename = pipelinefilter(_rename)
rename_keys = pipelinefilter(_rename_keys)
extract_keys = pipelinefilter(_extract_keys)
select = pipelinefilter(_select)
decode = pipelinefilter(_decode)
xdecode = pipelinefilter(_xdecode)
associate = pipelinefilter(_associate)
info = pipelinefilter(_info)
slice = pipelinefilter(_slice)  # noqa: A001 - webdataset's name
batched = pipelinefilter(_batched)
unbatched = pipelinefilter(_unbatched)
listed = pipelinefilter(_listed)
unlisted = pipelinefilter(_unlisted)
log_keys = pipelinefilter(_log_keys)
rsample = RandomFilter(_rsample)
resampled = RandomFilter(_resampled)


def __getattr__(name: str) -> NoReturn:
    raise missing(__name__, name)
