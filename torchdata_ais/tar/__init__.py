"""Tar archives as streams: blocks to members, and members to blocks.

Nothing here opens, spawns or imports torch. The input is an iterable of byte blocks of any size, the output are
members. An archive that is cut, damaged or followed by something else is an error, never a short one.
"""

from __future__ import annotations

from torchdata_ais.tar.compression import decompress, is_compressed
from torchdata_ais.tar.errors import kind_of
from torchdata_ais.tar.header import Link, LinkTargets, TooLarge
from torchdata_ais.tar.reader import Member, TarReader, usual_members
from torchdata_ais.tar.window import PassableBlocks
from torchdata_ais.tar.writer import TarBuilder, archive_size

__all__ = [
    "Link",
    "LinkTargets",
    "Member",
    "PassableBlocks",
    "TarBuilder",
    "TarReader",
    "TooLarge",
    "archive_size",
    "decompress",
    "is_compressed",
    "kind_of",
    "usual_members",
]
