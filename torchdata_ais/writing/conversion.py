"""convert: folders, tables and shards to shards."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torchdata_ais._util.arguments import check_function, check_number, check_seed, checked
from torchdata_ais._util.formatting import count_text
from torchdata_ais.codecs.encoder import EncoderSpec
from torchdata_ais.errors import MissingFieldError, NotFoundError, SampleError, StateError, UsageError
from torchdata_ais.errors.text import Remedy
from torchdata_ais.index.classes import read_classes
from torchdata_ais.samples import Fields, dots_in_names
from torchdata_ais.store import Cluster, cluster_options, given_options
from torchdata_ais.urls import parse_url, redact
from torchdata_ais.urls.parsing import is_shard
from torchdata_ais.writing.classes import agreed_classes, write_classes
from torchdata_ais.writing.manifest import ShardInfo, Taker, check_pattern
from torchdata_ais.writing.prepare import check_apart, check_not_read, folder_of, prepare
from torchdata_ais.writing.shard_writer import ShardWriter
from torchdata_ais.writing.sources.opened import open_source
from torchdata_ais.writing.sources.shards import ShardSource
from torchdata_ais.writing.sources.source import (
    Kind,
    LeftOut,
    Source,
    SourceOptions,
    Tally,
    left_out,
    positions_of,
)
from torchdata_ais.writing.transform import Counts, Edit, Lacking, OnError, Transform, outcomes

if TYPE_CHECKING:
    from torchdata_ais.codecs.decoder import SpecName

__all__ = ["Conversion", "Edit", "SourceOptions", "convert"]


Progress = Callable[[int, int, str], object]

_POOL = 1000  # samples, of `shuffled` as most write it

logger = logging.getLogger("torchdata_ais")

SPLIT = "{split}"
"""The place of a split in the names of its shards."""


class Series(NamedTuple):
    """One series of shards: that of a split, or the only one."""

    name: str
    pattern: str
    source: Source
    writer: ShardWriter


def patterns_of(target: str, how: SourceOptions) -> dict[str, str]:
    """Return the pattern of each series by its name."""
    splits = how.splits
    if bool(splits) != (SPLIT in target):
        what = "split= needs a place in the names" if splits else f"{SPLIT} in the names needs split="
        raise UsageError.at(what, todo="write split='0.9/0.1' and out/{split}-%06d.tar", url=target)
    patterns = {name: target.replace(SPLIT, name) for name in splits} or {"": target}
    for pattern in patterns.values():
        check_pattern(pattern)
        if not is_shard(parse_url(pattern).name):
            raise UsageError.at(
                f"no reader would know {redact(pattern)} for shards by their names",
                todo="end the pattern in .tar, .tar.gz, .tar.bz2, .tar.xz, .tar.zst or .tgz",
            )
    return patterns


def manifest_of(manifest: str | None, split: str, how: SourceOptions) -> str | None:
    """Return the manifest of one series of one part: each has its own.

    Example:
        >>> manifest_of("m.json", "val", SourceOptions(part="3/16")), manifest_of("m.json", "", SourceOptions())
        ('m-val-3-of-16.json', 'm.json')
    """
    if manifest is None:
        return None
    words = [split] if split else []
    if how.part is not None:
        words.append("{}-of-{}".format(*how.part_of))
    stem, dot, ending = manifest.rpartition(".")
    if "/" in ending or not dot:
        stem, ending = manifest, ""
    return "-".join([stem, *words]) + dot * bool(ending) + ending


@dataclass(frozen=True)
class Conversion:
    """Result of a conversion.

    Attributes:
        shards: The shards, in order; those of each split after one another.
        samples: How many they hold.
        size: Their bytes.
        dropped: Samples that `select` or `map` left out.
        skipped: Samples given up, by the class of the error.
        notes: Further values of the manifest, such as ``{"classes": [...]}`` of a folder of images.
        left_out: Items not in the shards, and why: files other than pictures, skipped samples.
        splits: How many samples each split has.
        classes: Where the names of the classes were noted; None without any.
        stale: Older shards of the pattern that stay, with numbers beyond those of the new ones.
        lacking: Fields that only some samples have, such as captions; of a resumed conversion, those of its own
            shards.
        by_class: Whether more samples than `shuffled` usually holds come class after class, as in their folders.
        merged: What dots in file names may have merged into one sample; empty without a sign of that.
    """

    shards: list[ShardInfo]
    samples: int
    size: int
    dropped: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    splits: dict[str, int] = field(default_factory=dict)
    classes: str | None = None
    stale: list[str] = field(default_factory=list)
    lacking: list[Lacking] = field(default_factory=list)
    by_class: bool = False
    merged: str = ""


@dataclass(repr=False, eq=False)
class ConversionJob:
    """A conversion that can start: source listed, arguments validated."""

    source: Any
    target: str
    _: KW_ONLY
    how: SourceOptions
    edit: Edit
    seed: int = 0
    processes: int = 1
    start_method: str | None = None
    resume: bool = False
    overwrite: bool = False
    on_error: OnError = "raise"
    progress: Progress | None = None
    cluster: Cluster = None
    writer: dict[str, Any]

    def __post_init__(self) -> None:
        check_number(self.processes, 1, "processes")
        check_seed(self.seed)
        if self.progress is not None:
            check_function(self.progress, 3, "convert(progress=)")
        how, writer = self.how, self.writer
        self._kept = self.edit.kept or frozenset()
        self._new = not (self.resume or self.overwrite)
        given = given_options(self.cluster)
        self._store = partial(cluster_options, given)
        patterns = patterns_of(self.target, how)
        if how.part is not None and writer.get("index"):
            raise UsageError.at(
                "index= is made of all parts",
                todo="leave it out, and run torchdata-ais index after the last of them",
            )
        found = open_source(self.source, how, self._store)
        self.left_out = found.left_out
        self._is_copy = isinstance(found, ShardSource) and self.edit.is_copy
        self._classes = self._agreed(found)
        number, count = how.part_of
        start = writer.pop("start_shard", 0)
        manifest = writer.pop("manifest", None)
        self._all: list[Series] = []
        for name, pattern in patterns.items():
            between = how.splits.get(name, (0.0, 1.0))
            some = found.chosen(partial(positions_of, options=how, seed=self.seed, between=between))
            if self.on_error == "raise":
                some.check_files()
            shards = ShardWriter(
                pattern,
                resume=self.resume,
                cluster=given,
                encoder=False,
                manifest=manifest_of(manifest, name, how),
                start_shard=start + number - 1,
                shard_step=count,
                overwrite=None,  # prepare() looks before anything is read
                **writer,
            )
            self._all.append(Series(name, pattern, some, shards))
            if isinstance(found, ShardSource):
                check_not_read(pattern, found.shards, self._store, start)
                check_apart(pattern, self.source, self._store, start)

    @property
    def bytes(self) -> int:
        """Bytes written so far, before compression."""
        return sum(sum(shard.size for shard in one.writer.shards) + one.writer.size for one in self._all)

    def run(self) -> Conversion:
        """Write."""
        counted = Counts(unmet=self._kept)
        with ExitStack() as folders:
            for one in self._all:
                folders.enter_context(folder_of(one.pattern))
            for one in self._all:
                prepare(one.pattern, self._store, new=self._new, is_mine=self._is_mine)
                counted = self._written(one, counted)
        first = self._all[0]
        shards = [shard for one in self._all for shard in one.writer.shards]
        splits = {one.name: one.writer.total for one in self._all}
        samples = sum(splits.values())
        noted = None
        if self._classes and shards:
            noted = write_classes(first.pattern, self._classes, self._store)
        stale = [] if self._new else [shard for one in self._all for shard in one.writer.stale()]
        return Conversion(
            shards,
            samples,
            sum(shard.size for shard in shards),
            counted.dropped,
            counted.by_class(),
            self._notes(first.source),
            [*self.left_out, *left_out(counted.skipped)],
            splits if self.how.splits else {},
            noted,
            stale,
            counted.lacking(),
            first.source.by_class and not self.how.shuffle and samples > _POOL,
            dots_in_names({name for names in counted.kinds for name in names}),
        )

    def _notes(self, found: Source) -> dict[str, Any]:
        return {**found.notes, "classes": self._classes} if self._classes else found.notes

    def _check_some(self, counted: Counts) -> None:
        """Raise the error of a conversion that wrote no sample, except in a part."""
        if any(one.writer.total for one in self._all) or (self.how.part is not None and not counted.skipped):
            return
        where = os.fspath(self.source) if isinstance(self.source, str | os.PathLike) else None
        if counted.skipped:
            reasons = ", ".join(f"{count} by {kind}" for kind, count in counted.by_class().items())
            first = next((what for _, what in counted.skipped.values() if what), "see above")
            raise SampleError.at(
                f"no sample could be made: {reasons}, the first: {first}",
                todo="mend what all of them fail by; nothing was written",
                url=where,
            )
        if counted.dropped:
            raise UsageError.at(
                f"all {counted.dropped} samples were left out by the function, and nothing was written",
                todo="look at what select= and map= return",
                url=where,
            )
        raise NotFoundError.at(
            "the source has no sample", todo="check what it names; nothing was written", url=where
        )

    def _check_fields(self, counted: Counts) -> None:
        """Raise if no sample had a field to keep, unless another part might."""
        if not counted.unmet:
            return
        names = ", ".join(map(repr, sorted(counted.unmet)))
        what = f"no sample has the field {names}, which fields= names"
        if self.how.part is not None:
            logger.warning("%s: in this part", what)
            return
        finished = sum(len(one.writer.shards) for one in self._all)
        stay = f"; {count_text(finished, 'shard')} written before stay" if finished else ""
        raise MissingFieldError.at(what, todo=f"correct fields={stay}")

    def _written(self, one: Series, before: Counts) -> Counts:
        """Write one series, and return the left-out items so far."""
        found, shards = one.source, one.writer
        how = self.how
        order = {"source": found.digest, "shuffle": how.shuffle, "seed": self.seed}
        order |= {name: value for name in ("part", "split") if (value := getattr(how, name)) is not None}
        number, count = how.part_of
        transform = Transform(found.load, self.edit, self.seed)
        processes = 1 if self._is_copy else self.processes
        with shards:
            counts = _take_up(shards, order, self._notes(found), self._kept)
            at = (shards.resume_at() or {}).get("at")
            with closing(outcomes(found, at, transform, processes, self.start_method)) as made:
                for cursor, outcome in made:
                    sample = counts.judged(outcome, self.on_error)
                    if sample is not None:
                        if self.edit.keys == "number":
                            sample["__key__"] = f"{shards.total * count + number - 1:09d}"
                        shards.write(sample)
                        shards.cursor = {
                            "at": cursor,
                            "dropped": counts.dropped,
                            "skipped": counts.by_class(),
                            **({"unmet": sorted(counts.unmet)} if counts.unmet else {}),
                        }
                    if self.progress is not None:
                        self.progress(found.done(cursor), found.total, found.unit)
            if one is self._all[-1]:
                self._check_some(before + counts)
                self._check_fields(before + counts)
        return before + counts

    def _is_mine(self, shard: int) -> bool:
        """Return whether this part writes shards of such numbers."""
        number, count = self.how.part_of
        return shard % count == (number - 1) % count

    def _agreed(self, found: Source) -> list[str]:
        """Return the class names; number the source by stored ones."""
        own = found.notes.get("classes", [])
        has_files = self.writer.get("opener") is None
        if isinstance(found, ShardSource) and self.edit.map is None and has_files:
            own = read_classes(found.shards[0], self._store) or []
        if not own or not has_files:
            return list(own)
        agreed = agreed_classes(
            self.target.replace(SPLIT, "split"), own, self._store, overwrite=self.overwrite
        )
        if agreed != own:
            found.number_by(agreed)
        return agreed


def _take_up(
    shards: ShardWriter, order: dict[str, Any], notes: dict[str, Any], kept: frozenset[str]
) -> Counts:
    """Note source and order in the manifest; in a resumed one, compare them."""
    before = shards.notes.get("order")
    if before is None and shards.shards:
        raise StateError.at(
            "the manifest to resume is not that of a conversion",
            todo=Remedy("name another manifest=", "begin anew"),
        )
    if before is not None and before != order:
        changed = ", ".join(name for name in order if before.get(name) != order[name])
        raise StateError.at(
            f"another {changed} than that of the conversion to resume",
            todo=Remedy("use the same", "begin anew without resume=True"),
        )
    shards.notes.update(notes, order=order)
    cursor = shards.cursor or {"unmet": kept}
    skipped = Tally({name: (count, "") for name, count in cursor.get("skipped", {}).items()})
    return Counts(cursor.get("dropped", 0), skipped, frozenset(cursor.get("unmet", ())))


@checked
def convert(
    source: object,
    target: str | os.PathLike[str],
    *,
    kind: Kind = "auto",
    columns: Mapping[str, str] | None = None,
    root: str | os.PathLike[str] | None = None,
    shuffle: bool = False,
    image_field: str | None = None,
    part: str | None = None,
    split: str | None = None,
    allow_outside: bool = False,
    select: Callable[[Fields], object] | None = None,
    decode: SpecName | Callable[[Fields], object] | None = None,
    map: Callable[..., object] | None = None,  # noqa: A002 - what the stage `.map` is called
    rng: bool = False,
    fields: str | Iterable[str] | None = None,
    keys: Literal["keep", "number"] = "keep",
    check: bool = False,
    encoder: EncoderSpec = True,
    allow_pickle: bool = False,
    quality: int = 100,
    allow_nan: bool = False,
    seed: int = 0,
    processes: int = 1,
    start_method: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    on_error: OnError = "raise",
    progress: Progress | None = None,
    cluster: Cluster = None,
    manifest: str | None = None,
    maxcount: int = 100000,
    maxsize: float = 3e9,
    post: Callable[[str], object] | None = None,
    start_shard: int = 0,
    verbose: bool | int = False,
    opener: Callable[[str], object] | None = None,
    compress: bool | str | None = None,
    format: object = None,  # noqa: A002 - webdataset's name
    index: bool | str | Taker = False,
    keep_meta: bool = False,
    user: str = "bigdata",
    group: str = "bigdata",
    mode: int = 0o0444,
    mtime: float | None = None,
) -> Conversion:
    """Convert folders of media, tables or existing shards into shards.

    Takes:
        One of:

        - a folder of pictures or sound, with a folder a class, or with captions next to them (``a.jpg``, ``a.txt``);
        also the output of img2dataset: see `torchdata_ais.writing.sources.folder.media_folder`;
        - a folder in Hugging Face's layout, with a ``metadata.jsonl`` (``.csv``, ``.parquet``);
        - a ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet`` table, or several Parquet files, or a folder of them: see
          `torchdata_ais.writing.sources.table.table`;
        - such a folder of pictures or sound in a bucket: ``ais://bucket/prefix/``;
        - shards: paths, ``ais://`` prefixes, brace templates, object URLs, a folder of shards, or a list of these.

        Names of classes are stored with the shards, in ``classes.json``. If that file exists and has these classes,
        they keep their numbers.

    Order:
        Files by path, rows and shards in their order, or shuffled. The shards written are the same, byte for byte, for
        any number of processes, interrupted or not; each item is used exactly once, over all parts and splits.
        Left-out items are counted, and named with the reason (`Conversion.left_out`), and so are fields that only some
        samples have (`Conversion.lacking`). Of folders of classes the samples come class after class, unless they are
        shuffled.

    Memory:
        ``4 * processes`` chunks of 32 samples (at most 8 MiB before decoding, or one sample), the memory of
        `ShardWriter`, and the list of the files or the table (of a Parquet file 64 rows, unless it is shuffled).

    Args:
        source: See above.
        target: The pattern of the shards: ``out/train-%06d.tar``, ``ais://bucket/train-%06d.tar``. A missing local
            folder is made. With ``split`` it has ``{split}`` in it.
        kind: ``"images"``, ``"audio"``, ``"table"`` or ``"shards"``, where the name of `source` is not enough.
        columns: Field names of the columns of a table: ``{"image_path": "jpg"}``.
        root: Base of the relative paths in a table; default its folder.
        shuffle: Put files or rows into a random order first.
        image_field: The field of all pictures; ``"ending"`` keeps each one's own. See `SourceOptions`.
        part: ``"3/16"``: the third of sixteen parts, for as many processes anywhere.
        split: ``"0.9/0.1"``: two series, drawn by the seed. See `SourceOptions`.
        allow_outside: Follow links out of the folder, and cells of a table that name URLs or files outside of `root`.
        select: A function of the sample as it was read (bytes); false leaves it out.
        decode: Turn the bytes into values first: ``"rgb8"``, or the result of `torchdata_ais.Decoder`.
        map: A function from a sample to a sample; None leaves it out.
        rng: Whether to call ``map(sample, rng)`` with a `random.Random` that depends on the seed and the key alone.
        fields: Keep these fields only.
        keys: ``"number"`` gives the samples new keys, their numbers with nine digits.
        check: Decode every picture, text, number and JSON field once, to see that it can be. See `Edit`.
        encoder: As in `TarWriter`.
        allow_pickle: As in `TarWriter`.
        quality: As in `TarWriter`.
        allow_nan: As in `TarWriter`.
        seed: For ``shuffle`` and ``rng``.
        processes: How many processes load, decode, map and encode; 1 is this one alone. (Reading shards, and all
            writing, is done by this process: more of them help only with computations.)
        start_method: How they start; None is Python's default. ``spawn`` and ``forkserver`` need functions that can
            be pickled.
        resume: Continue the interrupted conversion with the same `manifest`. Source and arguments must be the same;
            finished shards are neither read nor written again.
        overwrite: Write even if there are shards of this pattern already; they are replaced one by one. None is
            removed: those with numbers beyond the new ones stay, and are named (`Conversion.stale`).
        on_error: ``"raise"``; or ``"warn"``, ``"skip"``: count samples that cannot be loaded, decoded, mapped or
            encoded, and continue; ``"warn"`` names the first 1,000 of each class in the log, ``"skip"`` the first. A
            source shard that is not sound always raises.
        progress: Called now and then with the number done, the total, and the unit (``image``, ``row``, ``shard``).
        cluster: See `torchdata_ais.store.Cluster`.
        manifest: A file or URL for the names, counts, sizes and checksums of the finished shards.
        maxcount: Most samples in a shard.
        maxsize: Most bytes of a shard, before compression.
        post: Called with the name of each shard after it appeared.
        start_shard: Number of the first shard.
        verbose: Log each shard at level INFO rather than DEBUG.
        opener: As in `ShardWriter`: called with each name, returns the binary file to write to.
        compress: As in `TarWriter`.
        format: As in `TarWriter`.
        index: Make the sample index on the way. See `ShardWriter`.
        keep_meta: As in `TarWriter`.
        user: As in `TarWriter`.
        group: As in `TarWriter`.
        mode: As in `TarWriter`.
        mtime: As in `TarWriter`.

    Raises:
        UsageError: The arguments cannot work, or there are shards of this pattern already; shards would be written
            over those that are read, or among them; `select` or `map` left all samples out.
        NotFoundError: The source is missing, or has no sample.
        SampleError: A sample cannot be made; the conversion can be resumed after the cause is gone. None at all could.
        MissingFieldError: No sample has one of `fields`. Shards that were finished by then stay.
        ShardError: A source shard is not sound.
        TransportError: Something cannot be read or stored.
        StateError: `resume` with another source or other arguments.
        WorkerDiedError: A process was killed.

    Example:
        >>> import tempfile
        >>> from torchdata_ais.testing import example_shards
        >>> out = tempfile.mkdtemp()
        >>> done = convert(example_shards(counts=(3, 4)), f"{out}/even-%03d.tar", maxcount=5, fields="cls")
        >>> [shard.samples for shard in done.shards]
        [5, 2]
    """
    job = ConversionJob(
        source,
        os.fspath(target),
        how=SourceOptions(kind, columns, root, shuffle, image_field, part, split, allow_outside),
        edit=Edit(select, decode, map, rng, fields, keys, check, encoder, allow_pickle, quality, allow_nan),
        seed=seed,
        processes=processes,
        start_method=start_method,
        resume=resume,
        overwrite=overwrite,
        on_error=on_error,
        progress=progress,
        cluster=cluster,
        writer={
            "manifest": manifest,
            "maxcount": maxcount,
            "maxsize": maxsize,
            "post": post,
            "start_shard": start_shard,
            "verbose": verbose,
            "opener": opener,
            "compress": compress,
            "format": format,
            "index": index,
            "keep_meta": keep_meta,
            "user": user,
            "group": group,
            "mode": mode,
            "mtime": mtime,
        },
    )
    for reason, count, first in job.left_out:
        logger.warning("%s: %d left out (%s), such as %s", source, count, reason, first)
    done = job.run()
    for name, number, first in done.lacking:
        logger.warning(
            "%s of %s without %s, such as %s", number, count_text(done.samples, "sample"), name, first
        )
    if done.merged:
        logger.warning("%s: %s", redact(os.fspath(target)), done.merged)
    if done.by_class:
        logger.warning(
            "%s stand class after class: shuffle=True mixes them", count_text(done.samples, "sample")
        )
    if done.stale:
        logger.warning(
            "%s of %s left beyond the new ones, such as %s: training would read them, too",
            count_text(len(done.stale), "older shard"),
            redact(os.fspath(target)),
            redact(done.stale[0]),
        )
    return done
