"""DataLoader2 and its adapters."""

from __future__ import annotations

import pickle
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from typing_extensions import Self

from torchdata_ais.dataloader2.own.graph import attach_wrapper, clone, extract_wrapper, list_dps
from torchdata_ais.dataloader2.own.random import SeedGenerator, checked
from torchdata_ais.dataloader2.own.services import (
    CheckpointableReadingServiceInterface,
    ReadingServiceInterface,
)
from torchdata_ais.errors import LoaderError, StateError, UsageError
from torchdata_ais.pipes.base.torch_pipes import (
    IterDataPipe,
    MapDataPipe,
    apply_shuffle_settings,
    graph_lock,
    traverse_dps,
)


class Adapter(ABC):
    """Base of adapters: functions of a pipe that return a pipe."""

    @abstractmethod
    def __call__(self, datapipe: object) -> Any:
        """Return the pipe to run."""


class Shuffle(Adapter):
    """Turns all shuffling of a pipe on or off.

    Args:
        enable: True turns it on, and puts a ``.shuffle()`` at the end of a pipe that has none; False turns it off;
            None changes nothing.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> from torchdata_ais.dataloader2 import DataLoader2
        >>> list(DataLoader2(IterableWrapper(range(5)).shuffle(), Shuffle(False)))
        [0, 1, 2, 3, 4]
    """

    def __init__(self, enable: bool | None = True) -> None:
        self.enable = enable

    def __call__(self, datapipe: Any) -> Any:
        """Return the pipe, set so."""
        return apply_shuffle_settings(datapipe, shuffle=self.enable)


class CacheTimeout(Adapter):
    """Sets the seconds that pipes wait for a file entering a cache.

    Another process is writing the file. It applies to pipes with a method ``set_timeout``, as torchdata's
    ``end_caching`` has.
    """

    def __init__(self, timeout: float | None = None) -> None:
        if timeout is None:
            raise UsageError.at("CacheTimeout was given no timeout", todo="pass seconds: CacheTimeout(600)")
        self.timeout = timeout

    def __call__(self, datapipe: Any) -> Any:
        """Return the pipe, set so."""
        for pipe in list_dps(traverse_dps(datapipe)):
            if hasattr(pipe, "set_timeout"):
                pipe.set_timeout(self.timeout)
        return datapipe


NO_STATE = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ImportError,
    EOFError,
    pickle.UnpicklingError,
)
"""Exceptions of a search for a pipe in another object."""

T_co = TypeVar("T_co", covariant=True)

SERIALIZED_DATAPIPE_KEY_NAME = "serialized_datapipe"
READING_SERVICE_STATE_KEY_NAME = "reading_service_state"
RANDOMNESS_STATE_KEY_NAME = "randomness_state"


def check_trust(trust: bool) -> None:
    """Raise `StateError` unless the caller trusts a state: pickles run code."""
    if trust is not True:
        raise StateError.at(
            "a state of DataLoader2 holds a pickled pipe, and unpickling can run any code",
            todo="for a state that you saved yourself pass trust=True; the states of ais_loader hold no code",
        )


def state_error(error: Exception) -> StateError:
    """Return the error to raise from `error`, which a wrong state caused."""
    return StateError.at(
        f"expected a state of a DataLoader2: {str(error) or 'it has no pipe'}",
        todo="pass what DataLoader2.state_dict() returned",
    )


class PauseIteration(StopIteration):
    """Raised by a pipe: nothing more for now, and the epoch is not over."""


class DataLoader2Iterator(Iterator[T_co]):
    """One epoch of a `DataLoader2`, until the next starts.

    Missing attributes are looked up in the pipe's iterator.

    Attributes:
        limit_threshold: After how many items the loader is to pause; None is never.
        limit_counter: How many were given since `limit` or the last pause.
    """

    def __init__(self, dataloader: DataLoader2[T_co], iterator_id: int) -> None:
        self.dataloader = dataloader
        self.iterator_id = iterator_id
        self.limit_threshold: int | None = None
        self.limit_counter = 0

    def __next__(self) -> T_co:
        loader = self.dataloader
        if self.iterator_id != loader.valid_iterator_id:
            loader._end_iteration()
            raise LoaderError.at(
                "This iterator has been invalidated: the loader has started another epoch since",
                todo="use one iterator of a DataLoader2 at a time, or a loader for each",
            )
        loader._reset_iter = True
        if loader._is_paused:
            raise StopIteration
        try:
            item = loader._next()
            self.limit_counter += 1
        except PauseIteration:
            raise StopIteration from None
        except StopIteration:
            loader._end_iteration()
            raise
        except Exception:
            loader.shutdown()
            raise
        if self.limit_threshold is not None and self.limit_counter >= self.limit_threshold:
            self._pause()
        return item

    def _pause(self) -> None:
        self.dataloader._pause()
        self.limit_counter = 0

    def resume(self) -> None:
        """Resume."""
        self.dataloader._resume()

    def limit(self, num_batches: int | None) -> None:
        """Pause after this many items, and again after each `resume`; None: never."""
        self.limit_counter = 0
        self.limit_threshold = num_batches
        self.dataloader._limit(num_batches)

    def __getattr__(self, name: str) -> Any:
        running = None if name == "dataloader" else self.dataloader._datapipe_iter
        if running is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(running, name)


