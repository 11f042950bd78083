"""From a run of members to a sample: the one place that says what a sample is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from torchdata_ais.errors import DuplicateFieldError
from torchdata_ais.samples import PlannedSample, Run, Sample, pack_place

_S = TypeVar("_S", bound=Sample)

__all__ = ["planned_sample", "sample_of", "whole_samples"]


def sample_of(run: Run, url: str) -> Sample:
    """Return the sample that a run with a key is.

    Raises:
        DuplicateFieldError: It has a field twice.
    """
    return _filled(Sample.__new__(Sample), run, url)  # __init__ takes longer than all that follows


def planned_sample(run: Run, url: str, source: int, draw: int) -> PlannedSample:
    """Return the sample that a run with a key is, as one that was read by index."""
    sample = PlannedSample.__new__(PlannedSample)
    sample.source, sample.draw = source, draw
    return _filled(sample, run, url)


def _filled(sample: _S, run: Run, url: str) -> _S:
    sample.place = pack_place(run.shard, run.offset)
    sample["__key__"] = run.key
    sample["__url__"] = url
    for name, data, offset, field in run.members:
        if field is None:
            continue
        if field in sample:
            raise DuplicateFieldError.at(
                f"the sample {run.key!r} has the field {field!r} twice",
                todo="write the shard anew with different names, or mend it with: torchdata-ais lint --fix",
                url=url, member=name, offset=offset, key=run.key, field=field,
            )  # fmt: skip
        sample[field] = data
    return sample


def whole_samples(runs: Iterable[Run], url: str) -> Iterator[tuple[Run, Sample]]:
    """Yield the samples of one shard that is read by itself, each with its run.

    Raises:
        AISError: The first thing that is wrong: nothing is passed over.
    """
    for run in runs:
        run.shard = 0
        if run.error is not None:
            raise run.error
        if run.key is not None:
            yield run, sample_of(run, url)
