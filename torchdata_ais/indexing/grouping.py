"""Members to the samples of an index: the rule of `whole_runs`, without any data."""

from __future__ import annotations

from collections.abc import Callable

from torchdata_ais.errors import NonAdjacentKeyError
from torchdata_ais.index import ShardSamples
from torchdata_ais.samples import is_apple_double, split_name

__all__ = ["Grouper"]

_LOOSE_BYTES = 1 << 20  # more than that of members without a key is not kept for links to it


class Grouper:
    """Takes the members of one shard in their order, and has its samples.

    A sample's fields are those of its regular members: what a link brings is not known before it is read.

    Args:
        url: The shard, for errors.
        xxh64: Returns XXH64 of bytes `start` to `end` of the shard; None if nobody reads them.

    Attributes:
        samples: What was found so far; whole after `finish`.

    Example:
        >>> grouper = Grouper("s.tar")
        >>> members = [("a.jpg", 700, 0, 1536), ("README", 5, 1536, 2560), ("b.cls", 1, 2560, 3584)]
        >>> for member in members:
        ...     grouper.add(*member)
        >>> samples = grouper.finish()
        >>> samples.keys, samples.starts, samples.ends, samples.fields, samples.sizes
        (['a', 'b'], [0, 2560], [2560, 3584], [('jpg',), ('cls',)], [(700,), (1,)])
    """

    def __init__(self, url: str, xxh64: Callable[[int, int], int] | None = None) -> None:
        self.samples = ShardSamples([], [], [], [], [], None if xxh64 is None else [])
        self._url = url
        self._xxh64 = xxh64
        self._seen: set[str] = set()
        self._key: str | None = None
        self._begin = self._end = 0
        self._loose = 0  # bytes of members without a key before the first sample
        self._fields: list[str] = []
        self._sizes: list[int] = []

    def add(self, name: str, size: int | None, begin: int, end: int, header: int | None = None) -> None:
        """Take the next member.

        Args:
            name: Its name.
            size: Its bytes; None for a link.
            begin: Where its first header begins.
            end: Where the next header begins.
            header: Where its last header begins, if only that is known: the sample before it reaches to there.

        Raises:
            NonAdjacentKeyError: Its key was met before, and other keys since.
        """
        if "._" in name and is_apple_double(name):
            return
        parts = split_name(name)
        if parts is None:
            self._pass_over(size, begin, end)
            return
        key, field = parts
        if key != self._key:
            if self._key is not None:
                self._close(begin if header is None else header)
                self._begin = begin
            elif not self._loose:
                self._begin = begin
            if key in self._seen:
                raise NonAdjacentKeyError.at(
                    f"the key {key!r} was met before in this shard: the members of a sample must stand together",
                    todo="sort the shard first (tar --sort=name)",
                    url=self._url,
                    offset=begin,
                    key=key,
                )
            self._seen.add(key)
            self._key = key
        self._end = end
        if size is not None:
            self._fields.append(field)
            self._sizes.append(size)

    def _pass_over(self, size: int | None, begin: int, end: int) -> None:
        """Take a member without a key: it may be what a link of the sample around it leads to."""
        if self._key is not None:
            self._end = end
        elif size is not None:
            if not self._loose:
                self._begin = begin
            self._loose += end - begin
            if self._loose > _LOOSE_BYTES:
                self._loose = 0

    def finish(self, end: int | None = None) -> ShardSamples:
        """Close the last sample, at its last member or at `end`, and return all of them."""
        if self._key is not None:
            self._close(self._end if end is None else end)
            self._key = None
        return self.samples

    def _close(self, end: int) -> None:
        samples = self.samples
        samples.keys.append(self._key or "")
        samples.starts.append(self._begin)
        samples.ends.append(end)
        samples.fields.append(tuple(self._fields))
        samples.sizes.append(tuple(self._sizes))
        if self._xxh64 is not None and samples.xxh64 is not None:
            samples.xxh64.append(self._xxh64(self._begin, end))
        self._fields, self._sizes = [], []
