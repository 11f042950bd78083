"""DataPipeline."""

from __future__ import annotations

import copy
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NoReturn

from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import Self

from torchdata_ais._util.arguments import checked
from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.base.pickle_check import received, sendable
from torchdata_ais.pipes.base.policy import trimmed
from torchdata_ais.pipes.base.seed import seed_shufflers
from torchdata_ais.pipes.base.torch_pipes import IterDataPipe, copy_pipe
from torchdata_ais.pipes.base.torch_stages import stage_of
from torchdata_ais.pipes.base.upstream import upstream
from torchdata_ais.pipes.repeated import passes
from torchdata_ais.store import StoreOptions
from torchdata_ais.webdataset import filters
from torchdata_ais.webdataset.cache import StreamingOpen
from torchdata_ais.webdataset.commands import with_commands
from torchdata_ais.webdataset.currying import Stage
from torchdata_ais.webdataset.left_out import explaining
from torchdata_ais.webdataset.shardlists import (
    SimpleShardList,
    single_node_only,
    split_by_node,
    split_by_worker,
)
from torchdata_ais.webdataset.shuffling import shuffle
from torchdata_ais.webdataset.tariterators import tar_file_expander, tarfile_samples, url_opener
from torchdata_ais.webdataset.utils import PipelineStage, Place, pytorch_worker_info, run_seed

logger = logging.getLogger("torchdata_ais")

SPLITS = (split_by_node, split_by_worker, single_node_only)
"""Stages that get the number of this process."""

_RESAMPLED = (filters.resampled.f,)
_OWN = __name__.rpartition(".")[0]


def plan(stages: Sequence[object], place: Place, *, split: bool) -> list[Any]:
    """Return the stages in the order to carry them out.

    Splits go before the random stages right in front of them: each process draws for itself, and a split of
    different orders would lose shards and double others. A missing split by worker is added if `split`.
    """
    planned = list(stages)
    end = next((i for i, stage in enumerate(planned) if function_of(stage) is tarfile_samples), -1)
    if split and end > 0 and _reads_all(planned[:end]):
        if place.num_workers > 1:
            planned.insert(end, split_by_worker)
        if place.world_size > 1 and place.rank == 0 and place.worker == 0:
            logger.warning(
                "each of %d ranks reads all shards; put wds.split_by_node behind the list of shards",
                place.world_size,
            )
    result: list[Any] = []
    for stage in planned:
        position = len(result)
        if function_of(stage) in SPLITS:
            while position > 1 and _is_random(result[position - 1]):
                position -= 1
        result.insert(position, stage)
    return result


def function_of(stage: object) -> Any:
    """Return the function of a curried stage, or the stage itself."""
    return getattr(stage, "f", stage)


def _is_random(stage: object) -> bool:
    return isinstance(stage, shuffle) or function_of(stage) is filters.rsample.f


def _reads_all(stages: Sequence[object]) -> bool:
    """Return whether surely each worker would read the same shards."""
    source, *others = stages
    if not isinstance(source, (SimpleShardList, list, tuple, IterDataPipe)):
        return False
    functions = [function_of(stage) for stage in others]
    known = all(str(getattr(f, "__module__", "")).startswith(_OWN) for f in functions)
    return known and not any(f in SPLITS or f in _RESAMPLED for f in functions)


