"""Plan: samples at each position, and the rank and worker reading them.

Everything here is a pure function of sizes, seed and position: no I/O, no torch, no generator with a state.
"""

from torchdata_ais.plan.changes import Changes
from torchdata_ais.plan.mixture import DENOMINATOR, Quota, round_weights
from torchdata_ais.plan.order import Draws, EndlessOrder, MixedOrder, Order, Stop
from torchdata_ais.plan.permutation import Permutation
from torchdata_ais.plan.run import PLAN_VERSION, Epoch, MicroRun, Run, RunSegment, Shuffle, Sources
from torchdata_ais.plan.steps import Slots, Tail

__all__ = [
    "DENOMINATOR",
    "PLAN_VERSION",
    "Changes",
    "Draws",
    "EndlessOrder",
    "Epoch",
    "MicroRun",
    "MixedOrder",
    "Order",
    "Permutation",
    "Quota",
    "Run",
    "RunSegment",
    "Shuffle",
    "Slots",
    "Sources",
    "Stop",
    "Tail",
    "round_weights",
]
