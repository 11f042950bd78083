""".map_sample(), .map_dict(), .map_tuple() and .associate()."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from typing import Any

from torchdata_ais._util.arguments import check_function
from torchdata_ais.errors import MissingFieldError, UsageError
from torchdata_ais.pipes.base.each_item import DROPPED, EachItem, shown_function
from torchdata_ais.pipes.base.pipe import as_pipe
from torchdata_ais.pipes.base.policy import OnError, keep_place, place_of, require_dict
from torchdata_ais.pipes.base.registry import stage
from torchdata_ais.pipes.fields import first_field
from torchdata_ais.pipes.planned.shared_seed import SampleSeeds, SharedEpochSeed, with_shared_seed
from torchdata_ais.samples import Fields


@stage("map_sample")
class SampleMapper(EachItem[Any]):
    """Put each sample through a function (``.map_sample(f)``).

    (``.map(f)`` is torch's: it keeps None, and knows nothing of keys.)

    Args:
        source: Pipe of anything.
        f: Function from a sample to a sample. None leaves the sample out.
        rng: Whether to call ``f(sample, rng)`` with a `random.Random` of the sample's own, seeded by (seed, epoch,
            key), and below ``.read_samples()`` by (seed, source, how many of it were drawn before): random
            augmentation that is the same whatever the number of ranks and workers, and after a resume. Others
            follow from it: ``numpy.random.default_rng(rng.getrandbits(64))``,
            ``torch.Generator().manual_seed(rng.getrandbits(63))``. Where shards come again within an epoch
            (``.resampled()``, ``.repeated()`` before ``.load_tar()``) the position of the shard counts, too.
        seed: Mixed into the seed of the epoch.
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler.
        max_errors: How many samples to give up: a count, or a share of all.

    Yields:
        What `f` returns. A dict made of a dict gets back its ``__key__`` and the sample's place in the data set.

    Order:
        That of the source.

    Memory:
        One sample.

    Raises:
        UsageError: `f` is not a function, or takes another number of values; when the pipe is made.
        Exception: Whatever `f` raises; its traceback names key and URL (from Python 3.11 on).

    Example:
        >>> def brighten(sample, rng):
        ...     return {"x": sample["x"] + rng.randint(0, 9)}
        >>> samples = [{"__key__": "a", "x": 0}, {"__key__": "b", "x": 0}]
        >>> once = list(SampleMapper(samples, brighten, rng=True))
        >>> once == list(SampleMapper(reversed(samples), brighten, rng=True))[::-1]
        True
    """

    epoch_seed: SharedEpochSeed
    certain_after = 100

    def __init__(
        self,
        source: object,
        f: Callable[..., object],
        *,
        rng: bool = False,
        seed: int = 0,
        on_error: OnError = "raise",
        max_errors: float | None = None,
    ) -> None:
        source = as_pipe(source)
        super().__init__(with_shared_seed(source) if rng else source, on_error, max_errors)
        check_function(f, 2 if rng else 1, "map_sample(rng=True)" if rng else "map_sample()")
        self._f = f
        self._rng = rng
        self.epoch_seed = SharedEpochSeed(seed)

    def _shown(self) -> list[str]:
        return [shown_function(self._f)] + (["rng=True"] if self._rng else [])

    def _begin(self) -> None:
        if self._rng:
            self._live = SampleSeeds(self, self.epoch_seed.next_epoch_of(self), self.epoch_seed.seed)

    def _one(self, item: object) -> object:
        more = (random.Random(self._live.of(item)),) if self._rng else ()
        result = self._f(item, *more)
        if result is None:
            return DROPPED
        if isinstance(item, dict) and isinstance(result, dict):
            if "__key__" in item and result.get("__key__") != item["__key__"]:
                result = copy.copy(result)  # it may be the user's own, and used again
                result["__key__"] = item["__key__"]
            return keep_place(result, item)
        return result

    def save_state(self) -> None:
        if self._live is not None:
            self._live.check_saveable()


@stage("map_dict")
class DictMapper(EachItem[Any]):
    """Apply functions to fields (``.map_dict(jpg=augment, cls=int)``).

    They are the fields of each sample.

    Args:
        source: Pipe of samples.
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler; the whole sample is skipped, and the
            one taken in is as it was.
        max_errors: How many samples to give up: a count, or a share of all.
        **fs: Field -> function of its value; for a field such as ``seg.png`` write ``**{"seg.png": f}``.

    Yields:
        New samples of the same class, with the fields in the same order.

    Order:
        That of the source.

    Memory:
        One sample.

    Raises:
        MissingFieldError: Names key, URL and the fields there are.
        UsageError: No function given; an item is not a dict.
        Exception: Whatever a function raises.

    Example:
        >>> list(DictMapper([{"__key__": "a", "cls": "3"}], cls=int))
        [{'__key__': 'a', 'cls': 3}]
    """

    def __init__(
        self,
        source: object,
        *,
        on_error: OnError = "raise",
        max_errors: float | None = None,
        **fs: Callable[[Any], object],
    ) -> None:
        super().__init__(source, on_error, max_errors)
        if not fs:
            raise UsageError.at("map_dict() was given no function", todo="write map_dict(cls=int)")
        for name, f in fs.items():
            check_function(f, 1, f"map_dict({name}=)")
        self._fs = fs

    def _shown(self) -> list[str]:
        return [f"{name}={shown_function(f)}" for name, f in self._fs.items()]

    def _one(self, item: Any) -> Fields:
        result = copy.copy(require_dict(item, "map_dict"))
        for name, f in self._fs.items():
            result[name] = f(result[name] if name in result else first_field(item, name))
        return result


@stage("map_tuple")
class TupleMapper(EachItem[Any]):
    """Apply functions to values of tuples (``.map_tuple(f, None, g)``).

    The first function is applied to the first value, and so on.

    Args:
        source: Pipe of tuples or lists.
        *fs: Functions; None leaves the value as it is. Functions without a value and values without a function
            are passed over.
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler; the whole tuple is skipped.
        max_errors: How many tuples to give up: a count, or a share of all.

    Yields:
        Tuples of the same length.

    Order:
        That of the source.

    Memory:
        One tuple.

    Raises:
        UsageError: An item is neither tuple nor list.
        Exception: Whatever a function raises.

    Example:
        >>> list(TupleMapper([(1, "a", 5)], float, None))
        [(1.0, 'a', 5)]
    """

    def __init__(
        self,
        source: object,
        *fs: Callable[[Any], object] | None,
        on_error: OnError = "raise",
        max_errors: float | None = None,
    ) -> None:
        super().__init__(source, on_error, max_errors)
        for f in fs:
            if f is not None:
                check_function(f, 1, "map_tuple()")
        self._fs = fs

    def _shown(self) -> list[str]:
        return ["None" if f is None else shown_function(f) for f in self._fs]

    def _one(self, item: object) -> tuple[object, ...]:
        if not isinstance(item, (tuple, list)):
            raise UsageError.at(
                f"map_tuple was given an item of type {type(item).__name__}, not a tuple",
                todo="put .to_tuple() before it, or use .map_dict()",
            )
        values = list(item)
        for index, f in enumerate(self._fs[: len(values)]):
            if f is not None:
                values[index] = f(values[index])
        return tuple(values)


class _Table:
    """Holds a mapping out of torch's sight, which pickles it at each look."""

    def __init__(self, extras: Mapping[str, Mapping[str, object]]) -> None:
        self.extras = extras

    def __call__(self, key: str) -> Mapping[str, object]:
        return self.extras.get(key, {})


