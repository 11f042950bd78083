"""Samples of joined indexes, read together and merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from torchdata_ais.errors import AISError, DuplicateFieldError
from torchdata_ais.index import IndexedSamples
from torchdata_ais.reading.requests import Wanted
from torchdata_ais.reading.runs import Run, naming_index
from torchdata_ais.samples import Sample

Found = Run | AISError


class Whole(NamedTuple):
    """A requested sample with its result and those of its partners."""

    wanted: Wanted
    found: Found
    partners: Sequence[Found]


def with_partners(wanted: Iterable[Sequence[Wanted]]) -> Iterator[Sequence[Wanted]]:
    """Yield each requested sample, followed by its partners."""
    for some in wanted:
        if any(one.partners for one in some):
            yield [each for one in some for each in (one, *one.partners)]
        else:
            yield some


def read_whole(
    read: Callable[[Iterable[Sequence[Wanted]]], Iterator[tuple[Wanted, Found]]],
    wanted: Iterable[Sequence[Wanted]],
) -> Iterator[Whole]:
    """Yield each sample with its partners, in the requested order.

    Memory: one sample and its partners, plus the memory of `read`.
    """
    items = read(with_partners(wanted))
    for one, found in items:
        yield Whole(one, found, [next(items)[1] for _ in one.partners] if one.partners else ())


class JoinedIndexes:
    """Indexes, followed by those joined to them; `Wanted.source` numbers all."""

    def __init__(self, sources: Sequence[IndexedSamples]) -> None:
        self.all = list(sources)
        self._first: list[int] = []  # of the joins of each source
        self._prefixes = [""] * len(sources)
        for index in sources:
            self._first.append(len(self.all))
            for join in index.joins:
                self.all.append(join.other)
                self._prefixes.append(join.prefix)

    def wanted(
        self,
        source: int,
        numbers: Sequence[int],
        draws: Sequence[int] | None = None,
        slots: Sequence[int] | None = None,
    ) -> Iterator[Wanted]:
        """Yield requests for some samples of a source, with their partners.

        `draws` count the samples of the source before each, `slots` are the batches they are for.
        """
        index = self.all[source]
        draws = draws or [0] * len(numbers)
        slots = slots or [0] * len(numbers)
        references = index.take(numbers)
        if not index.joins:
            yield from map(Wanted, references, [source] * len(numbers), draws, slots)
            return
        rows = zip(references, index.partners(numbers), draws, slots, strict=True)
        for reference, partners, draw, slot in rows:
            theirs = tuple(
                Wanted(partner, self._first[source] + number, draw, slot)
                for number, partner in enumerate(partners)
                if partner is not None
            )
            yield Wanted(reference, source, draw, slot, theirs)

    def add_partners(self, sample: Sample, whole: Whole) -> None:
        """Add the fields of a sample's partners to it, or raise their error."""
        for wanted, found in zip(whole.wanted.partners, whole.partners, strict=True):
            if isinstance(found, AISError):
                raise naming_index(found, self.all[wanted.source], wanted.reference)
            prefix = self._prefixes[wanted.source]
            for name, data, offset, field in found.members:
                if field is None:
                    continue
                named = f"{prefix}{field}"
                if named in sample:
                    raise DuplicateFieldError.at(
                        f"the sample {found.key!r} and what is joined to it have both the field {named!r}",
                        todo='name the fields of the other index apart: join(..., prefix="other.")',
                        url=wanted.reference.shard.name, member=name, offset=offset, key=found.key, field=named,
                    )  # fmt: skip
                sample[named] = data
            self.all[wanted.source].relabel(sample, wanted.reference, prefix)
