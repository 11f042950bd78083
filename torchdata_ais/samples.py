"""From members to samples: WebDataset's naming rule, and whole runs of members.

The rule (as webdataset 1.0.2 applies it): the *key* of a member is its path up to the first dot of the last
component, the *field* is the rest, lower-cased. ``train/cat.seg.PNG`` is field ``seg.png`` of the sample
``train/cat``. A sample is a run of consecutive members with one key. Members without a key (``README``,
``.hidden``, ``__meta__``) belong to no sample.

A run is known to be whole only when a member with another key follows, or when its shard has ended well.
`whole_runs` therefore holds each run back until then: a shard that breaks off gives up its last, perhaps
incomplete, run instead of passing it on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

from typing_extensions import override

from torchdata_ais.errors import AISError, SampleError, UnsupportedMemberError
from torchdata_ais.shown import value_text
from torchdata_ais.tar import Link, LinkTargets, Member

__all__ = [
    "SHARD_SHIFT",
    "PlannedSample",
    "Run",
    "RunMember",
    "Sample",
    "pack_place",
    "shown_fields",
    "split_name",
    "unpack_place",
    "whole_runs",
]

SHARD_SHIFT = 40
"""Bits of a place below those of its shard."""

_KEY = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)\Z", re.DOTALL)
_META = re.compile(r"__[^/]*__(?:/|\Z)")

# What a member takes in memory besides its data: its records here and in the sample, the dictionary that links are
# looked up in; and its name, which is kept twice, as a whole and as its field, in up to 4 bytes a character.
_MEMBER_BYTES = 512
_CHAR_BYTES = 8
_FREE_BYTES = 64 << 10  # so much of that does not count, so that small bounds are bounds on data
_LOOSE_BYTES = 1 << 20

_SHOWN_FIELDS = 20


class Sample(dict[str, Any]):
    """One sample: ``{"__key__": str, "__url__": str, field: value, ...}``, fields in the shard's order.

    Attributes:
        place: Where in the data set it stands, as one integer (`pack_place`); -1 if it does not come from
            `load_tar`. A checkpoint names the samples it holds by it.

    Example:
        >>> sample = Sample({"__key__": "a"}, place=pack_place(shard=3, offset=1024))
        >>> sample.shard, sample.offset
        (3, 1024)
    """

    __slots__ = ("place",)

    place: int

    def __init__(self, *args: Any, place: int = -1) -> None:
        super().__init__(*args)
        self.place = place

    @property
    def shard(self) -> int:
        """The position of its shard in the epoch's order, before the split over ranks and workers; or -1."""
        return unpack_place(self.place)[0]

    @property
    def offset(self) -> int:
        """Where its first header begins, in bytes of the (decompressed) shard; or -1."""
        return unpack_place(self.place)[1]

    picture: ClassVar[Callable[[Any], str] | None] = None
    """What notebooks show; `torchdata_ais.display` gives a table here."""

    @property
    def where(self) -> str:
        """Its key, shard and byte, as far as they are known.

        Example:
            >>> Sample({"__key__": "a", "__url__": "ais://b/s.tar"}, place=pack_place(0, 512)).where
            "sample 'a', byte 512 of ais://b/s.tar"
        """
        key = f"sample {self['__key__']!r}" if "__key__" in self else "sample"
        url = (
            f"{'' if self.place < 0 else f'byte {self.offset} of '}{self['__url__']}"
            if "__url__" in self
            else ""
        )
        return f"{key}, {url}" if url else key

    def __repr__(self) -> str:
        shown = (
            f"{name!r}: {value!r}" if name[:2] == "__" else f"{name!r}: {value_text(value)}"
            for name, value in self.items()
        )
        return f"{{{', '.join(shown)}}}"

    def __str__(self) -> str:
        fields = [name for name in self if name[:2] != "__"]
        width = max(map(len, fields), default=0)
        return "\n".join([self.where, *(f"  {name:{width}}  {value_text(self[name])}" for name in fields)])

    def _repr_html_(self) -> str | None:
        return None if Sample.picture is None else Sample.picture(self)

    def __copy__(self) -> Sample:
        return self.renewed(self)

    def renewed(self, fields: dict[str, Any]) -> Sample:
        """Return a sample with other fields that stands in the same place."""
        return Sample(fields, place=self.place)

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any], int]]:
        return _sample, (dict(self), self.place)


def _sample(fields: dict[str, Any], place: int) -> Sample:
    return Sample(fields, place=place)


class PlannedSample(Sample):
    """A sample that was read by index.

    Attributes:
        source: The number of its index in the mixture; 0 without one.
        draw: How many samples of that index were drawn before it, over the whole run.

    Example:
        >>> sample = PlannedSample({"__key__": "a"}, source=1, draw=7)
        >>> sample.renewed({"x": 3}).draw
        7
    """

    __slots__ = ("draw", "source")

    source: int
    draw: int

    def __init__(self, *args: Any, place: int = -1, source: int = 0, draw: int = 0) -> None:
        super().__init__(*args, place=place)
        self.source = source
        self.draw = draw

    @override
    def renewed(self, fields: dict[str, Any]) -> PlannedSample:
        return PlannedSample(fields, place=self.place, source=self.source, draw=self.draw)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _planned_sample, (dict(self), self.place, self.source, self.draw)


