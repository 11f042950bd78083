"""``.pack()`` and ``.buckets()``: batches by the lengths of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal

from torchdata_ais._util.arguments import check_function, check_number
from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.base.collate import collate_columns
from torchdata_ais.pipes.base.contract import Effect, MemoryBound
from torchdata_ais.pipes.base.policy import note_place
from torchdata_ais.pipes.base.registry import stage
from torchdata_ais.pipes.planned.batches import SlotBatcher, planned_above
from torchdata_ais.pipes.planned.stage import PlannedStage, SlotStage
from torchdata_ais.reading.packing import Grouping

Packs = list[list[Any]]


class _Grouper(SlotBatcher):
    """Groups the samples of a plan's batch, or those of a stream that wait."""

    def __init__(
        self, source: object, grouping: Grouping, collation_fn: Callable[[Any], object] | None, pool: int = 0
    ) -> None:
        super().__init__(source)
        self._pool = pool
        if collation_fn is not None:
            check_function(collation_fn, 1, f"{self.functional_name}(collation_fn=)")
        self._grouping = grouping
        self._collate = collation_fn

    def say_to(self, plan: PlannedStage) -> None:
        plan.use_groups(self._grouping)

    def _is_planned(self) -> bool:
        return planned_above(self) is not None

    def effect(self) -> Effect:
        return Effect("batches", holds=not self._is_planned(), keeps_place=False)

    def memory_bound(self) -> MemoryBound:
        waiting = self._pool or self._grouping.most_waiting
        return MemoryBound("2 groups" if self._is_planned() else f"{waiting} samples + 1 group")

    def arguments(self) -> str:
        if self._is_planned():
            return self._grouping.words.partition("(")[2][:-1]
        return self._grouping.stream_words + (f", pool={self._pool}" if self._pool else "")

    def _of_stream(self) -> Iterator[object]:
        put, pool = self._grouping.put, self._grouping.pool(self._pool)
        self._live = pool
        # At a resume the samples that waited come first, in their order: no group was due of them, and none is now.
        for item in self._source:
            put(pool, item)
            if pool.is_full:
                yield self._batch([pool.take()])
        while pool:
            yield self._batch([pool.take()])

    def held_places(self) -> list[int]:
        return self._live.places if self._live is not None else []

    def _as_planned(self, plan: PlannedStage, slots: SlotStage) -> Iterator[Packs]:
        draws: list[tuple[int, int]] = []
        for rows in self._rows_as_planned(plan, slots, draws):
            drawn = zip(map(plan.group_of, draws), rows, strict=True)
            yield [[row for _, row in group] for _, group in groupby(drawn, key=itemgetter(0))]
            draws.clear()

    def _batch(self, packs: Packs) -> object:
        try:
            return self._made(packs)
        except Exception as error:
            note_place(error, packs[0][0], self, {})
            raise

    def _made(self, packs: Packs) -> object:
        return packs if self._collate is None else self._collate(packs)


