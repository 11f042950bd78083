"""One shard that is being written, and `TarWriter` for it."""

from __future__ import annotations

import os
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial

from typing_extensions import Self

from torchdata_ais._util.arguments import checked
from torchdata_ais.codecs.encoder import EncoderSpec
from torchdata_ais.errors import DuplicateFieldError, UsageError
from torchdata_ais.store import Cluster, cluster_options, given_options
from torchdata_ais.tar import archive_size
from torchdata_ais.tar.writer import Buffer
from torchdata_ais.writing.packing import Packed, SamplePacker
from torchdata_ais.writing.targets import Target, compression_for, new_compressor, open_target


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


class TarWriter(Writer):
    """Write samples to one tar shard.

    The shard appears under its name when it is closed, and only if it is whole: an exception in the ``with`` body
    discards it. The same samples give the same bytes, compressed ones, too (by the same version of the compressor).
    The arguments are those of webdataset's class.

    Takes:
        Samples by `write`: ``{"__key__": str, field: value, ...}``. Members are named ``key.field`` and sorted by
        field.

    Memory:
        One encoded sample, 1 MiB, and 150 bytes a sample. A shard for a bucket is kept in a temporary file
        (``TMPDIR``) until it is whole.

    Args:
        fileobj: A path, ``ais://bucket/name.tar`` (or another provider's URI, or an object URL), ``-`` for standard
            output, or a binary file, which stays open. After an exception a file object or standard output gets no end
            marker, so that readers see that it is cut.
        user: Owner of the members.
        group: Group of the members.
        mode: Permission bits of the members.
        compress: ``"gz"`` (or True), ``"bz2"``, ``"xz"``, ``"zst"`` (extra ``[formats]``), False; None goes by the
            end of the name.
        encoder: True for the field table (`torchdata_ais.codecs.build_encoder`), False for bytes and str only, a dict
            from endings to functions, or a function of the sample.
        keep_meta: Whether fields that begin with ``_`` are stored, too; fields that readers add themselves never are.
        mtime: Time of the members in seconds since 1970; None is 0.
        format: USTAR always, with PAX headers where needed; named here only to be checked.
        allow_pickle: Let ``pkl`` fields be pickled.
        quality: For JPEG and WebP, 1 to 100.
        allow_nan: Let NaN and infinities into ``json`` fields, where strict readers refuse them.
        cluster: See `torchdata_ais.store.Cluster`.

    Attributes:
        count: Samples written.
        size: Bytes of the archive so far, before compression.

    Raises:
        UsageError: Nothing that can be written to, a format that is not written, a sample without key, or with a
            dot in the last part of its key.
        DuplicateFieldError: A key comes twice, or two fields of a sample differ in case only.
        EncodeError: A value cannot be encoded. Nothing of its sample is written.
        TransportError: A bucket did not take the shard.

    Example:
        >>> import io
        >>> shard = io.BytesIO()
        >>> with TarWriter(shard) as writer:
        ...     writer.write({"__key__": "000", "cls": 3, "txt": "cat"})
        4
        >>> import tarfile
        >>> tarfile.open(fileobj=io.BytesIO(shard.getvalue())).getnames()
        ['000.cls', '000.txt']
    """

    _archive: OpenArchive

    @checked
    def __init__(
        self,
        fileobj: object,
        user: str = "bigdata",
        group: str = "bigdata",
        mode: int = 0o0444,
        compress: bool | str | None = None,
        encoder: EncoderSpec = True,
        keep_meta: bool = False,
        mtime: float | None = None,
        format: object = None,  # noqa: A002 - webdataset's name
        *,
        allow_pickle: bool = False,
        quality: int = 100,
        allow_nan: bool = False,
        cluster: Cluster = None,
    ) -> None:
        check_format(format)
        name = os.fspath(fileobj) if isinstance(fileobj, str | os.PathLike) else fileobj
        compression = compression_for(name, compress)
        self._pack = SamplePacker(
            encoder=encoder,
            keep_meta=keep_meta,
            allow_pickle=allow_pickle,
            quality=quality,
            allow_nan=allow_nan,
            user=user,
            group=group,
            mode=mode,
            mtime=mtime,
        )
        target = open_target(name, partial(cluster_options, given_options(cluster)))
        self._archive = OpenArchive(target, compression)

    def write(self, obj: Mapping[str, object]) -> int:
        """Write one sample, all of it or nothing; return its fields' bytes."""
        sample = self._pack(obj)
        self._archive.add(sample)
        return sample.payload

    def close(self) -> None:
        """Finish the shard and make it appear. A second call does nothing."""
        self._archive.finish()

    def discard(self) -> None:
        """Give the shard up; nothing appears under its name."""
        self._archive.discard()
