"""Slices of global batches, at their limits."""

from __future__ import annotations

import pytest

from torchdata_ais.errors import UsageError
from torchdata_ais.plan import Slots


@pytest.mark.parametrize(("batch", "ranks"), [(4, 0), (4, 5), (0, 1), (4, -1)])
def test_each_rank_has_a_part_of_a_batch(batch: int, ranks: int) -> None:
    with pytest.raises(UsageError, match="leaves a rank without any"):
        Slots(10, batch, ranks)
    assert len(Slots(10, 4, 4)) == 3


def test_a_remainder_of_fewer_positions_than_ranks_is_dealt_evenly() -> None:
    slots = Slots(6, 4, 4)
    assert [slots.positions(1, rank).tolist() for rank in range(4)] == [[4], [4], [5], [5]]
    assert slots.repeated() == 2
    assert [slots.repeated(rank) for rank in range(4)] == [1, 0, 1, 0]


def test_pad_begins_at_the_start_of_the_epoch_also_after_a_resume() -> None:
    assert Slots(5, 4, tail="pad").positions(1).tolist() == [4, 0, 1, 2]
    assert Slots(2, 8, tail="pad", before=3).positions(0).tolist() == [0, 1, -3, -2, -1, 0, 1, -3]
    assert Slots(8, 4, tail="pad").repeated() == Slots(8, 4).repeated() == 0