@stage("pack")
class Packer(_Grouper):
    """Fill batches by length (``.pack(length="tokens", budget=4096)``).

    Samples are put together whose lengths fill the budget.
    Of a stream, out of a pool: the sample that has waited longest, then always the longest that fits.
    By index (below ``.read_samples()``):

    Packs are laid down before a sample is read, from lengths: each takes the longest sample that fits, until one or two
    fill it exactly. Then the plan draws packs as it draws samples elsewhere: all ranks take equal steps, states are
    exact, ranks and workers may change. A pack keeps its samples in all epochs; the order of packs is another in each.

    Args:
        source: Pipe below ``.read_samples()``; or a stream of samples, before ``.to_tuple()``: a state names those that
            wait.
        length: The name of a column of the index (`SampleIndex.with_column`), or of a field, whose bytes count as the
            index knows them; or the length of each sample, by its number in the index; or, for a `Mixture`, a list of
            those, one an index. Of a stream, the name of a field (its bytes, its items, or the number that it is), or
            a function of a sample.
        budget: What the lengths in a pack sum to at most.
        pool: Of a stream, how many samples wait.
        seed: By index, decides which samples meet; it is not the loader's.
        too_long: What becomes of samples longer than the budget: ``"error"`` or ``"drop"``.
        collation_fn: Function from a list of packs to what is yielded.

    Yields:
        A list of packs, each a list of samples: one, or, with ``global_batch=`` of the loader, as many as a rank gets.

    Order:
        That of the plan; samples of a pack in the order in which they were put together. Of a stream, a function of
        the order of the samples and their lengths.

    Memory:
        By index the samples of two groups; 8 bytes a sample of the index and 8 a pack in each process. Of a stream
        `pool` samples and a pack; a state names those that wait.

        >>> from torchdata_ais import AISSampleReader, SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> index = SampleIndex.build(example_shards(counts=(4, 4)))
        >>> AISSampleReader(index).pack(length="txt", budget=8).memory_bound().text
        '2 groups'
        >>> Packer([], length="txt", budget=8, pool=500).memory_bound().text
        '500 samples + 1 group'

    Raises:
        UsageError: Lengths that are not those of the samples; a sample that is too long.
        MissingFieldError: Of a stream, a sample has no such field.

    Example:
        >>> pipe = AISSampleReader(index).decode().to_tuple("cls").pack(length="txt", budget=8)
        >>> list(pipe)[:2], len(pipe)
        ([[[(0,), (7,)]], [[(1,), (4,)]]], 4)
        >>> lengths = [5, 3, 9, 2, 7]
        >>> [packs[0] for packs in Packer(lengths, length=int, budget=10, pool=3)]
        [[5, 3], [9], [2, 7]]
    """

    def __init__(
        self,
        source: object,
        length: object,
        budget: int,
        *,
        pool: int = 1000,
        seed: int = 0,
        too_long: Literal["error", "drop"] = "error",
        collation_fn: Callable[[list[list[Any]]], object] | None = None,
    ) -> None:
        check_number(budget, 1, "budget")
        check_number(pool, 1, "pool")
        super().__init__(source, Grouping(length, budget, seed=seed, too_long=too_long), collation_fn, pool)


@stage("buckets")
class Bucketer(_Grouper):
    """Make batches of samples of similar lengths (``.buckets(...)``).

    For example ``.buckets(length="tokens", edges=[128, 512], budget=8192)``.
    One of the bucket up to `edge` has ``budget // edge`` samples, so that it stays within the budget with its padding.
    Of a stream a batch comes when its bucket is full. By index (below ``.read_samples()``) batches are laid down before
    a sample is read; the plan draws batches as it draws samples elsewhere: all ranks
    take equal steps, states are exact, ranks and workers may change.

    Args:
        source: As for `Packer`.
        length: As for `Packer`.
        edges: The greatest length of each bucket, ascending.
        budget: What a batch has at most: its samples times the greatest length of its bucket.
        seed: As for `Packer`.
        too_long: What becomes of samples longer than the last edge: ``"error"`` or ``"drop"``.
        collation_fn: Function from a list of samples to a batch; default columns, arrays padded with zeros.

    Yields:
        As `Batcher`.

    Order:
        That of the plan; of a stream, as buckets become full.

    Memory:
        By index as `Packer`. Of a stream ``budget // edge`` samples of each bucket; a state names those that wait.

        >>> from torchdata_ais import AISSampleReader, SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> index = SampleIndex.build(example_shards(counts=(4, 4)))
        >>> AISSampleReader(index).buckets(length="txt", edges=[8], budget=8).memory_bound().text
        '2 groups'
        >>> Bucketer([], length="txt", edges=[4, 8], budget=16).memory_bound().text
        '6 samples + 1 group'

    Raises:
        UsageError: As `Packer`; or a rank gets several batches in a step (``global_batch=``).

    Example:
        >>> pipe = AISSampleReader(index).decode().to_tuple("cls").buckets(length="txt", edges=[3, 8], budget=9)
        >>> [batch.tolist() for (batch,) in pipe]
        [[0, 1, 2], [3], [4], [5], [6], [7]]
        >>> list(Bucketer([5, 3, 9, 2, 7, 1], length=int, edges=[5, 10], budget=15, collation_fn=list))
        [[9], [5, 3, 2], [7], [1]]
    """

    def __init__(
        self,
        source: object,
        length: object,
        edges: Sequence[int],
        budget: int,
        *,
        seed: int = 0,
        too_long: Literal["error", "drop"] = "error",
        collation_fn: Callable[[list[Any]], object] | None = None,
    ) -> None:
        check_number(budget, 1, "budget")
        super().__init__(source, Grouping(length, budget, edges, seed=seed, too_long=too_long), collation_fn)

    def _made(self, packs: Packs) -> object:
        if len(packs) > 1:
            raise UsageError.at(
                f"a rank gets {len(packs)} batches of .buckets() in a step",
                todo="leave global_batch= out, or let it be the number of ranks",
            )
        return collate_columns(packs[0], ragged="pad") if self._collate is None else self._collate(packs[0])
