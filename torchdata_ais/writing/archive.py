"""One shard that is being written."""

from __future__ import annotations

import tarfile
from abc import ABC, abstractmethod

from typing_extensions import Self

from torchdata_ais.errors import DuplicateFieldError, UsageError
from torchdata_ais.tar import archive_size
from torchdata_ais.tar.writer import Buffer
from torchdata_ais.writing.packing import Packed
from torchdata_ais.writing.targets import Target, new_compressor


class OpenArchive:
    """A shard that is not finished yet.

    Attributes:
        count: Samples so far.
        size: Bytes so far, before compression and without the end marker.

    Memory: 150 bytes a sample, to notice a key that comes twice.
    """

    def __init__(self, target: Target, compression: str) -> None:
        self.target = target
        self.count = 0
        self.size = 0
        self._compressor = new_compressor(compression)
        self._keys: set[str] = set()
        self._state = "open"  # then "finished", "discarded" on demand, or "failed"

    def add(self, sample: Packed) -> None:
        """Write a sample; a failure within it discards the whole shard."""
        if self._state != "open":
            raise UsageError.at(
                f"the shard is {self._state}", todo="write to a new one", url=self.target.name
            )
        if sample.key in self._keys:
            raise DuplicateFieldError.at(
                f"the shard has a sample with the key {sample.key!r} already: readers would take the two for one",
                todo="give every sample its own key",
                url=self.target.name,
                key=sample.key,
            )
        try:
            for block in sample.blocks:
                self._write(block)
        except BaseException:
            self._end("failed")
            raise
        self._keys.add(sample.key)
        self.count += 1
        self.size += sample.size

    def finish(self) -> None:
        """Write the end marker and publish the shard, or leave nothing."""
        if self._state == "failed":
            raise UsageError.at(
                "the shard failed, and is discarded",
                todo="write it anew; stop at the first error",
                url=self.target.name,
            )
        if self._state != "open":
            return
        try:
            self._write(bytes(archive_size(self.size) - self.size))
            if self._compressor is not None:
                self.target.write(self._compressor.flush())
            self.target.publish()
        except BaseException:
            self._end("failed")
            raise
        self._state = "finished"

    def discard(self) -> None:
        """Discard the shard; a stream keeps its part, which readers report as cut."""
        self._end("discarded")

    def _end(self, state: str) -> None:
        if self._state == "open":
            self._state = state
            self.target.discard()

    def _write(self, block: Buffer) -> None:
        if self._compressor is None:
            self.target.write(block)
        elif packed := self._compressor.compress(block):
            self.target.write(packed)


class Writer(ABC):
    """Context manager: closed after success, discarded after an exception."""

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
        """Finish the current shard, and publish it."""

    @abstractmethod
    def discard(self) -> None:
        """Discard the current shard."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def check_format(wanted: object) -> None:
    """Check webdataset's ``format=``, a number or a name of `tarfile`."""
    number = getattr(tarfile, wanted, None) if isinstance(wanted, str) else wanted
    if wanted is not None and number not in (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT):
        raise UsageError.at(
            f"format={wanted!r} is not written here",
            todo="leave it out: archives are USTAR, with PAX headers where names or sizes need them",
        )
