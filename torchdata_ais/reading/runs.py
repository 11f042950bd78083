"""Runs of members, the samples they form, and sets of keys.

A run is known to be whole only when a member with another key follows, or when its shard has ended well.
`whole_runs` therefore holds each run back until then: a shard that breaks off gives up its last, perhaps
incomplete, run instead of passing it on.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from torchdata_ais.errors import (
    AISError,
    DuplicateFieldError,
    NotFoundError,
    ObjectChangedError,
    SampleError,
    SampleIndexError,
    TrailingDataError,
    UnsupportedMemberError,
)
from torchdata_ais.samples import PlannedSample, Sample, is_apple_double, pack_place, split_name
from torchdata_ais.tar import Link, LinkTargets, Member
from torchdata_ais.urls import parse_url, shown_url

if TYPE_CHECKING:
    from torchdata_ais.index import IndexedSamples, SampleReference

# What a member takes in memory besides its data: its records here and in the sample, the dictionary that links are
# looked up in; and its name, which is kept twice, as a whole and as its field, in up to 4 bytes a character.
_MEMBER_BYTES = 512
_CHAR_BYTES = 8
_FREE_BYTES = 64 << 10  # so much of that does not count, so that small bounds are bounds on data
_LOOSE_BYTES = 1 << 20


class RunMember(NamedTuple):
    """One member of a run; `field` is None for a member without a key."""

    name: str
    data: bytes
    offset: int
    field: str | None


@dataclass(slots=True, eq=False, repr=False)
class Run:
    """Consecutive members with one key, known to be complete.

    Attributes:
        key: The key, or None if only key-less members were left at the end of the shard.
        members: All of them in the shard's order, key-less ones between them included.
        offset: Where the first header of the run begins.
        end: Where the header after the run begins: reading can start again there.
        error: Why the run cannot be used, or None. Its members are then empty.
        last: Whether the shard ends with this run.
        shard: The position of the shard in the order of the epoch; -1 if not known.
    """

    key: str | None
    members: list[RunMember]
    offset: int
    end: int
    error: AISError | None = None
    last: bool = False
    shard: int = -1


# One loop with many branches: every member of every shard passes here, and the variables of a run change together.
def whole_runs(  # noqa: C901
    members: Iterable[Member],
    *,
    url: str,
    rename: Callable[[str], str] | None = None,
    max_bytes: int | None = None,
) -> Iterator[Run]:
    """Yield the runs of one shard, each only when it is known to be whole.

    Args:
        members: ``(name, data, offset, end)`` in the shard's order; links carry a `Link` as data, members that were
            passed over for their size a `TooLarge`.
        url: The shard, for errors.
        rename: Applied to each name before the key rule.
        max_bytes: A larger run is given up: it is yielded without members and with an error. It counts the data, and
            the part of the overhead beyond 64 KiB: 512 bytes a member, 8 a character of its name, 12 if it was
            renamed.

    Yields:
        `Run`. If `members` raises, the started run is dropped and the error passes through; a `TrailingDataError`
        does so after the run, which is whole. Members without a key
        beyond 1 MiB are yielded before the run that they are in, as a run without a key.

    Memory:
        One run: at most ``max_bytes + 64 KiB`` and its largest member; 1 MiB of members without a key, or one.
    """
    key: str | None = None
    held: list[RunMember] = []
    stored: list[str] = []  # the names of `held` in the shard, if renamed: links refer to them
    loose: list[_Loose] = []  # members without a key, which never count for the sample around them
    targets: LinkTargets | None = None  # made when the first link of the run comes
    begin = end = 0
    size = records = loose_bytes = 0
    error: AISError | None = None
    new = tuple.__new__  # RunMember(...) takes twice as long
    follows: list[TrailingDataError] = []
    for stored_name, data, offset, after in _until_trailing(members, follows):
        if "._" in stored_name and is_apple_double(stored_name):
            continue
        name = stored_name if rename is None else rename(stored_name)
        parts = split_name(name)
        field: str | None = None
        if parts is not None:
            if parts[0] != key and key is not None:
                yield Run(key, _merged(held, loose) if loose else held, begin, offset, error)
                held, stored, loose, targets, error = [], [], [], None, None
                size = records = loose_bytes = 0
                begin = offset
            key, field = parts
        if not held and not loose and error is None:
            begin = offset
        end = after
        if error is not None and parts is not None:
            continue
        problem: AISError | None = None
        if not isinstance(data, bytes):
            if isinstance(data, Link):
                if targets is None:
                    targets = _targets_among(held, stored, loose)
                linked = targets.find(stored_name, data)
                if linked is None:
                    problem = _bad_link(data, name, url, offset, key if parts else None)
                data = linked or b""  # noqa: PLW2901
            else:
                problem = _too_large("member", data, max_bytes, name, url, offset, key if parts else None)
                data = b""  # noqa: PLW2901
            if problem is not None and parts is None:  # it belongs to no sample: none is lost for it
                yield Run(None, [], offset, begin if held or loose or error else after, problem)
                continue
        if error is not None:
            continue
        member = new(RunMember, (name, data, offset, field))
        if targets is not None:
            targets.add(stored_name, data)
        if parts is None:
            loose.append(_Loose(len(held), stored_name, member))
            loose_bytes += len(data) + _MEMBER_BYTES + _CHAR_BYTES * len(name)
            if loose_bytes > _LOOSE_BYTES:
                if targets is not None:
                    for early in loose:
                        targets.forget(early.stored, early.member.data)
                yield Run(
                    None, [early.member for early in loose], loose[0].member.offset, begin if held else after
                )
                loose, loose_bytes = [], 0
            continue
        size += len(data)
        records += _MEMBER_BYTES + _CHAR_BYTES * len(name)
        if rename is not None:
            records += _CHAR_BYTES // 2 * len(stored_name)  # kept, too
        if max_bytes is not None and (size > max_bytes or size + records > max_bytes + _FREE_BYTES):
            problem = problem or _too_large("sample", size + records, max_bytes, name, url, begin, key)
        if problem is None:
            held.append(member)
            if rename is not None:
                stored.append(stored_name)
        else:
            error = problem
            held, stored, loose, targets = [], [], [], None
    if held or loose or error is not None:
        yield Run(key, _merged(held, loose), begin, end, error, last=not follows)
    if follows:
        raise follows[0]


def _until_trailing(members: Iterable[Member], follows: list[TrailingDataError]) -> Iterator[Member]:
    """Yield the members; keep the error of trailing data in `follows`."""
    try:
        yield from members
    except TrailingDataError as error:
        follows.append(error)


class _Loose(NamedTuple):
    """A member without a key: index in the run, name in the shard, itself."""

    position: int
    stored: str
    member: RunMember


def _merged(held: list[RunMember], loose: list[_Loose]) -> list[RunMember]:
    """Return all members of a run in the shard's order."""
    merged: list[RunMember] = []
    at = 0
    for position, _, member in loose:
        merged += held[at:position]
        merged.append(member)
        at = position
    return merged + held[at:]


