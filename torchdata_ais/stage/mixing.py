"""What the mixing stages share: their sources."""

from __future__ import annotations

import copy
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.stage.below_plan import below_plan
from torchdata_ais.stage.pipe import IterDataPipe, as_pipe, check_source


def several_pipes(source: Any, others: tuple[Any, ...]) -> list[IterDataPipe[Any]]:
    """Return the pipes to mix: `source` and `others`, or, with no others, those in the list `source`.

    A pipe given twice is copied: torch allows one iterator of a pipe at a time.
    """
    given = list(source) if not others and isinstance(source, (list, tuple)) else [source, *others]
    if not given:
        raise UsageError.at("there is nothing to mix", todo="pass pipes: RoundRobin([a, b])")
    pipes: list[IterDataPipe[Any]] = []
    for item in given:
        pipe = as_pipe(item)
        check_source(pipe)
        if below_plan(pipe):
            raise UsageError.at(
                "several pipes of which one begins with .read_samples() cannot be mixed: each plan holds for one pipe",
                todo="mix indexes: .read_samples() of a Mixture({index: weight, ...})",
            )
        pipes.append(copy.deepcopy(pipe) if any(pipe is other for other in pipes) else pipe)
    return pipes
