"""torch's stages that chains are made of."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import default_collate

from torchdata_ais.errors import UsageError
from torchdata_ais.stage.lists import lists_of
from torchdata_ais.stage.own.base import IterDataPipe
from torchdata_ais.stage.own.graph import SHARDING_PRIORITIES
from torchdata_ais.stage.own.shuffling import shuffled_by


def _chained(name: str) -> Callable[[type], Any]:
    def register(cls: type) -> type:
        IterDataPipe.functions[name] = cls
        return cls

    return register


@dataclass(eq=False, repr=False)
class IterableWrapper(IterDataPipe[Any]):
    """The items of an iterable, of which it holds a copy, if it can be copied."""

    iterable: Iterable[Any]
    deepcopy: bool = True

    def __iter__(self) -> Iterator[Any]:
        items = self.iterable
        if self.deepcopy:
            with suppress(TypeError):  # a generator, an open file
                items = copy.deepcopy(items)
        yield from items

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type] # a TypeError that says so


@dataclass(eq=False, repr=False)
class _Behind(IterDataPipe[Any]):
    datapipe: Any


class _AsMany(_Behind):
    def __len__(self) -> int:
        return len(self.datapipe)


@_chained("map")
@dataclass(eq=False, repr=False)
class Mapper(_AsMany):
    """Puts what a function makes of an item, or of a column of it, in its place."""

    fn: Callable[..., Any]
    input_col: Any = None
    output_col: Any = None

    def __post_init__(self) -> None:
        if self.input_col is None and self.output_col is not None:
            raise UsageError.at("map has an output_col and no input_col", todo="name the column to read, too")
        if isinstance(self.output_col, (list, tuple)):
            self.output_col = self.output_col[0]

    def _mapped(self, item: Any) -> Any:
        if self.input_col is None:
            return self.fn(item)
        columns = self.input_col if isinstance(self.input_col, (list, tuple)) else [self.input_col]
        made = self.fn(*(item[name] for name in columns))
        changed = list(item) if isinstance(item, tuple) else copy.copy(item)
        if self.output_col == -1:
            changed.append(made)
        elif self.output_col is not None:
            changed[self.output_col] = made
        else:
            changed[columns[0]] = made
            for name in sorted(columns[1:], reverse=True):
                del changed[name]
        return tuple(changed) if isinstance(item, tuple) else changed

    def __iter__(self) -> Iterator[Any]:
        for item in self.datapipe:
            yield self._mapped(item)


@_chained("filter")
@dataclass(eq=False, repr=False)
class Filter(_Behind):
    """Passes on the items of which a function says True."""

    filter_fn: Callable[..., Any]
    input_col: Any = None

    def __iter__(self) -> Iterator[Any]:
        column = self.input_col
        for item in self.datapipe:
            if column is None:
                wanted = self.filter_fn(item)
            elif isinstance(column, (list, tuple)):
                wanted = self.filter_fn(*(item[name] for name in column))
            else:
                wanted = self.filter_fn(item[column])
            if wanted:
                yield item


@_chained("batch")
@dataclass(eq=False, repr=False)
class Batcher(_Behind):
    """Puts items into lists of `batch_size`."""

    batch_size: int
    drop_last: bool = False
    wrapper_class: type = list

    def __post_init__(self) -> None:
        if self.batch_size <= 0:
            raise UsageError.at(f"batch_size={self.batch_size}", todo="use 1 or more")

    def __iter__(self) -> Iterator[Any]:
        for batch in lists_of(self.datapipe, self.batch_size, not self.drop_last):
            yield self.wrapper_class(batch)

    def __len__(self) -> int:
        whole, rest = divmod(len(self.datapipe), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)


@_chained("unbatch")
@dataclass(eq=False, repr=False)
class UnBatcher(_Behind):
    """Takes lists apart, `unbatch_level` deep; -1 is to the bottom."""

    unbatch_level: int = 1

    def __iter__(self) -> Iterator[Any]:
        for item in self.datapipe:
            yield from _apart(item, self.unbatch_level)


def _apart(item: Any, level: int) -> Iterator[Any]:
    if level == 0 or (level < 0 and not isinstance(item, list)):
        yield item
    elif isinstance(item, list):
        for one in item:
            yield from _apart(one, level - 1)
    else:
        raise UsageError.at(
            f"no list stands where unbatch is to take one apart, but a {type(item).__name__}",
            todo="unbatch as deep as there are lists",
        )


@_chained("collate")
class Collator(_AsMany):
    """Makes tensors of batches, or what `collate_fn` makes."""

    def __init__(
        self, datapipe: Any, conversion: Any = None, collate_fn: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(datapipe)
        self.collate_fn = conversion if callable(conversion) else collate_fn or default_collate

    def __iter__(self) -> Iterator[Any]:
        for item in self.datapipe:
            yield self.collate_fn(item)


@_chained("shuffle")
class Shuffler(_AsMany):
    """Mixes items: each is drawn out of `buffer_size` that wait."""

    def __init__(self, datapipe: Any, *, buffer_size: int = 10_000, unbatch_level: int = 0) -> None:
        super().__init__(datapipe if unbatch_level == 0 else UnBatcher(datapipe, unbatch_level))
        if buffer_size <= 0:
            raise UsageError.at(f"buffer_size={buffer_size}", todo="use 1 or more")
        self.buffer_size = buffer_size
        self._enabled = True
        self._seed: int | None = None
        self._rng = random.Random()

    def set_shuffle(self, shuffle: bool = True) -> Shuffler:
        """Turn mixing on or off."""
        self._enabled = shuffle
        return self

    def set_seed(self, seed: int) -> Shuffler:
        """Let the order of the next iteration follow from `seed`."""
        self._seed = seed
        return self

    def reset(self) -> None:
        """Take the seed that was set, or one of torch's global generator."""
        if self._enabled:
            seed, self._seed = self._seed, None
            if seed is None:
                seed = int(torch.empty((), dtype=torch.int64).random_().item())
            self._rng.seed(seed)

    def __iter__(self) -> Iterator[Any]:
        yield from shuffled_by(self, self.datapipe, [])


