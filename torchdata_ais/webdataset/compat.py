"""WebDataset."""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import Self

from torchdata_ais._util.arguments import check_number, checked
from torchdata_ais.errors import UsageError
from torchdata_ais.reading.open_shard import Safety
from torchdata_ais.store import Cluster, ObjectCache, Retry
from torchdata_ais.webdataset import filters
from torchdata_ais.webdataset.cache import FileKeeper
from torchdata_ais.webdataset.currying import without_example
from torchdata_ais.webdataset.handlers import Handler, reraise_exception
from torchdata_ais.webdataset.pipeline import DataPipeline
from torchdata_ais.webdataset.shardlists import (
    ResampledShards,
    SimpleShardList,
    single_node_only,
    split_by_worker,
)
from torchdata_ais.webdataset.shuffling import detshuffle as _detshuffle
from torchdata_ais.webdataset.shuffling import shuffle as _shuffle
from torchdata_ais.webdataset.tariterators import tarfile_to_samples
from torchdata_ais.webdataset.utils import Place, pytorch_worker_info


class EmptyCheck:
    """Pass samples on; without any, raise with numbers of shards and workers.

    Example:
        >>> list(EmptyCheck(3)(["a", "b"]))
        ['a', 'b']
    """

    __name__ = "check_empty"

    def __init__(self, shards: int | None = None) -> None:
        self._shards = shards

    def __call__(self, source: Iterable[object]) -> Iterator[Any]:
        """Yield the items of `source`."""
        empty = True
        for item in source:
            empty = False
            yield item
        if empty:
            raise self._error(pytorch_worker_info())

    def _error(self, place: Place) -> UsageError:
        readers = place.world_size * place.num_workers
        who = f"worker {place.worker} of rank {place.rank}" if readers > 1 else "the data set"
        ranks = place.world_size if place.world_size > 1 else None
        there = {"shard": self._shards, "rank": ranks, "worker": place.num_workers}
        counted = [f"{n} {what}{'' if n == 1 else 's'}" for what, n in there.items() if n is not None]
        if self._shards is not None and self._shards < readers:
            todo = "use no more workers than there are shards, or let it have none with empty_check=False"
        else:
            todo = "check what the shards hold and what handler= and select_files= leave out, or pass empty_check=False"
        return UsageError.at(f"{who} has no sample at all: {', '.join(counted)}", todo=todo)


check_empty = EmptyCheck()


logger = logging.getLogger("torchdata_ais")

_FILTERS = (
    "map map_dict map_tuple to_tuple rename rename_keys extract_keys select decode xdecode associate info slice rsample"
    " batched unbatched listed unlisted log_keys detshuffle"
)


class FluidInterface:
    """The filters as methods.

    Each returns a copy of the dataset with one more stage.
    ``map map_dict map_tuple to_tuple rename rename_keys extract_keys select decode xdecode associate info slice rsample
    batched unbatched listed unlisted log_keys shuffle detshuffle mcached``, with the arguments of the filters.
    """

    if TYPE_CHECKING:

        def compose(self, *args: object) -> Self: ...  # noqa: D102 - of DataPipeline

        def __getattr__(self, name: str) -> Callable[..., Self]: ...

    @checked
    def shuffle(
        self,
        size: int = 1000,
        initial: int = 100,
        *,
        bufsize: int | None = None,
        rng: random.Random | None = None,
        seed: object = None,
        handler: Handler | None = None,
    ) -> Self:
        """Shuffle through a buffer of `size` items; below 1 nothing is done."""
        size = size if bufsize is None else bufsize
        return self if size < 1 else self.compose(_shuffle(size, initial, rng, seed, handler))

    def mcached(self) -> Self:
        """Keep the items of the first pass in memory."""
        return self.compose(filters.Cached())


