"""ShardWriter."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import xxhash

from torchdata_ais._util.arguments import check_function, check_number, checked
from torchdata_ais._util.files import naming
from torchdata_ais.codecs.encoder import EncoderSpec
from torchdata_ais.errors import StateError, UsageError
from torchdata_ais.errors.text import Remedy, in_commands, in_programs
from torchdata_ais.store import Cluster, cluster_options, delete_object, given_options
from torchdata_ais.tar import archive_size
from torchdata_ais.urls import parse_url, redact, shown_name
from torchdata_ais.writing.archive import OpenArchive, Writer, check_format
from torchdata_ais.writing.manifest import Manifest, SeriesIndex, ShardInfo, Taker, shards_there
from torchdata_ais.writing.packing import SamplePacker
from torchdata_ais.writing.prepare import check_bucket, check_place, refuse_existing
from torchdata_ais.writing.targets import StreamTarget, Target, compression_for, open_target

_ANEW = "begin anew without resume=True"
_OTHER_SAMPLES = Remedy("resume with the same samples in the same order", _ANEW)


class Replay:
    """Skip the samples that finished shards hold, and compare them."""

    def __init__(self, shards: Sequence[ShardInfo]) -> None:
        self._shards = list(shards)
        self._at = 0
        self._passed = 0
        self._keys = xxhash.xxh64()

    @property
    def is_over(self) -> bool:
        """Report whether the next sample is a new one."""
        return self._at == len(self._shards)

    def passes(self, key: str) -> None:
        """Let one sample pass; at the end of a shard, compare its keys."""
        shard = self._shards[self._at]
        self._keys.update(key.encode("utf-8", "surrogateescape") + b"\0")
        self._passed += 1
        if self._passed < shard.samples:
            return
        if self._keys.hexdigest() != shard.keys:
            raise StateError.at(
                "other samples came than those that the finished shard holds",
                todo=_OTHER_SAMPLES,
                url=redact(shard.name),
                key=key,
            )
        self._at += 1
        self._passed = 0
        self._keys.reset()

    def check_over(self) -> None:
        """Raise `StateError` if samples are missing."""
        if not self.is_over:
            shard = self._shards[self._at]
            raise StateError.at(
                f"the samples ended before the end of what a finished shard holds ({self._passed} of {shard.samples})",
                todo=_OTHER_SAMPLES,
                url=redact(shard.name),
            )


logger = logging.getLogger("torchdata_ais")


def _check_limits(maxcount: int, maxsize: float) -> None:
    for name, value in (("maxcount", maxcount), ("maxsize", maxsize)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError.at(f"{name}={value!r} is no number", todo="pass one, such as 1e9 for 1 GB")
    if maxcount < 1 or maxsize <= 0:
        raise UsageError.at(f"maxcount={maxcount}, maxsize={maxsize} allow no sample in a shard")


class ShardWriter(Writer):
    """Write samples to a series of tar shards, each published when whole.

    A shard is finished when the next sample would make it hold more than `maxcount` samples or more than `maxsize`
    bytes. No shard is empty, none short: an exception in the ``with`` body discards the shard under way and leaves the
    finished ones. With a manifest, running the same program again with ``resume=True`` continues after them.

    Takes:
        Samples by `write`, as `TarWriter` does.

    Order:
        That of the samples. The same samples and arguments give the same shards, byte for byte, interrupted or not.

    Memory:
        As `TarWriter`, and 300 bytes for each finished shard.

    Args:
        pattern: The names of the shards: ``out/train-%06d.tar`` or ``ais://bucket/train-%06d.tar``; ``pattern %
            number`` is one shard. Its end may select compression.
        maxcount: Most samples in a shard.
        maxsize: Most bytes of a shard, headers, padding and end included, before compression. Only a sample that is
            larger by itself makes a larger shard.
        post: Called with the name of each shard after it appeared; it may move or delete it.
        start_shard: Number of the first shard.
        verbose: Log each shard at level INFO rather than DEBUG.
        opener: Called with each name; returns the binary file to write to, which is closed after the shard (but not
            an `io.BytesIO`). Such shards cannot be taken back when something fails.
        manifest: A file or URL for the names, counts, sizes and checksums of the finished shards as JSON (`Manifest`).
            In a bucket, keep it out of the prefix that is listed for training.
        resume: Take the shards of `manifest` as written, if they are still there: `write` passes over as many samples
            as they hold, and checks that their keys are the same. Where `post` may have moved them, they are taken as
            the manifest has them.
        index: Make the sample index on the way (see `torchdata_ais.SampleIndex`): True stores it next to the shards, a
            text is its path. Not for compressed shards. The finished shards of a resumed series are read for it.
        shard_step: Difference of the numbers of two shards: several writers of one pattern, each with another
            `start_shard` below it, never write the same.
        cluster: See `torchdata_ais.store.Cluster`.
        compress: As in `TarWriter`.
        format: As in `TarWriter`.
        overwrite: Whether to write if there are shards of this pattern already, from `start_shard` on. Each is replaced
            when the new one is whole; those with higher numbers than the last new one are removed when the series is
            complete. None: replace them, and let the others be.
        user, group, mode, mtime, encoder, keep_meta, allow_pickle, quality, allow_nan: As in `TarWriter`.

    Attributes:
        shards: A `ShardInfo` for each finished shard.
        total: Samples so far, those of resumed shards included once they came by.
        count: Samples in the shard under way.
        size: Its bytes, before compression.
        fname: The name of the shard under way, or of the last one; None before the first.
        shard: The number of the next shard.
        cursor: Any JSON value; stored with the shard that holds the last sample written before it was set.
        notes: Further JSON values for the manifest.

    Raises:
        UsageError: A pattern without a number, or a bad argument; shards of this pattern are there, with the first
            sample; and the errors of `TarWriter.write`.
        StateError: The manifest was written with other settings, or other samples come than the first time.
        TransportError: A bucket did not take a shard.

    Example:
        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> with ShardWriter(f"{folder}/s-%03d.tar", maxcount=2, manifest=f"{folder}/s.json") as writer:
        ...     for index in range(3):
        ...         _ = writer.write({"__key__": f"{index:03d}", "cls": index})
        >>> [(shard.name[-9:], shard.samples, shard.size) for shard in writer.shards]
        [('s-000.tar', 2, 10240), ('s-001.tar', 1, 10240)]
    """

    @checked
    def __init__(
        self,
        pattern: str,
        maxcount: int = 100000,
        maxsize: float = 3e9,
        post: Callable[[str], object] | None = None,
        start_shard: int = 0,
        verbose: bool | int = False,
        opener: Callable[[str], object] | None = None,
        *,
        manifest: str | None = None,
        resume: bool = False,
        cluster: Cluster = None,
        compress: bool | str | None = None,
        format: object = None,  # noqa: A002 - webdataset's name
        index: bool | str | Taker = False,
        shard_step: int = 1,
        user: str = "bigdata",
        group: str = "bigdata",
        mode: int = 0o0444,
        mtime: float | None = None,
        encoder: EncoderSpec = True,
        keep_meta: bool = False,
        allow_pickle: bool = False,
        quality: int = 100,
        allow_nan: bool = False,
        overwrite: bool | None = False,
    ) -> None:
        self._step, self._start = shard_step, start_shard
        self._overwrite = None if resume else overwrite
        self._pattern = pattern
        self._compression = compression_for(self._name(start_shard), compress)
        if self._name(start_shard) == self._name(start_shard + 1):
            raise UsageError.at(
                f"every shard of the pattern {redact(pattern)!r} has the same name",
                todo="put the number in: train-%06d.tar",
            )
        check_number(self._step, 1, "shard_step")
        _check_limits(maxcount, maxsize)
        if resume and manifest is None:
            raise UsageError.at("resume=True needs to know what was written", todo="pass manifest=")
        if index and (self._compression or opener is not None):
            raise UsageError.at(
                "index= needs plain shards under names of their own",
                todo=Remedy(
                    in_programs("leave out compress= and opener="),
                    in_commands("leave out compress="),
                    ", and end the pattern in .tar",
                ),
            )
        check_format(format)
        for name, function in (("post", post), ("opener", opener)):
            if function is not None:
                check_function(function, 1, f"ShardWriter({name}=)")
        self._options = partial(cluster_options, given_options(cluster))
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
        self._maxcount, self._maxsize = maxcount, maxsize
        self._post, self._opener = post, opener
        self._level = logging.INFO if verbose else logging.DEBUG
        self._keys = xxhash.xxh64()
        self._is_open = True
        self._where = manifest
        self.total = 0
        self.shard = start_shard
        self.fname: str | None = None
        self.cursor: Any = None
        settings = {
            "pattern": redact(pattern),
            "maxcount": maxcount,
            "maxsize": maxsize,
            "start_shard": start_shard,
            "compression": self._compression,
        }
        self._manifest = Manifest(settings if self._step == 1 else {**settings, "shard_step": self._step})
        self._replay = Replay([])
        self._is_saved = False
        self._index = SeriesIndex(index, pattern, self._options) if index else None
        if manifest is not None:
            check_place(manifest)
            if resume:
                self._take_up(manifest, check=post is None and opener is None)
            elif parse_url(manifest).kind == "file":
                Manifest.load(manifest, self._options)  # something else is not written over

    def _take_up(self, where: str, *, check: bool) -> None:
        """Continue the series of the manifest, if there is one.

        It is cut before the first missing shard, where they are to be checked.
        """
        found = Manifest.load(where, self._options)
        if found is None:
            return
        for name, value in self._manifest.settings.items():
            before = found.settings.get(name)
            if before != value:
                raise StateError.at(
                    f"the series was begun with {name}={before!r}, not {value!r}",
                    todo=Remedy("pass the same arguments", _ANEW),
                    url=redact(where),
                )
        for index, shard in enumerate(found.shards):
            name = self._name(self.shard + index * self._step)
            if shard.name != name:  # it would be requested, and read for the index
                raise StateError.at(
                    f"the manifest names {shown_name(shard.name)} as shard {index}, which is {redact(name)}",
                    todo=Remedy("name another manifest=", _ANEW),
                    url=redact(where),
                )
        for index, shard in enumerate(found.shards if check else ()):
            if not shard.is_there(self._options):
                del found.shards[index:]
                found.complete = False
                break
        self._manifest = found
        self._replay = Replay(found.shards)
        self.shard += len(found.shards) * self._step
        if found.shards:
            self.fname, self.cursor = found.shards[-1].name, found.shards[-1].cursor
        if self._index is not None:
            self._index.take_up(found.shards)

    @property
    def shards(self) -> list[ShardInfo]:
        """The finished shards."""
        return list(self._manifest.shards)

    @property
    def notes(self) -> dict[str, Any]:
        """Further values of the manifest."""
        return self._manifest.notes

    def resume_at(self) -> Any:
        """Start after the finished shards; return their last cursor, or None.

        For callers that can start in the middle of their samples: the next one they write must be the one after it.
        """
        self.total = self._manifest.samples
        self._replay = Replay([])
        return self.cursor

    def write(self, obj: Mapping[str, object]) -> int:
        """Write one sample, all of it or nothing; return its fields' bytes.

        Returns 0 for a sample that a finished shard of the resumed series holds.
        """
        if not self._is_open:
            raise UsageError.at(
                "the series is closed, or one of its shards failed", todo="make a new ShardWriter"
            )
        if not self._replay.is_over:
            key = obj.get("__key__") if isinstance(obj, Mapping) else None
            self._replay.passes(key if isinstance(key, str) else self._pack(obj).key)
            self.total += 1
            return 0
        if self._manifest.complete:
            raise StateError.at(
                f"the series was complete with {self._manifest.samples} samples, and more come now",
                todo=Remedy("write them to another pattern", "begin anew without resume=True"),
                url=self._where,
            )
        sample = self._pack(obj)
        archive = self._archive
        if (
            archive is None
            or archive.count >= self._maxcount
            or archive_size(archive.size + sample.size) > self._maxsize
        ):
            archive = self.next_stream()
        start = archive.size
        archive.add(sample)
        if self._index is not None:
            self._index.add(sample, start)
        self._keys.update(sample.key.encode("utf-8", "surrogateescape") + b"\0")
        self.total += 1
        return sample.payload

    def next_stream(self) -> OpenArchive:
        """Finish the current shard, if any, and start the next one."""
        self.finish()
        name = self._name(self.shard)
        if self._opener is None and not self.shards:
            refuse = partial(refuse_existing, self._pattern, self._options, self._is_mine)
            check_bucket(name, self._options, refuse if self._overwrite is False else None)
        if not self._is_saved:
            self._save()  # an older manifest must not speak for the shards that follow
        self._archive = OpenArchive(self._target(name), self._compression)
        self._keys.reset()
        self.fname = name
        self.shard += self._step
        return self._archive

    def finish(self) -> None:
        """Finish the current shard, if any: publish it, call `post`, note it.

        It is noted in the manifest.
        """
        archive, self._archive = self._archive, None
        if archive is None or not archive.count:
            if archive is not None:
                archive.discard()
                self.shard -= self._step
            return
        name = self.fname or ""
        try:
            archive.finish()
            target = archive.target
            info = ShardInfo(
                name, archive.count, target.size, target.checksum, self._keys.hexdigest(), self.cursor
            )
            logger.log(self._level, "wrote %s: %d samples, %d bytes", redact(name), info.samples, info.size)
            if self._index is not None:
                self._index.finish_shard(info)
            if self._post is not None:
                self._post(name)
            self._manifest.shards.append(info)
            self._save()
        except BaseException:
            self._is_open = False
            raise

    def close(self) -> None:
        """Finish the last shard and the manifest. A second call does nothing.

        Raises:
            StateError: Fewer samples came than the finished shards of the resumed series hold.
        """
        if not self._is_open:
            return
        self.finish()
        self._is_open = False
        self._replay.check_over()
        if not self._manifest.complete:
            self._manifest.complete = True
            self._save()
        if self._overwrite and self.shards:
            self._remove(self.stale())
        if self._index is not None:
            self._index.close()

    def stale(self) -> list[str]:
        """Return the older shards of the pattern that follow the new ones."""
        # By its whole name: s-1.tar is none of s-%06d.tar.
        return [
            self._pattern % number
            for number, name in sorted(shards_there(self._pattern, self._options))
            if number >= self.shard and self._is_mine(number) and (self._pattern % number).endswith(name)
        ]

    def _is_mine(self, number: int) -> bool:
        return number >= self._start and (number - self._start) % self._step == 0

    def _remove(self, shards: Sequence[str]) -> None:
        """Remove older shards that follow the new ones."""
        for name in shards:
            place = parse_url(name)
            if place.kind == "file":
                with naming(place.name):
                    Path(place.name).unlink(missing_ok=True)
            else:
                delete_object(name, self._options(), missing_ok=True)
        if shards:
            first = redact(shards[0])
            logger.info("removed %d older shards beyond the new ones, from %s on", len(shards), first)

    def discard(self) -> None:
        """Give up the shard under way and write no more. The finished ones stay."""
        self._is_open = False
        archive, self._archive = self._archive, None
        if archive is not None:
            archive.discard()

    def _name(self, number: int) -> str:
        try:
            return self._pattern % number
        except (TypeError, ValueError) as error:
            raise UsageError.at(
                f"the pattern {self._pattern!r} does not take the number of a shard: {error}",
                todo='write it as in "train-%06d.tar", and % itself as %%',
            ) from error

    def _target(self, name: str) -> Target:
        if self._opener is None:
            return open_target(name, self._options)
        stream = self._opener(name)
        keep = isinstance(stream, io.BytesIO)  # closed, it would lose its content
        return StreamTarget(stream, None if keep else getattr(stream, "close", None))

    def _save(self) -> None:
        self._is_saved = True
        if self._where is not None:
            self._manifest.save(self._where, self._options)
