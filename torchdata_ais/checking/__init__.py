"""Look before you train: are the shards sound, what can this machine and this cluster deliver, is all in place.

`lint_shards` reads every shard as training would and tells all that is wrong, `reshard` writes the good samples
anew, `measure` times the stages of a chain one by one, `diagnose` looks at the installation and the cluster. The
commands ``torchdata-ais lint``, ``bench`` and ``doctor`` print what they return.
"""

from __future__ import annotations

from torchdata_ais.checking.doctor import Check, diagnose
from torchdata_ais.checking.findings import LintReport, Problem, ShardReport
from torchdata_ais.checking.lint import lint_shards
from torchdata_ais.checking.reshard import Resharded, reshard
from torchdata_ais.checking.speed import Rate, Speed, measure

__all__ = [
    "Check",
    "LintReport",
    "Problem",
    "Rate",
    "Resharded",
    "ShardReport",
    "Speed",
    "diagnose",
    "lint_shards",
    "measure",
    "reshard",
]
