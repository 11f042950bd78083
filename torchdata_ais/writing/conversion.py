"""`convert`: folders of images, tables and existing shards to a series of shards."""

from __future__ import annotations

import logging
import os
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from typing_extensions import Unpack

from torchdata_ais.arguments import checked, option, taken
from torchdata_ais.errors import StateError, UsageError
from torchdata_ais.store import Cluster, ClusterNames, StoreOptions, cluster_options, given_options
from torchdata_ais.urls import parse_url
from torchdata_ais.workers.ordered_pool import OrderedPool
from torchdata_ais.writing._transform import Edit, EditNames, Outcome, Transform
from torchdata_ais.writing.image_folder import image_folder
from torchdata_ais.writing.inputs import (
    ShardSource,
    Source,
    SourceNames,
    SourceOptions,
    find_shards,
    is_table,
    shards_in,
)
from torchdata_ais.writing.manifest import ShardInfo
from torchdata_ais.writing.prepare import prepare
from torchdata_ais.writing.shard_writer import PackedInto, ShardWriter
from torchdata_ais.writing.table import table

__all__ = ["Conversion", "Edit", "SourceOptions", "convert"]

_CHUNK_ITEMS = 32
_CHUNK_BYTES = 8 << 20

OnError = Literal["raise", "warn", "skip"]
Progress = Callable[[int, int, str], object]

logger = logging.getLogger("torchdata_ais")


@dataclass(frozen=True)
class Conversion:
    """What a conversion wrote.

    Attributes:
        shards: The shards, in order.
        samples: How many they hold.
        size: Their bytes.
        dropped: Samples that `select` or `map` did not want.
        skipped: Samples given up, by the class of the error.
        notes: What the manifest says besides, such as ``{"classes": [...]}`` of a folder of images.
    """

    shards: list[ShardInfo]
    samples: int
    size: int
    dropped: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


class ConvertNames(SourceNames, EditNames, PackedInto, total=False):
    """Parts of ``source_options=``, ``edit=`` and ``cluster=``, and arguments of `ShardWriter`."""

    manifest: str | None
    maxcount: int
    maxsize: float
    post: Callable[[str], object] | None
    start_shard: int
    verbose: bool | int
    opener: Callable[[str], Any] | None
    compress: bool | str | None
    format: Any