class DataLoader2(Generic[T_co]):
    """Iterates a pipe, epoch after epoch: an iterable and a context manager.

    Takes any pipe, and yields its items. Pipe and service are copied, so both can be used again elsewhere.

    Order:
        Determined by the pipe and the service. With a service, each epoch has other seeds: those that follow from
        `seed`, or from torch's global generator.

    Args:
        datapipe: The pipe, iterable or map-style. None if `load_state_dict` is called next.
        datapipe_adapter_fn: An `Adapter`, or several, applied to the pipe before it runs.
        reading_service: Where and how it runs. None runs it in this process, as it is seeded.

    Raises:
        UsageError: Pipe or service do not pickle.
        LoaderError: The loader was shut down; an iterator is used after another was started.
        Exception: Any error of the pipe; the loader is shut down then.

    Example:
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> with DataLoader2(IterableWrapper(range(3))) as loader:
        ...     list(loader)
        [0, 1, 2]
    """

    def __init__(
        self,
        datapipe: Any,
        datapipe_adapter_fn: Iterable[Adapter] | Adapter | None = None,
        reading_service: ReadingServiceInterface | None = None,
    ) -> None:
        self._terminated = False
        self._datapipe_iter: Iterator[T_co] | None = None
        self._reset_iter = True  # whether the next `iter` begins an epoch: not twice without a `next` between
        self._is_paused = False
        self._adapted = False
        self.valid_iterator_id: int | None = None
        self.reading_service: Any = None
        self.reading_service_state: bytes | None = None
        self._state_dict: dict[str, Any] | None = None

        if isinstance(datapipe, MapDataPipe):
            datapipe = _MapItems(datapipe)
        one = datapipe_adapter_fn is None or not isinstance(datapipe_adapter_fn, Iterable)
        functions: Any = [datapipe_adapter_fn] if one else datapipe_adapter_fn
        self.datapipe_adapter_fns = None if datapipe_adapter_fn is None else list(functions)
        self.datapipe = self._adapt(clone(datapipe))
        self.reading_service = clone(reading_service)
        self._datapipe_before_reading_service_adapt = clone(self.datapipe)
        self._seed: int | None = None
        self._reset_seed = True
        self._seed_generator = SeedGenerator()
        self._initial_seed_generator = clone(self._seed_generator)

    def _adapt(self, pipe: object) -> Any:
        if pipe is not None:
            for function in self.datapipe_adapter_fns or ():
                pipe = function(pipe)
        return pipe

    def __iter__(self) -> DataLoader2Iterator[T_co]:
        if self._terminated:
            raise LoaderError.at("the loader was shut down", todo="make a new loader")
        if self.datapipe is None:
            raise LoaderError.at("the loader has no pipe", todo="pass one, or call load_state_dict first")
        if self._reset_iter:
            self._begin_epoch()
            self._reset_iter = False
        self.valid_iterator_id = 0 if self.valid_iterator_id is None else self.valid_iterator_id + 1
        return DataLoader2Iterator(self, self.valid_iterator_id)

    def _begin_epoch(self) -> None:
        if self._seed is None:
            self._seed_generator.seed()
        elif self._reset_seed:
            self._seed_generator.seed(self._seed)
            self._reset_seed = False
        self._initial_seed_generator = clone(self._seed_generator)
        service = self.reading_service
        if service is not None:
            if not self._adapted:
                self.datapipe = self._initialized(service)
                self._adapted = True
            reset = service.initialize_iteration(self._seed_generator)
            if reset is not None:
                self.datapipe = reset(self.datapipe)
        self._datapipe_iter = iter(self.datapipe)

    def _initialized(self, service: Any) -> object:
        if self.reading_service_state is None:
            return service.initialize(self.datapipe)
        if not isinstance(service, CheckpointableReadingServiceInterface):
            raise StateError.at(
                f"the state is of a reading service with checkpoints, and {type(service).__name__} has none",
                todo="use the reading service that the state was taken with",
            )
        return service.restore(self.datapipe, self.reading_service_state)

    def _next(self) -> T_co:
        running = self._datapipe_iter
        if running is None:
            raise LoaderError.at("the loader was shut down", todo="make a new loader")
        return next(running)

    def _end_iteration(self) -> None:
        if self.reading_service is not None:
            self.reading_service.finalize_iteration()

    def seed(self, seed: int) -> None:
        """Seed the epochs from the next one on; the seed has at most 64 bits."""
        self._seed = checked(seed)
        self._reset_seed = True

    def shutdown(self) -> None:
        """End the epoch and the service's processes. Idempotent."""
        if not self._terminated:
            self._terminated = True
            if self.reading_service is not None:
                self.reading_service.finalize_iteration()
                self.reading_service.finalize()
        self._reset_iter = True
        self._datapipe_iter = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()

    def __del__(self) -> None:
        try:  # noqa: SIM105 - at the end of the program contextlib may be gone
            self.shutdown()
        except AttributeError:  # it was never whole, or modules are gone
            pass

    def state_dict(self) -> dict[str, Any]:
        """Return pipe, seeds and the service's state, pickled.

        An epoch can start again from it. `ais_loader` has states that resume within an epoch, and that hold neither
        code nor arguments of pipes.
        """
        if self._state_dict is not None and self.valid_iterator_id is None:
            return self._state_dict  # loaded, and nothing has happened since
        service = self.reading_service
        has_state = isinstance(service, CheckpointableReadingServiceInterface)
        with graph_lock:
            pipe = pickle.dumps(attach_wrapper(self._datapipe_before_reading_service_adapt))
        return {
            SERIALIZED_DATAPIPE_KEY_NAME: pipe,
            READING_SERVICE_STATE_KEY_NAME: service.checkpoint() if has_state else None,
            RANDOMNESS_STATE_KEY_NAME: (
                self._seed,
                self._reset_seed,
                pickle.dumps(self._seed_generator),
                pickle.dumps(self._initial_seed_generator),
            ),
        }

    @classmethod
    def from_state(
        cls, state: dict[str, Any], reading_service: ReadingServiceInterface, *, trust: bool = False
    ) -> DataLoader2[Any]:
        """Return a loader from the pipe and the seeds of `state`."""
        check_trust(trust)
        loader: DataLoader2[Any] = cls(None, reading_service=reading_service)
        loader.load_state_dict(state, trust=trust)
        return loader

    def load_state_dict(self, state_dict: dict[str, Any], *, trust: bool = False) -> None:
        """Use the pipe and the seeds of a state from the first epoch on.

        Raises:
            LoaderError: An epoch has started.
            StateError: `trust` is not True, or `state_dict` is not a state of a `DataLoader2`.
        """
        check_trust(trust)
        if self._datapipe_iter is not None:
            raise LoaderError.at("the loader has started an epoch", todo="load the state into a new loader")
        try:
            pipe = extract_wrapper(pickle.loads(state_dict[SERIALIZED_DATAPIPE_KEY_NAME]))  # noqa: S301 - torchdata's
            service_state = state_dict[READING_SERVICE_STATE_KEY_NAME]
            seeds = state_dict.get(RANDOMNESS_STATE_KEY_NAME)  # younger than the other two
            if seeds is not None:
                self._seed, self._reset_seed = seeds[:2]
                self._seed_generator, self._initial_seed_generator = map(pickle.loads, seeds[2:])
        except NO_STATE as error:
            raise state_error(error) from error
        self.datapipe = self._adapt(pipe)
        self.reading_service_state = service_state
        self._datapipe_before_reading_service_adapt = clone(self.datapipe)
        self._state_dict = state_dict

    def _restore_checkpoint_beginning_of_epoch(self) -> None:
        """Make the next epoch the one in or after which the state was taken."""
        self._seed_generator = self._initial_seed_generator

    def _pause(self) -> None:
        if self._can("_pause"):
            self._is_paused = True
            self._apply(self.reading_service._pause())

    def _resume(self) -> None:
        if self._can("_resume"):
            if not self._is_paused:
                warnings.warn("resume was called on a DataLoader2 that is not paused", stacklevel=3)
                return
            self._apply(self.reading_service._resume())
            self._is_paused = False

    def _limit(self, num_batches: int | None) -> None:
        if self._can("_limit"):
            self._apply(self.reading_service._limit(num_batches), num_batches)

    def _apply(self, function: Any, *arguments: object) -> None:
        if function is not None:
            self.datapipe = function(self.datapipe, *arguments)

    def _can(self, method: str) -> bool:
        there = hasattr(self.reading_service, method)
        if not there:
            name = (
                "no reading service" if self.reading_service is None else type(self.reading_service).__name__
            )
            warnings.warn(f"a DataLoader2 with {name} cannot {method[1:]}", stacklevel=4)
        return there


class _MapItems(IterDataPipe[Any]):
    """The items of a map-style pipe, by their numbers from 0."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self.source)):
            yield self.source[index]

    def __len__(self) -> int:
        return len(self.source)
