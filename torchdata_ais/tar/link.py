"""What stands for the data of a member that has none of its own, or too much."""

from __future__ import annotations

__all__ = ["Link", "TooLarge"]


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
