"""`TarWriter`: one shard."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from torchdata_ais._util.arguments import checked
from torchdata_ais.codecs.encoder import EncoderSpec
from torchdata_ais.store import Cluster, cluster_options, given_options
from torchdata_ais.writing.archive import OpenArchive, Writer, check_format
from torchdata_ais.writing.packing import SamplePacker
from torchdata_ais.writing.targets import compression_for, open_target


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