def _method(name: str) -> Callable[..., object]:
    make = getattr(filters, name)

    def method(self: Any, *args: object, **named: object) -> Any:
        return self.compose(make(*args, **named))

    of = inspect.signature(make)
    owner = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = of.replace(parameters=[owner, *of.parameters.values()])  # type: ignore[attr-defined]
    method.__name__, method.__qualname__ = name, f"FluidInterface.{name}"
    method.__doc__ = without_example(make)
    return method


for _name in _FILTERS.split():
    setattr(FluidInterface, _name, _method(_name))


class FluidWrapper(DataPipeline, FluidInterface):
    """Any iterable, dataset or loader with the filters as methods.

    Example:
        >>> list(FluidWrapper([1, 2, 3]).batched(2, collation_fn=None))
        [[1, 2], [3]]
    """

    def __init__(self, initial: object) -> None:
        super().__init__()
        self.append(initial)


def behind(source: object, stage: object) -> DataPipeline:
    """Return a dataset of what a stage makes of any iterable."""
    pipeline = source if isinstance(source, DataPipeline) else FluidWrapper(source)
    return pipeline.compose(stage)


class Processor:
    """A filter to put after a dataset, as webdataset's README writes it.

    Example:
        >>> list(Processor(filters.map, str)([1, 2]))
        ['1', '2']
    """

    # As webdataset has it: what the filter takes is not known here.
    def __init__(self, make: Callable[..., object], *args: object, **named: object) -> None:
        self._stage = make(*args, **named)

    def __call__(self, source: object) -> DataPipeline:
        """Return a dataset of what the filter makes of `source`."""
        return behind(source, self._stage)


class WebLoader(DataPipeline, FluidInterface):
    """torch's `DataLoader` with the filters as methods.

    Stages after it run in the main process.

    Args:
        *args, **named: As for `torch.utils.data.DataLoader`.

    Example:
        >>> from torchdata_ais.testing import example_shards
        >>> dataset = WebDataset(example_shards()).decode().to_tuple("cls").batched(2)
        >>> sorted(n for (batch,) in WebLoader(dataset, batch_size=None).unbatched().batched(4) for n in batch.tolist())
        [0, 1, 2, 3, 4, 5]
    """

    __signature__ = inspect.signature(DataLoader)

    # As webdataset has it: the arguments are those of torch's class, in each of its versions.
    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(DataLoader(*args, **named))


