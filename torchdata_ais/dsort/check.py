"""The same samples, each as often as before: two sets of shards compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import xxhash

from torchdata_ais.jobs import JobError, OnProgress, Progress
from torchdata_ais.pipes import AISFileLoader, TarSampleGrouper
from torchdata_ais.samples import Sample
from torchdata_ais.store import StoreOptions
from torchdata_ais.urls import ObjectURL

_NAMED = 5


def check_samples(
    before: Sequence[ObjectURL],
    after: Sequence[ObjectURL],
    options: StoreOptions,
    name: str,
    progress: OnProgress | None = None,
) -> int:
    """Return how many samples `after` holds, if they are those of `before`.

    Raises:
        JobError: A sample is missing, changed, or there more often.
        ShardError: A shard is not whole.
    """
    left: Counter[int] = Counter()
    count = 0
    total = len(before) + len(after)
    for number, url in enumerate(before):
        left.update(map(digest, _samples(url, options)))
        _tell(progress, number + 1, total)
    extra: list[str] = []
    for number, url in enumerate(after):
        for sample in _samples(url, options):
            count += 1
            code = digest(sample)
            if left[code]:
                left[code] -= 1
            elif len(extra) <= _NAMED:
                extra.append(f"{sample['__key__']!r} of {url}")
        _tell(progress, len(before) + number + 1, total)
    lost = sum(left.values())
    if lost or extra:
        again = (sample for url in before for sample in _samples(url, options))
        keys = islice((repr(sample["__key__"]) for sample in again if left[digest(sample)]), _NAMED)
        what = [f"{lost} samples are missing or changed: {', '.join(keys)}"] if lost else []
        what += [f"others are there that were not: {', '.join(extra[:_NAMED])}"] if extra else []
        raise JobError.at(
            f"{name} did not keep the samples: {'; '.join(what)}",
            todo="do not train on its output; samples of different shards with one key are taken for one by dSort",
        )
    return count


def digest(sample: Sample) -> int:
    """Return a number that stands for key, fields and data, in whatever order the fields are."""
    summary = xxhash.xxh3_64(sample["__key__"].encode("utf-8", "surrogateescape"))
    for field in sorted(name for name in sample if not name.startswith("__")):
        summary.update(f"\0{field}\0{len(sample[field])}\0".encode("utf-8", "surrogateescape"))
        summary.update(sample[field])
    return summary.intdigest()


def _samples(url: ObjectURL, options: StoreOptions) -> Iterator[Sample]:
    return iter(TarSampleGrouper(AISFileLoader([url], cluster=options)))


def _tell(progress: OnProgress | None, done: int, total: int) -> None:
    if progress is not None:
        progress(Progress("check", done, total))
