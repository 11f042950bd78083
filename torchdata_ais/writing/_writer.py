"""What both writers have: the shard under way, how they end, and an argument."""

from __future__ import annotations

import tarfile
from abc import ABC, abstractmethod
from typing import Any

from typing_extensions import Self

from torchdata_ais.errors import UsageError
from torchdata_ais.writing.archive import OpenArchive


class Writer(ABC):
    """Closed after a ``with`` block that ended well, discarded after one that did not."""

    _archive: OpenArchive | None = None

    @property
    def count(self) -> int:
        """Samples in the shard under way."""
        return 0 if self._archive is None else self._archive.count

    @property
    def size(self) -> int:
        """Bytes of the shard under way, before compression and without its end."""
        return 0 if self._archive is None else self._archive.size

    @abstractmethod
    def close(self) -> None:
        """Finish what is under way, and make it appear."""

    @abstractmethod
    def discard(self) -> None:
        """Give up what is under way."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


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
