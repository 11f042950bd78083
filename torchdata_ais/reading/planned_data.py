"""What a plan is about: what it draws from, and which samples stand at its positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchdata_ais.plan import Draws, Run
from torchdata_ais.plan.hashing import Integers
from torchdata_ais.plan.packing import Groups
from torchdata_ais.reading.planned_sources import PlannedSources
from torchdata_ais.reading.requests import Wanted


class PlannedData(PlannedSources):
    """Indexes, how samples are drawn from them, and which were drawn."""

    def group_of(self, source: int, draw: int) -> int:
        """Return the number of the drawn group that a draw of a sample belongs to."""
        return draw if self.groups is None else draw // self.groups[source].most

    def planned_samples(self, run: Run, positions: Integers, places: Sequence[int | None] | None) -> int:
        """Return how many samples stand at positions of a run."""
        groups = self.groups
        if groups is None:
            return len(positions)
        draws = _drawn(run, positions, places)
        pairs = zip(draws.source.tolist(), draws.index.tolist(), strict=True)
        return sum(int(groups[source].sizes(number)) for source, number in pairs)

    def look_up(
        self,
        run: Run,
        positions: Integers,
        slots: Integers | None = None,
        places: Sequence[int | None] | None = None,
    ) -> list[Wanted]:
        """Return what stands at positions of a run, without reading any of it.

        Args:
            run: The run.
            positions: The positions.
            slots: The batch each is for.
            places: Which of the indexes each source of the run is; default in their order.
        """
        draws = _drawn(run, positions, places)
        slots = np.zeros_like(positions) if slots is None else slots
        if self.groups is not None:
            return self._look_up_groups(self.groups, draws, slots)
        found: list[Wanted | None] = [None] * len(positions)
        for source in np.unique(draws.source).tolist():
            here = np.flatnonzero(draws.source == source)
            numbers = self._numbers_of(draws.index[here])
            wanted = self.joined.wanted(source, numbers, draws.draw[here].tolist(), slots[here].tolist())
            for place, one in zip(here.tolist(), wanted, strict=True):
                found[place] = one
        return [one for one in found if one is not None]

    def _look_up_groups(self, groups: Sequence[Groups], draws: Draws, slots: Integers) -> list[Wanted]:
        """Return the samples of the groups that were drawn; the draws of those of a group follow each other."""
        found: list[Wanted] = []
        columns = (draws.source, draws.index, draws.draw, slots)
        for source, group, draw, slot in zip(*(column.tolist() for column in columns), strict=True):
            numbers = self._numbers_of(groups[source].samples(group))
            count, first = len(numbers), draw * groups[source].most
            found += self.joined.wanted(source, numbers, range(first, first + count), [slot] * count)
        return found

    def _numbers_of(self, chosen: Integers) -> list[int]:
        """Return the numbers in the index of some of the samples to read."""
        numbers: list[int] = (chosen if self._numbers is None else self._numbers[chosen]).tolist()
        return numbers


def _drawn(run: Run, positions: Integers, places: Sequence[int | None] | None) -> Draws:
    """Return what stands at positions of a run; each source is the number of its index."""
    draws = run.at(positions)
    if places is None:
        return draws
    indexes = np.array([place or 0 for place in places], dtype=np.int64)  # what was removed is not drawn
    return replace(draws, source=indexes[draws.source])
