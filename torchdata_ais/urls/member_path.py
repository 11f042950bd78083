"""The path of a member of a shard."""

from __future__ import annotations

import re
from typing import Any

from typing_extensions import Self

_MEMBER = re.compile(r"^(.*?(?:\.tar(?:\.\w+)?(?:\?[^/]*)?|\.tgz(?:\?[^/]*)?|\?provider=[^/]*))/", re.DOTALL)


class MemberPath(str):
    """The path of an archive member: ``<url>/<member>``.

    Attributes:
        url: The shard.
        member: The member's name in it.
        offset: Where the member's header begins, in bytes of the (decompressed) shard; -1 if not known.
        ends: ``"run"`` if this is the last member of its sample, ``"shard"`` if it is also the last of its shard,
            else ``""``.
        shard: The position of the shard in the order of the epoch; -1 if not known.

    Example:
        >>> path = MemberPath.of("ais://b/s.tar", "cat/000.jpg", 512)
        >>> path, path.member, path.offset
        ('ais://b/s.tar/cat/000.jpg', 'cat/000.jpg', 512)
        >>> MemberPath("http://h/v1/objects/b/s.tar?provider=ais/cat/000.jpg").member
        'cat/000.jpg'
    """

    __slots__ = ("ends", "member", "offset", "shard", "url")

    url: str
    member: str
    offset: int
    ends: str
    shard: int

    def __new__(cls, path: str, offset: int = -1) -> Self:
        """Split a plain path after the first ``.tar/``, ``.tgz/``, ``.tar.xx/`` or ``?provider=xx/``."""
        self = super().__new__(cls, path)
        # Up to the last slash: behind it the pattern would scan from each query to the end.
        found = _MEMBER.match(path, 0, path.rfind("/") + 1)
        self.url, self.member = (found[1], path[found.end() :]) if found else ("", path)
        self.offset = offset
        self.ends = ""
        self.shard = -1
        return self

    @classmethod
    def of(cls, url: str, member: str, offset: int, ends: str = "", shard: int = -1) -> Self:
        """Return the path of `member` in the shard `url`; nothing is parsed."""
        self = str.__new__(cls, f"{url}/{member}")
        self.url = url
        self.member = member
        self.offset = offset
        self.ends = ends
        self.shard = shard
        return self

    def __reduce__(self) -> tuple[Any, tuple[str, str, int, str, int]]:
        return MemberPath.of, (self.url, self.member, self.offset, self.ends, self.shard)
