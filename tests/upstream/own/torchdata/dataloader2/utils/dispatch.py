from torch.utils.data import IterDataPipe

from torchdata_ais.dataloader2.own.graph import find_branches_without, find_dispatched
from torchdata_ais.dataloader2.own.distributed import ShardingRoundRobinDispatcher


class _DummyIterDataPipe(IterDataPipe):
    pass


def find_lca_round_robin_sharding_dp(graph):
    return find_dispatched(graph, ShardingRoundRobinDispatcher)


def find_non_dispatching_branches(graph):
    return find_branches_without(graph, _DummyIterDataPipe)
