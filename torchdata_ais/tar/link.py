"""What stands for the data of a member that has none of its own, or too much; and where links lead."""

from __future__ import annotations

import posixpath


class Link(str):
    """The data of a member that is a link: the name of its target.

    Args:
        target: For a hard link the name of a member, for a symbolic one a path relative to the link.
        symbolic: Which of the two it is.

    Example:
        >>> link = Link("a.jpg", symbolic=True)
        >>> link, link.symbolic
        ('a.jpg', True)
    """

    __slots__ = ("symbolic",)
    symbolic: bool

    def __new__(cls, target: str, symbolic: bool = False) -> Link:
        """Return `target` as a link."""
        self = super().__new__(cls, target)
        self.symbolic = symbolic
        return self

    def __reduce__(self) -> tuple[type[Link], tuple[str, bool]]:
        return Link, (str(self), self.symbolic)


class TooLarge(int):
    """The data of a member that was passed over because it is too large: the number of its bytes."""

    __slots__ = ()


class LinkTargets:
    """What links can point to: the data of members by their normalised names; of a name met twice the last.

    Example:
        >>> targets = LinkTargets()
        >>> targets.add("a/./x.jpg", b"1")
        >>> targets.find("a/y.jpg", Link("x.jpg", symbolic=True)), targets.find("a/y.jpg", Link("x.jpg"))
        (b'1', None)
    """

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}

    def add(self, name: str, data: bytes) -> None:
        """Add a member."""
        self._data[posixpath.normpath(name)] = data

    def forget(self, name: str, data: bytes) -> None:
        """Take a member out, unless another of its name came after it."""
        name = posixpath.normpath(name)
        if self._data.get(name) is data:
            del self._data[name]

    def find(self, name: str, link: Link) -> bytes | None:
        """Return the bytes that the link called `name` stands for, or None: there is no such member."""
        target = posixpath.join(posixpath.dirname(name), link) if link.symbolic else str(link)
        return self._data.get(posixpath.normpath(target))
