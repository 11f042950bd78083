"""From a run of members to a sample: the one place that says what a sample is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TypeVar

from torchdata_ais.errors import (
    AISError,
    DuplicateFieldError,
    NotFoundError,
    ObjectChangedError,
    SampleIndexError,
)
from torchdata_ais.index import IndexedSamples, SampleReference
from torchdata_ais.reading.runs import Run
from torchdata_ais.samples import PlannedSample, Sample, pack_place
from torchdata_ais.urls import parse_url, shown_url

_S = TypeVar("_S", bound=Sample)


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


def naming_index(error: AISError, index: IndexedSamples, reference: SampleReference) -> AISError:
    """Return the error of a sample that was read by index with the index's place, if it may be the index's fault."""
    if isinstance(error, (SampleIndexError, ObjectChangedError, NotFoundError)):
        return error.noting(f"index: {index.place_of(reference)}")
    return error


@lru_cache(4096)
def url_of_shard(name: str, endpoint: str) -> str:
    """Return what samples of the stream have as their ``__url__``.

    Args:
        name: The shard as an index names it.
        endpoint: Of the cluster, for names that have none.

    Example:
        >>> url_of_shard("ais://pets/1.tar", "http://h:51080")
        'http://h:51080/v1/objects/pets/1.tar?provider=ais'
    """
    place = parse_url(name).at(endpoint)
    return shown_url(place.url() if place.kind == "object" else name)


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