class DataPipeline(IterableDataset[Any]):
    """Put stages one after the other.

    Args:
        *args: First a source: a dataset, a loader, a list, a pipe (`torchdata_ais.AISSourceLister`), or a function
            without arguments that returns an iterator. Then functions from an iterator to an iterator: the filters of
            this package, generator functions, `functools.partial`, `PipelineStage` objects. Lists of stages are
            flattened, None is left out.

    Attributes:
        pipeline: The list of stages.

    Yields:
        What the last stage yields.

    Order:
        That of the stages. Random stages have a new order in every epoch, which is reproducible: without workers a
        function of (seed, epoch), in workers of what torch's generator draws for the epoch, too.

    Memory:
        That of the stages.

    Example:
        >>> def double(items):
        ...     for item in items:
        ...         yield 2 * item
        >>> list(DataPipeline([1, 2, 3], double))
        [2, 4, 6]
    """

    _adds_split = True

    def __init__(self, *args: object) -> None:
        super().__init__()
        self.pipeline: list[Any] = []
        for arg in args:
            if isinstance(arg, list) and (self.pipeline or _holds_stages(arg)):
                self.pipeline.extend(arg)
            elif arg is not None:
                self.pipeline.append(arg)
        self.repetitions = 1
        self.nsamples = -1
        self.size: int | None = None
        self.runs = -1
        self._goes_on = False
        self._stream: tuple[int, DataPipeline, Iterator[object]] | None = None
        self._ranks: tuple[int, int] | None = None

    # Building.

    def stage(self, i: int) -> Any:
        """Return the stage at index `i`."""
        return self.pipeline[i]

    def append(self, f: object) -> None:
        """Add a stage at the end."""
        self.pipeline.append(f)
        self._end_stream()

    def compose(self, *args: object) -> Self:
        """Return a copy with further stages at the end.

        The filters of the copy count their epochs for themselves.
        """
        result = copy_pipe(self)
        result.pipeline = [copy.copy(stage) if isinstance(stage, Stage) else stage for stage in self.pipeline]
        result.pipeline.extend(args)
        result._stream = None
        return result

    def pipe(self, f: Callable[[Iterator[Any]], Iterable[object]]) -> Self:
        """Return a copy with a function of an iterator at the end.

        The function returns an iterator.
        """
        return self.compose(f)

    @checked
    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> Self:
        """Make an epoch `nsamples` items long, in each worker.

        An epoch continues where the last one stopped.
        Where the loader makes new workers in each epoch (``persistent_workers=False``), each begins a new pass.
        """
        number = max(nsamples, nbatches)
        if number < 1:
            raise UsageError.at(f"an epoch of {number} items", todo="use at least 1: .with_epoch(10_000)")
        self.repetitions, self.nsamples, self._goes_on = sys.maxsize, number, True
        return self

    @checked
    def repeat(self, nepochs: int = -1, nbatches: int = -1) -> Self:
        """Make one epoch of `nepochs` passes, of at most `nbatches` items in all.

        Without either it is endless.
        """
        self.repetitions = nepochs if nepochs > 0 else sys.maxsize
        self.nsamples, self._goes_on = nbatches, False
        return self

    @checked
    def with_length(self, n: int, silent: bool = True) -> Self:
        """Let ``len()`` return `n`.

        The length of the epoch does not change; `with_epoch` changes it.
        """
        del silent
        self.size = n
        return self

    def __len__(self) -> int:
        if self.size is None:
            raise TypeError(f"a {type(self).__name__} has no length; .with_length(n) gives it one")
        return self.size

    def __getitem__(self, number: object) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} is a stream: it has no item {number!r}. next(iter(dataset)) gives the first; to"
            " reach samples by number, make a torchdata_ais.SampleIndex of the shards"
        )

    def __bool__(self) -> bool:
        return True

    # Iterating.

    def __iter__(self) -> Iterator[Any]:
        try:
            if self._goes_on:
                yield from self._next_epoch()
            elif self.nsamples > 0:
                yield from islice(self.iterator(), self.nsamples)
            else:
                yield from self.iterator()
        except Exception as error:  # noqa: BLE001 - raised again
            raise trimmed(error)  # noqa: B904 - the same error, with the cause it has

    def iterator1(self) -> Iterator[Any]:
        """Return an iterator over one pass."""
        self.runs += 1
        place = self._place()
        source, *stages = plan(self.pipeline, place, split=self._adds_split)
        options = None
        if isinstance(source, IterDataPipe):
            options = _options_of(source)
            # All processes must shuffle the shards in the same way, and ranks need not have the same torch seed.
            seed_shufflers(
                source, run_seed(0, self.runs, own=False) if place.world_size == 1 else 0, always=True
            )
        if any(map(_opens_shards, stages)):
            source = with_commands(source)
        items = _begin(source)
        for stage in stages:
            if function_of(stage) in SPLITS and not isinstance(stage, Stage):
                items = stage(items, place=place)
            else:
                if options is not None and function_of(stage) is tarfile_samples:
                    stage = _with(stage, options)  # noqa: PLW2901 - the same stage, told where to read
                items = _invoke(stage, items)
        return iter(items)

    def iterator(self) -> Iterator[Any]:
        """Return an iterator over all passes; one without items is the last."""
        return passes(self.iterator1, self.repetitions)

    def _next_epoch(self) -> Iterator[object]:
        for _ in range(self.nsamples):
            if self._stream is None or self._stream[0] != os.getpid():
                # Of a copy: a loader that held itself would keep its workers until the garbage collector comes.
                other = copy_pipe(self)
                other._stream = None
                self._stream = (os.getpid(), other, other.iterator())
            try:
                item = next(self._stream[2])
            except BaseException as error:
                self._end_stream()  # the generator is spent: the next epoch begins a new pass
                if isinstance(error, StopIteration):
                    return
                raise
            yield item

    def _end_stream(self) -> None:
        if self._stream is not None:
            self.runs = self._stream[1].runs
            self._stream = None

    def close(self) -> None:
        """Let go of what an epoch has left open."""
        self._end_stream()
        for stage in self.pipeline:
            close = getattr(stage, "close", None)
            if callable(close):
                close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    # Processes.

    def _place(self) -> Place:
        place = pytorch_worker_info()
        if self._ranks is not None and place.world_size == 1:
            return place._replace(rank=self._ranks[0], world_size=self._ranks[1])
        return place

    def __getstate__(self) -> Any:
        # A spawned worker knows nothing of torch.distributed: what is known here travels with the dataset.
        place = self._place()
        return sendable({**self.__dict__, "_stream": None, "_ranks": (place.rank, place.world_size)})

    def __setstate__(self, state: object) -> None:
        self.__dict__.update(received(state))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(_shown, self.pipeline))})"