@checked
def convert(
    source: Any,
    target: str,
    *,
    source_options: SourceOptions | None = None,
    edit: Edit | None = None,
    seed: int = 0,
    processes: int = 1,
    start_method: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    on_error: OnError = "raise",
    progress: Progress | None = None,
    cluster: Cluster = None,
    **named: Unpack[ConvertNames],
) -> Conversion:
    """Convert a folder of images, a table or existing shards into a series of shards.

    Takes:
        One of:

        - a folder of images, one folder a class: see `torchdata_ais.writing.image_folder.image_folder`;
        - a ``.csv``, ``.tsv`` or ``.jsonl`` table: see `torchdata_ais.writing.table.table`;
        - shards: paths, ``ais://`` prefixes, brace templates, object URLs, a folder of shards, or a list of these.

    Order:
        Images by path, rows and shards as they stand, or shuffled. The shards written are the same, byte for byte,
        for any number of processes, interrupted or not; each item is used exactly once.

    Memory:
        ``4 * processes`` chunks of 32 samples (at most 8 MiB before decoding, or one sample), what `ShardWriter`
        takes, and the list of the images or the table.

    Args:
        source: See above.
        target: The pattern of the shards: ``out/train-%06d.tar``, ``ais://bucket/train-%06d.tar``. A missing local
            folder is made.
        source_options: `SourceOptions`: what `source` is, where its name does not tell, and in which order it is taken.
        edit: `Edit`: what to make of each sample; None copies them.
        seed: For ``shuffle`` and ``rng``.
        processes: How many processes load, decode, map and encode; 1 is this one alone. (Reading shards, and all
            writing, is done by this process: more of them help where there is something to compute.)
        start_method: How they start; None is Python's default. ``spawn`` and ``forkserver`` need functions that can
            be pickled.
        resume: Go on where the interrupted conversion with the same `manifest` stopped. Source and arguments must be
            the same; what was finished is neither read nor written again.
        overwrite: Write even if there are shards of this pattern already; they are replaced one by one.
        on_error: ``"raise"``; or ``"warn"``, ``"skip"``: count samples that cannot be loaded, decoded, mapped or
            encoded, log the first of each kind, and go on. A source shard that is not sound always raises.
        progress: Called now and then with what is done, the total, and the unit (``image``, ``row``, ``shard``).
        cluster: See `torchdata_ais.store.Cluster`.
        **named: Single parts of `source_options` (``kind columns root shuffle``) and of `edit` (``select decode map rng
            fields keys encoder allow_pickle quality``), by their names, and further arguments of `ShardWriter`:
            ``manifest maxcount maxsize post compress mtime ...``.

    Raises:
        UsageError: The arguments cannot work, or there are shards of this pattern already.
        SampleError: A sample cannot be made; the conversion can be resumed after the cause is gone.
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
    if processes < 1 or on_error not in ("raise", "warn", "skip"):
        raise UsageError.at(
            f"processes={processes!r}, on_error={on_error!r}", todo="see help(convert) for the values"
        )
    writer: dict[str, Any] = {**named}
    how = option(SourceOptions, source_options, writer)
    edit = option(Edit, edit, writer)
    given = given_options(cluster, **taken(writer, ClusterNames))
    store = partial(cluster_options, given)
    found = _open(source, how, store)
    if how.shuffle:
        found.shuffle(random.Random(f"{seed}/shuffle").shuffle)
    transform = edit.transform(found.load, seed)
    prepare(target, store, new=not (resume or overwrite))
    with ShardWriter(
        target,
        resume=resume,
        cluster=given,
        encoder=False,
        **writer,
    ) as shards:
        order = {"source": found.digest, "shuffle": how.shuffle, "seed": seed}
        counts = _take_up(shards, order, found.notes)
        at = (shards.resume_at() or {}).get("at")
        is_copy = isinstance(found, ShardSource) and edit.is_copy
        with closing(_outcomes(found, at, transform, 1 if is_copy else processes, start_method)) as outcomes:
            for cursor, outcome in outcomes:
                sample = counts.judged(outcome, on_error)
                if sample is not None:
                    if edit.keys == "number":
                        sample["__key__"] = f"{shards.total:09d}"
                    shards.write(sample)
                    shards.cursor = {"at": cursor, "dropped": counts.dropped, "skipped": dict(counts.skipped)}
                if progress is not None:
                    progress(found.done(cursor), found.total, found.unit)
    written = shards.shards
    return Conversion(
        written,
        shards.total,
        sum(shard.size for shard in written),
        counts.dropped,
        dict(counts.skipped),
        found.notes,
    )


def _open(source: Any, how: SourceOptions, store: Callable[[], StoreOptions]) -> Source:
    """Return the source of this kind, or of the kind that its name suggests."""
    kind = how.kind
    if kind == "auto" and isinstance(source, str | os.PathLike) and Path(source).is_dir():
        kind = "shards" if shards_in(source) else "images"
    elif kind == "auto":
        kind = "table" if is_table(source) else "shards"
    if kind != "table" and (how.columns or how.root):
        raise UsageError.at("columns= and root= are for tables", todo='pass kind="table", or leave them out')
    if kind == "images":
        return image_folder(source)
    if kind == "table":
        name = os.fspath(source)
        base = None if how.root is None else os.fspath(how.root)
        remote = _is_remote(name) or (base is not None and _is_remote(base))
        return table(name, store() if remote else StoreOptions(), root=base, columns=how.columns)
    found = find_shards(source, store)
    return ShardSource(found, store() if any(map(_is_remote, found)) else StoreOptions())


def _is_remote(name: str) -> bool:
    return parse_url(name).kind == "object"


@dataclass
class _Counts:
    """What became of the samples that were not written."""

    dropped: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def judged(self, outcome: Outcome, on_error: OnError) -> dict[str, Any] | None:
        """Return the sample to write, or None; raise what must not be passed over."""
        if outcome is None:
            self.dropped += 1
            return None
        if not isinstance(outcome, Exception):
            return outcome
        if on_error == "raise":
            raise outcome
        name = type(outcome).__name__
        if not self.skipped[name]:
            logger.log(
                logging.WARNING if on_error == "warn" else logging.INFO,
                "convert skips after %s: %s",
                name,
                outcome,
            )
        self.skipped[name] += 1
        return None


def _take_up(shards: ShardWriter, order: dict[str, Any], notes: dict[str, Any]) -> _Counts:
    """Note source and order in the manifest; in a resumed one, check that they are the same."""
    before = shards.notes.get("order")
    if before is None and shards.shards:
        raise StateError.at(
            "the manifest to resume is not that of a conversion", todo="name another manifest=, or begin anew"
        )
    if before is not None and before != order:
        changed = ", ".join(name for name in order if before.get(name) != order[name])
        raise StateError.at(
            f"another {changed} than that of the conversion to resume",
            todo="use the same, or begin anew without resume=True",
        )
    shards.notes.update(notes, order=order)
    cursor = shards.cursor or {}
    return _Counts(cursor.get("dropped", 0), Counter(cursor.get("skipped", {})))


def _outcomes(
    source: Source, at: Any, transform: Transform, processes: int, start_method: str | None
) -> Generator[tuple[Any, Outcome], None, None]:
    """Yield the outcome of each item, in order, with the cursor after it."""
    if processes == 1:
        for cursor, item in source.items(at):
            yield cursor, transform.one(item)
        return
    # The processes start before anything is opened here: under fork they would have copies of it.
    with OrderedPool(transform, processes, start_method) as pool:
        cursors: list[list[Any]] = []

        def chunks() -> Iterator[list[Any]]:
            for chunk in _chunks(source.items(at)):
                cursors.append([cursor for cursor, _ in chunk])
                yield [item for _, item in chunk]

        for outcomes in pool.map(chunks()):
            yield from zip(cursors.pop(0), outcomes, strict=True)


def _chunks(items: Iterator[tuple[Any, Any]]) -> Iterator[list[tuple[Any, Any]]]:
    """Yield items in lists, bounded in number and bytes."""
    chunk: list[tuple[Any, Any]] = []
    size = 0
    for entry in items:
        chunk.append(entry)
        if isinstance(entry[1], dict):
            size += sum(len(value) for value in entry[1].values() if isinstance(value, bytes))
        if len(chunk) == _CHUNK_ITEMS or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