def _planned_sample(fields: dict[str, Any], place: int, source: int, draw: int) -> PlannedSample:
    return PlannedSample(fields, place=place, source=source, draw=draw)


def pack_place(shard: int, offset: int) -> int:
    """Return one 63-bit integer for a place: 23 bits of shard, 40 bits of offset in blocks of 512 bytes.

    Headers stand at multiples of 512, so this reaches 8 million shards of 512 TiB.
    """
    return -1 if shard < 0 or offset < 0 else (shard << SHARD_SHIFT) | (offset >> 9)


def unpack_place(place: int) -> tuple[int, int]:
    """Return ``(shard, offset)`` of a packed place; ``(-1, -1)`` for -1."""
    return (-1, -1) if place < 0 else (place >> SHARD_SHIFT, (place & 0xFF_FFFF_FFFF) << 9)


class RunMember(NamedTuple):
    """One member of a run; `field` is None for a member without a key."""

    name: str
    data: bytes
    offset: int
    field: str | None


class Run:
    """Consecutive members with one key, known to be whole.

    Attributes:
        key: The key, or None if only key-less members were left at the end of the shard.
        members: All of them in the shard's order, key-less ones that stood between them included.
        offset: Where the first header of the run begins.
        end: Where the header after the run begins: reading can start again there.
        error: Why the run cannot be used, or None. Its members are then empty.
        last: Whether the shard ends with this run.
        shard: The position of the shard in the order of the epoch; -1 if not known.
    """

    __slots__ = ("end", "error", "key", "last", "members", "offset", "shard")

    def __init__(
        self,
        key: str | None,
        members: list[RunMember],
        offset: int,
        end: int,
        error: AISError | None = None,
        last: bool = False,
    ) -> None:
        self.key = key
        self.members = members
        self.offset = offset
        self.end = end
        self.error = error
        self.last = last
        self.shard = -1


def split_name(name: str) -> tuple[str, str] | None:
    """Return the key and the field of a member name, or None for a member that belongs to no sample.

    Example:
        >>> split_name("d.x/cat.seg.PNG")
        ('d.x/cat', 'seg.png')
        >>> split_name("README"), split_name(".hidden"), split_name("__index__/a.json")
        (None, None, None)
    """
    key, dot, field = name.partition(".")
    if "/" in field:  # the dot is in the name of a folder
        start = name.rfind("/") + 1
        key, dot, field = name[start:].partition(".")
        key = name[:start] + key
    if key and key[-1] != "/" and dot and not name.startswith("__"):
        return key, field.lower()
    if not dot or _META.match(name):
        return None
    # Rare names (dot files in folders, leading underscores): the letter of the rule decides.
    found = _KEY.match(name)
    return (found[1], found[2].lower()) if found else None


def shown_fields(sample: Iterable[str]) -> str:
    """Return the fields of a sample for a message: sorted, the first 20.

    Example:
        >>> shown_fields({"__key__": "a", "jpg": b"", "cls": b""})
        "['cls', 'jpg']"
    """
    fields = sorted(field for field in sample if not field.startswith("__"))
    if len(fields) <= _SHOWN_FIELDS:
        return str(fields)
    return f"{fields[:_SHOWN_FIELDS]} and {len(fields) - _SHOWN_FIELDS} more"


def is_apple_double(name: str) -> bool:
    """Return whether macOS made this member beside the real one (``._cat.jpg``): it is never data."""
    return name.startswith("._", name.rfind("/") + 1)


def whole_runs(
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
        max_bytes: A run that holds more is given up: it is yielded without members and with an error. Counted are
            the data, and of what else is kept (512 bytes a member, 8 a character of its name, 12 if it was renamed)
            all beyond 64 KiB.

    Yields:
        `Run`. If `members` raises, the run begun is dropped and the error passes through. Members without a key
        beyond 1 MiB are yielded before the run they stand in, as a run without a key.

    Memory:
        One run: at most ``max_bytes + 64 KiB`` and its largest member; 1 MiB of members without a key, or one.
    """
    key: str | None = None
    held: list[RunMember] = []
    stored: list[str] = []  # the names of `held` as they stand in the shard, if renamed: links go by them
    loose: list[_Loose] = []  # members without a key, which never count against the sample they stand in
    targets: LinkTargets | None = None  # made when the first link of the run comes
    begin = end = 0
    size = records = loose_bytes = 0
    error: AISError | None = None
    new = tuple.__new__  # RunMember(...) takes twice as long
    for stored_name, data, offset, after in members:
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
        yield Run(key, _merged(held, loose), begin, end, error, last=True)


class _Loose(NamedTuple):
    """A member without a key: how many of the run stand before it, its name in the shard, and itself."""

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
    """Return what links can point to: members of the same run, read before."""
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
        todo="raise max_sample_bytes, or check that keys differ between samples",
        url=url, member=name, offset=offset, key=key,
    )  # fmt: skip
