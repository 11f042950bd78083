"""Arguments that both writers take."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.store import StoreOptions, resolve_options

__all__ = ["check_format", "store_options"]


def store_options(
    options: StoreOptions | None, endpoint: str | None, client: Any, token: str | None
) -> StoreOptions:
    """Return the transport settings: single ones where given, else `options`, else those of the environment."""
    if options is None or client is not None or endpoint is not None or token is not None:
        return resolve_options(client=client, endpoint=endpoint, token=token)
    return options if options.endpoint else replace(options, endpoint=resolve_options().endpoint)


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
