"""Archives as `TarBuilder` writes them, whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchdata_ais.tar import TarBuilder, archive_size


def archive_of(members: Iterable[tuple[str, bytes]], **options: Any) -> bytes:
    """Return the archive that holds the members, end included; the options are those of `TarBuilder`."""
    builder = TarBuilder(**options)
    content = b"".join(block for name, data in members for block in builder.member(name, data))
    return content.ljust(archive_size(len(content)), b"\0")
