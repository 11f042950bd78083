"""Tar archives as streams: blocks to members, and members to blocks.

Nothing here seeks, spawns or imports torch. A shard comes in as an iterable of byte blocks of any size and goes
out as members, and an archive that is cut, damaged or followed by something else is an error, never a short one.
"""

from __future__ import annotations

from torchdata_ais.tar.decompress import decompress, is_compressed
from torchdata_ais.tar.link import Link
from torchdata_ais.tar.reader import Member, TarReader, read_members

__all__ = ["Link", "Member", "TarReader", "decompress", "is_compressed", "read_members"]