@_chained("sharding_filter")
class ShardingFilter(IterDataPipe[Any]):
    """Passes on every n-th item, where n processes share items out.

    Attributes:
        groups: Among whom -> (how many, which one).
        num_of_instances: How many processes in all.
        instance_id: Which one this is.
    """

    def __init__(self, source_datapipe: Any, sharding_group_filter: Any = None) -> None:
        super().__init__()
        self.source_datapipe = source_datapipe
        self.sharding_group_filter = sharding_group_filter
        self.groups: dict[int, tuple[int, int]] = {}
        self._update_num_of_instances()

    def apply_sharding(
        self, num_of_instances: int, instance_id: int, sharding_group: Any = SHARDING_PRIORITIES.DEFAULT
    ) -> None:
        """Become one of several, of one group more.

        Raises:
            UsageError: The number is not one of them; the group is mixed with a default one.
        """
        if not 0 <= instance_id < num_of_instances:
            raise UsageError.at(
                f"instance_id={instance_id}, num_of_instances={num_of_instances}", todo="count from 0"
            )
        default = SHARDING_PRIORITIES.DEFAULT
        if any((group == default) != (sharding_group == default) for group in self.groups):
            raise UsageError.at("the items are shared out by default and by a group, too", todo="use one way")
        self.groups[sharding_group] = (num_of_instances, instance_id)
        self._update_num_of_instances()

    def _update_num_of_instances(self) -> None:
        only = self.sharding_group_filter
        self.num_of_instances, self.instance_id = 1, 0
        for group in sorted(self.groups, reverse=True):
            if only is None or group == only:
                number, instance = self.groups[group]
                self.instance_id += self.num_of_instances * instance
                self.num_of_instances *= number

    def __iter__(self) -> Iterator[Any]:
        for index, item in enumerate(self.source_datapipe):
            if index % self.num_of_instances == self.instance_id:
                yield item

    def __len__(self) -> int:
        whole, rest = divmod(len(self.source_datapipe), self.num_of_instances)
        return whole + (self.instance_id < rest)


class _BehindSeveral(IterDataPipe[Any]):
    def __init__(self, *datapipes: Any) -> None:
        super().__init__()
        self.datapipes = datapipes


@_chained("concat")
class Concater(_BehindSeveral):
    """The items of one pipe after those of another."""

    def __iter__(self) -> Iterator[Any]:
        for pipe in self.datapipes:
            yield from pipe

    def __len__(self) -> int:
        return sum(map(len, self.datapipes))


@_chained("zip")
class Zipper(_BehindSeveral):
    """Tuples of an item of each pipe, as long as all have one."""

    def __iter__(self) -> Iterator[Any]:
        yield from zip(*self.datapipes, strict=False)

    def __len__(self) -> int:
        return min(map(len, self.datapipes))
