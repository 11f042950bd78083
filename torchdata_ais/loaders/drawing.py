"""`draw` and `mermaid`: pictures of a pipe."""

from torchdata_ais.pipes._draw import draw, mermaid

__all__ = ["draw", "mermaid"]