def _holds_stages(items: list[Any]) -> bool:
    """Return whether a list in the first place is one of stages, not of data."""
    kinds = (IterableDataset, DataLoader, PipelineStage, list)
    return any(callable(item) or isinstance(item, kinds) for item in items)


def _opens_shards(stage: object) -> bool:
    function = function_of(getattr(stage, "func", stage))
    return isinstance(stage, StreamingOpen) or function in (tarfile_samples, tar_file_expander, url_opener)


def _begin(source: Any) -> Any:
    if isinstance(source, PipelineStage):
        return source.run()
    if isinstance(source, (IterableDataset, DataLoader, list, tuple)) or not callable(source):
        try:
            return iter(source)
        except TypeError as error:
            raise _no_stage(source, "a source") from error
    return source()


def _invoke(stage: object, items: object) -> object:
    if isinstance(stage, PipelineStage):
        return stage.run(items)
    if not callable(stage):
        raise _no_stage(stage, "a stage")
    return stage(items)


def _no_stage(value: object, what: str) -> UsageError:
    return UsageError.at(
        f"an object of type {type(value).__name__} is not {what}",
        todo="begin with a dataset, go on with functions of an iterator",
    )


def _options_of(source: IterDataPipe[object]) -> StoreOptions | None:
    """Return the upstream lister's transport settings, for the same token."""
    for pipe in upstream(source):
        transport = stage_of(pipe).transport
        if transport is not None and transport.given is not None:
            return transport.given
    return None


def _with(stage: object, options: StoreOptions) -> object:
    """Return the stage with transport settings, unless it has some."""
    if isinstance(stage, Stage) and "cluster" in stage.kw:
        return stage
    return Stage(
        tarfile_samples, getattr(stage, "args", ()), {**getattr(stage, "kw", {}), "cluster": options}
    )


def _shown(stage: object) -> str:
    return str(getattr(stage, "__name__", None) or repr(stage))


__getattr__ = explaining(__name__)
