"""Members to the samples of an index: the rule of `whole_runs`, without any data."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

from torchdata_ais.errors import NonAdjacentKeyError
from torchdata_ais.index import ShardSamples
from torchdata_ais.samples import is_apple_double, split_name

_AROUND = 64 << 10  # so far back a link of a sample may stand, with members without a key after it
_LOOSE_BYTES = 1 << 20  # more than that of members without a key is not kept for links to it


class UnusableError(Exception):
    """The index of the cluster does not say where the samples of this shard stand; its text says why."""


PlacedMember = tuple[str, "int | None", int, int, int]
"""Name; bytes, or None for a link; where it begins; its last header, or where it begins; where the next one begins."""


def group_members(members: Iterable[PlacedMember], url: str, *, end: int | None = None) -> ShardSamples:
    """Return the samples of one shard, by its members in their order.

    A sample's fields are those of its regular members: what a link brings is not known before it is read.

    Args:
        members: See `PlacedMember`. A sample begins where its first member does, and ends at the last header of
            the next one's first member: where both are known, these meet.
        url: The shard, for errors.
        end: Where the last sample ends, if links are not among the members: there may be one between any two. None:
            with its last member.

    Raises:
        NonAdjacentKeyError: A key comes back after other keys.
        UnusableError: With `end`, what no member names (it may be a link) stands far before a sample, among members
            without a key.

    Example:
        >>> members = [("a.jpg", 700, 0, 0, 1536), ("README", 5, 1536, 1536, 2560), ("b.cls", 1, 2560, 2560, 3584)]
        >>> samples = group_members(members, "s.tar")
        >>> samples.keys, samples.starts, samples.ends, samples.fields, samples.sizes
        (['a', 'b'], [0, 2560], [2560, 3584], [('jpg',), ('cls',)], [(700,), (1,)])
    """
    grouping = Grouping(url, end=end)
    for member in members:
        grouping.send(member)
    return grouping.finish()


class Grouping:
    """`group_members` for who has one member after the other.

    Args:
        url: See there. So is `end`.
        xxh64: Returns XXH64 of bytes `start` to `end` of the shard; None if nobody reads them.

    Example:
        >>> grouping = Grouping("s.tar")
        >>> grouping.send(("a.jpg", 700, 0, 0, 1536))
        >>> grouping.finish().keys
        ['a']
    """

    def __init__(
        self, url: str, xxh64: Callable[[int, int], int] | None = None, *, end: int | None = None
    ) -> None:
        self._grouped = _grouped(url, end, xxh64)
        next(self._grouped)
        self.send: Callable[[PlacedMember], object] = self._grouped.send
        """Take the next member. Raises what `group_members` raises."""

    def finish(self) -> ShardSamples:
        """Return the samples; there are no more members."""
        try:
            self._grouped.send(None)
        except StopIteration as stopped:
            samples: ShardSamples = stopped.value
        return samples


def _grouped(
    url: str, end: int | None, xxh64: Callable[[int, int], int] | None
) -> Generator[None, PlacedMember | None, ShardSamples]:
    samples = ShardSamples([], [], [], [], [], None if xxh64 is None else [])
    seen: set[str] = set()
    key: str | None = None
    start = reached = keyed = loose = (
        0  # of members without a key before the first sample; keyed: where the last with one ends
    )
    unnamed: int | None = None  # the first place since `keyed` that none of the members without a key names
    names: list[str] = []
    lengths: list[int] = []

    def close(stop: int) -> None:
        samples.keys.append(key or "")
        samples.starts.append(start)
        samples.ends.append(stop)
        samples.fields.append(tuple(names))
        samples.sizes.append(tuple(lengths))
        if samples.xxh64 is not None and xxh64 is not None:
            samples.xxh64.append(xxh64(start, stop))

    while True:
        member = yield
        if member is None:
            break
        name, size, begin, header, after = member
        parts = None if (apple := "._" in name and is_apple_double(name)) else split_name(name)
        if parts is None and end is not None and unnamed is None and begin < header:
            unnamed = begin
        if apple:
            continue
        if parts is None:  # it may be what a link of the sample around it leads to
            if key is not None:
                reached = after
            elif size is not None:
                start = start if loose else begin
                loose += after - begin
                loose = 0 if loose > _LOOSE_BYTES else loose
            continue
        if parts[0] != key:
            if key is not None:
                close(header)
            if end is not None and begin - keyed <= _AROUND:
                start = keyed
            elif unnamed is not None:
                raise UnusableError(f"what stands at byte {unnamed} may be a link of the sample {parts[0]!r}")
            elif key is not None or not loose:
                start = begin
            key, names, lengths = parts[0], [], []
            if key in seen:
                raise NonAdjacentKeyError.at(
                    f"the key {key!r} was met before in this shard: the members of a sample must stand together",
                    todo="sort the shard first (tar --sort=name)",
                    url=url,
                    offset=begin,
                    key=key,
                )
            seen.add(key)
        reached = keyed = after
        unnamed = None
        if size is not None:
            names.append(parts[1])
            lengths.append(size)
    if key is not None:
        close(reached if end is None else end)
    return samples
