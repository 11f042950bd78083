"""A stage that needs another pipe higher up gets it, and the pipes that the user holds stay what they were."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_ais.pipes import AISFileLoader, Subsampler
from torchdata_ais.pipes.base.pipe import ShardingFilter
from torchdata_ais.pipes.base.upstream import upstream
from torchdata_ais.pipes.planned.shared_seed import SharedSeed
from torchdata_ais.testing import example_shards

KEYED = [{"__key__": f"{n:03d}"} for n in range(40)]


def kinds(pipe: IterDataPipe[Any]) -> list[type]:
    return [type(part) for part in upstream(pipe)]


def test_branches_of_a_mix_get_filters_of_their_own_in_a_copy() -> None:
    one, two = IterableWrapper(example_shards()[:1]).sharding_filter(), IterableWrapper(example_shards()[1:])
    both = one.concat(two)
    before = kinds(both)
    loader = AISFileLoader(both)
    assert kinds(loader).count(ShardingFilter) == 2
    assert kinds(both) == before
    assert both.datapipes == (one, two)


def test_a_shared_seed_is_put_into_a_copy_of_the_chain() -> None:
    chain = IterableWrapper(KEYED).shuffle().sharding_filter().map(dict)
    before = kinds(chain)
    sampler = Subsampler(chain, 0.5)
    assert kinds(sampler).count(SharedSeed) == 1
    assert kinds(chain) == before
    assert kinds(sampler)[-1] is IterableWrapper
    assert next(part for part in upstream(sampler) if type(part) is IterableWrapper) is next(
        part for part in upstream(chain) if type(part) is IterableWrapper
    )


def test_branches_of_a_fork_stay_one_pipe() -> None:
    one, two = IterableWrapper(KEYED).sharding_filter().fork(2, buffer_size=2)
    zipped = Subsampler(one, 1.0).zip(two)
    assert [a == b for a, b in zipped] == [True] * len(KEYED)