def _targets_among(held: list[RunMember], stored: list[str], loose: list[_Loose]) -> LinkTargets:
    """Return possible targets of links: earlier members of the same run."""
    targets = LinkTargets()
    for name, member in zip(stored or [member.name for member in held], held, strict=True):
        targets.add(name, member.data)
    for _, name, member in loose:
        targets.add(name, member.data)
    return targets


def _bad_link(link: Link, name: str, url: str, offset: int, key: str | None) -> AISError:
    return UnsupportedMemberError.at(
        f"the member is a link to {str(link)!r}, which is no earlier member of its sample",
        todo="store the file itself (tar --hard-dereference --dereference)",
        url=url, member=name, offset=offset, key=key,
    )  # fmt: skip


def _too_large(
    what: str, size: int, limit: int | None, name: str, url: str, offset: int, key: str | None
) -> AISError:
    return SampleError.at(
        f"the {what} holds {'at least ' if what == 'sample' else ''}{size} bytes"
        f"{', names and records included' if what == 'sample' else ''}, more than max_sample_bytes={limit}",
        todo="raise max_sample_bytes of Safety, or check that keys differ between samples",
        url=url, member=name, offset=offset, key=key,
    )  # fmt: skip


_S = TypeVar("_S", bound=Sample)


def sample_of(run: Run, url: str) -> Sample:
    """Return the sample that a run with a key is."""
    return _filled(Sample.__new__(Sample), run, url)  # __init__ takes longer than all that follows