class WebDataset(DataPipeline, FluidInterface):
    """The samples of shards, as a dataset with the filters as methods.

    Shards are split over the workers of a loader and, if asked for, over ranks; shuffled, in a new order in each
    epoch; read, checked to their ends, and grouped into whole samples.

    Args:
        urls: Text: brace templates joined by ``::``, a bucket, a folder; or a list; or a pipe or dataset of shards
            (`torchdata_ais.AISSourceLister`), as strings or ``{"url": ...}``.
        handler: Called with what goes wrong in reading; see `tarfile_samples`.
        mode: ``"resampled"`` is the same as `resampled`.
        resampled: Draw shards at random, with replacement, without end; each worker of each rank for itself.
        repeat: No effect, as in webdataset; call `.repeat()`.
        shardshuffle: Shards in the buffer that shuffles them; True is 100; None, False and 0 keep their order.
        cache_size: Most bytes in `cache_dir`; -1 for no limit, 0 for no cache.
        cache_dir: An existing folder to keep shards in.
        url_to_name: No effect: a cached shard is named by object, version and checksum.
        detshuffle: Whether workers and ranks shuffle shards in the same way.
        nodesplitter: How ranks share the shards: by default they must not be several; ``wds.split_by_node``; a function
            of yours; or None, if each rank has different shards.
        workersplitter: How workers share the shards; None gives each of them all.
        select_files: Function of a member name: whether to read it.
        rename_files: Function applied to member names before all else.
        empty_check: Whether a worker without any sample is an error.
        verbose: No effect.
        seed: For `shardshuffle` and `resampled`.
        adjacent: A key that comes back later in its shard is an error, or a separate sample (``"split"``).
        require: Fields that every sample must have.
        cache: `torchdata_ais.store.ObjectCache`, to keep whole shards in a folder; of web files, too.
        open_shards, prefetch_bytes, retry, max_errors, safety: As in `torchdata_ais.AISFileLoader`.
        cluster: See `torchdata_ais.store.Cluster`.

    Yields:
        `Sample`: a dict ``{"__key__": str, "__url__": str, field: bytes, ...}``.

    Raises:
        UsageError: No shards; several ranks and nothing to split over them. Others: see `tarfile_samples`.

    Example:
        >>> from torchdata_ais.testing import example_shards
        >>> dataset = WebDataset(example_shards(), shardshuffle=10).shuffle(100).decode().to_tuple("cls", "txt")
        >>> sorted(dataset)[:3]
        [(0, ''), (1, 'x'), (2, 'xx')]
    """

    _adds_split = False

    @checked
    def __init__(
        self,
        urls: object,
        handler: Handler = reraise_exception,
        mode: str | None = None,
        resampled: bool = False,
        repeat: bool = False,
        shardshuffle: int | bool | None = None,
        cache_size: float = -1,
        cache_dir: object = None,
        url_to_name: object = None,
        detshuffle: bool = False,
        nodesplitter: object = single_node_only,
        workersplitter: object = split_by_worker,
        select_files: Callable[[str], bool] | None = None,
        rename_files: Callable[[str], str] | None = None,
        empty_check: bool = True,
        verbose: bool = False,
        seed: object = None,
        *,
        adjacent: Literal["error", "split"] = "error",
        require: str = "",
        cache: ObjectCache | None = None,
        open_shards: int = 1,
        prefetch_bytes: int | None = None,
        retry: Retry | None = None,
        max_errors: float | None = None,
        cluster: Cluster = None,
        safety: Safety | None = None,
    ) -> None:
        super().__init__()
        if mode not in (None, "resampled"):
            raise UsageError.at(f"mode={mode!r}", todo='use "resampled" or None')
        resampled = resampled or mode == "resampled"
        _say_ignored(repeat=repeat, url_to_name=url_to_name, verbose=verbose)
        if isinstance(urls, IterableDataset) and not resampled:
            self.append(urls)
        elif resampled:
            self.append(ResampledShards(urls, deterministic=seed is not None, seed=seed))
        else:
            self.append(SimpleShardList(urls))
        if not resampled:
            self.pipeline += [splitter for splitter in (nodesplitter, workersplitter) if splitter]
            size = 100 if shardshuffle is True else shardshuffle or 0
            check_number(size, 0, "shardshuffle")
            if size > 0:
                self.append(_detshuffle(size, seed=seed) if detshuffle else _shuffle(size, seed=seed))
        if cache_dir is not None and cache_size != 0:
            if cache is not None:
                raise UsageError.at("both cache= and cache_dir= were given", todo="pass one of them")
            cache = _cache(cache_dir, cache_size)
        self.append(
            tarfile_to_samples(
                handler=handler,
                select_files=select_files,
                rename_files=rename_files,
                local_path=True,
                adjacent=adjacent,
                require=require,
                cache=cache,
                open_shards=open_shards,
                prefetch_bytes=prefetch_bytes,
                retry=retry,
                max_errors=max_errors,
                cluster=cluster,
                safety=safety,
            )
        )
        if empty_check:
            listed = self.pipeline[0]
            shards = len(listed.urls) if isinstance(listed, SimpleShardList) else None
            self.append(EmptyCheck(shards))


def _cache(folder: Any, size: float) -> FileKeeper:
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise UsageError.at(f"the folder {path} for the cache does not exist", todo="make it first")
    return FileKeeper(str(path), 1 << 62 if size < 0 else int(size))


def _say_ignored(**arguments: object) -> None:
    for name, value in arguments.items():
        if value:
            logger.warning("WebDataset(%s=%r) has no effect, as in webdataset", name, value)