@stage("associate")
class Associator(EachItem[Any]):
    """Add fields found by key (``.associate({"a": {"caption": "a cat"}})``).

    The key is that of the sample.

    Args:
        source: Pipe of samples.
        associator: Mapping from key to a mapping of fields, or a function that returns one. A key that is not in
            the mapping adds nothing.
        on_error: ``"raise"``, ``"warn"``, ``"skip"`` or a webdataset handler.
        max_errors: How many samples to give up: a count, or a share of all.

    Yields:
        New samples of the same class with the fields added; a field of the same name is replaced.

    Order:
        That of the source.

    Memory:
        One sample, and the mapping in each worker.

    Raises:
        MissingFieldError: A sample without ``__key__``.
        UsageError: An item is not a dict, or `associator` neither mapping nor function.

    Example:
        >>> list(Associator([{"__key__": "a"}, {"__key__": "b"}], {"a": {"caption": "a cat"}}))
        [{'__key__': 'a', 'caption': 'a cat'}, {'__key__': 'b'}]
    """

    def __init__(
        self,
        source: object,
        associator: Mapping[str, Mapping[str, object]] | Callable[[str], Mapping[str, object]],
        *,
        on_error: OnError = "raise",
        max_errors: float | None = None,
    ) -> None:
        super().__init__(source, on_error, max_errors)
        if callable(associator):
            check_function(associator, 1, "associate()")
            self._extras: Callable[[str], Mapping[str, object]] = associator
        elif isinstance(associator, Mapping):
            self._extras = _Table(associator)
        else:
            raise UsageError.at(
                f"associate() was given a {type(associator).__name__}",
                todo="pass a mapping or a function of the key",
            )

    def _shown(self) -> list[str]:
        table = self._extras
        return [f"{len(table.extras)} keys" if isinstance(table, _Table) else shown_function(table)]

    def _one(self, item: object) -> Fields:
        sample = require_dict(item, "associate")
        if "__key__" not in sample:
            raise MissingFieldError.at(
                f"a sample without __key__ cannot be associated, it has {sorted(sample)}",
                todo="put .associate() before the stage that drops the key",
                **place_of(sample, "__key__"),
            )
        result = copy.copy(sample)
        result.update(self._extras(sample["__key__"]))
        return result