def planned_sample(run: Run, url: str, source: int, draw: int) -> PlannedSample:
    """Return the sample of a run with a key, as one read by index."""
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
    """Return the error, with the place of the index if that may be wrong."""
    if isinstance(error, (SampleIndexError, ObjectChangedError, NotFoundError)):
        return error.noting(f"index: {index.place_of(reference)}")
    return error


@lru_cache(4096)
def url_of_shard(name: str, endpoint: str) -> str:
    """Return the ``__url__`` of stream samples; `endpoint` if `name` has none.

    Example:
        >>> url_of_shard("ais://pets/1.tar", "http://h:51080")
        'http://h:51080/v1/objects/pets/1.tar?provider=ais'
    """
    place = parse_url(name).at(endpoint)
    return shown_url(place.url() if place.kind == "object" else name)


def whole_samples(runs: Iterable[Run], url: str) -> Iterator[tuple[Run, Sample]]:
    """Yield the samples of a shard, each with its run; any fault is an error."""
    for run in runs:
        run.shard = 0
        if run.error is not None:
            raise run.error
        if run.key is not None:
            yield run, sample_of(run, url)


_FEW = 8192  # keys kept as they are,
_FEW_CHARACTERS = 256 << 10  # and characters in them: together at most 2 MB, whatever the keys are
_PARTS = 64
_SLOTS = 16  # of a part at first; a power of two


class KeySet:
    """Set of keys: the first 8192 as they are, more as hashes of 64 bits.

    Long keys, of more than 256 Ki characters together, go into the flat tables of hashes earlier.

    A Python set is eight times as fast, but a million keys take over 100 MB in it, in flat tables 22 MB. They are cut
    into parts that grow one by one, so that growing never needs the memory of two whole tables, nor the time to fill
    one. Two different keys are taken for the same with probability n²/2⁶⁵: one in 30 million for a shard of a
    million samples.

    Example:
        >>> keys = KeySet()
        >>> keys.add("a"), keys.add("b"), keys.add("a")
        (True, True, False)
    """

    def __init__(self) -> None:
        self._few: set[str] = set()
        self._characters = 0
        self._counts = [0] * _PARTS
        self._tables: list[array[int]] = []  # empty as long as there are few

    def __len__(self) -> int:
        return len(self._few) + sum(self._counts)

    def add(self, key: str) -> bool:
        """Add `key`; return False if it was there before."""
        if self._tables:
            return self._add_hash(key)
        few = self._few
        if key in few:
            return False
        few.add(key)
        self._characters += len(key)
        if len(few) > _FEW or self._characters > _FEW_CHARACTERS:
            self._tables = [array("Q", bytes(8 * _SLOTS)) for _ in range(_PARTS)]
            self._few = set()
            for known in few:
                self._add_hash(known)
        return True

    def _add_hash(self, key: str) -> bool:
        value = hash(key) & 0xFFFFFFFFFFFFFFFF or 1  # 0 is an empty slot
        part = value % _PARTS
        if not _put(self._tables[part], value):
            return False
        self._counts[part] += 1
        if 4 * self._counts[part] > 3 * len(self._tables[part]):
            self._tables[part] = _doubled(self._tables[part])
        return True


def _put(table: array[int], value: int) -> bool:
    mask = len(table) - 1
    slot = value // _PARTS & mask
    while found := table[slot]:
        if found == value:
            return False
        slot = (slot + 1) & mask
    table[slot] = value
    return True


def _doubled(table: array[int]) -> array[int]:
    larger = array("Q", bytes(16 * len(table)))
    for value in table:
        if value:
            _put(larger, value)
    return larger
