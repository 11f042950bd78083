"""Arguments that both writers take."""

from __future__ import annotations

import tarfile
from typing import Any

from torchdata_ais.errors import UsageError

__all__ = ["check_format"]


def check_format(wanted: Any) -> None:
    """Take webdataset's ``format=``: a number or a name of `tarfile`.

    Raises:
        UsageError: Another format than the one that is written.
    """
    number = getattr(tarfile, wanted, None) if isinstance(wanted, str) else wanted
    if wanted is not None and number not in (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT):
        raise UsageError.at(
            f"format={wanted!r} is not written here",
            todo="leave it out: archives are USTAR, with PAX headers where names or sizes need them",
        )
