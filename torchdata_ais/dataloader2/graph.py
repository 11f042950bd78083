"""Traversal and change of a pipe's graph, by torchdata's names."""

from typing import Any

from torchdata_ais.dataloader2.own.graph import Graph as DataPipeGraph
from torchdata_ais.dataloader2.own.graph import (
    find_dps,
    list_dps,
    remove_dp,
    replace_dp,
    set_datapipes_seed,
    set_graph_random_seed,
)
from torchdata_ais.pipes.base.torch_pipes import IterDataPipe, MapDataPipe, traverse_dps

__all__ = [
    "DataPipe",
    "DataPipeGraph",
    "find_dps",
    "list_dps",
    "remove_dp",
    "replace_dp",
    "set_datapipes_seed",
    "set_graph_random_seed",
    "traverse_dps",
]

DataPipe = IterDataPipe[object] | MapDataPipe[Any]
