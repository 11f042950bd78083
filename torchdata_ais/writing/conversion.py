"""`convert`: folders of pictures and sound, tables and existing shards to a series of shards."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from typing_extensions import Unpack

from torchdata_ais.arguments import checked, option
from torchdata_ais.shown import count_text
from torchdata_ais.store import Cluster
from torchdata_ais.urls import redact
from torchdata_ais.writing._outcomes import OnError
from torchdata_ais.writing._transform import Edit, EditNames
from torchdata_ais.writing.job import Conversion, ConversionJob, Progress
from torchdata_ais.writing.shard_writer import PackedInto
from torchdata_ais.writing.sources.options import SourceNames, SourceOptions

__all__ = ["Conversion", "Edit", "SourceOptions", "convert"]

logger = logging.getLogger("torchdata_ais")


class ConvertNames(SourceNames, EditNames, PackedInto, total=False):
    """Parts of ``source_options=`` and ``edit=``, and arguments of `ShardWriter`."""

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
    target: str | os.PathLike[str],
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
    """Convert folders of pictures or sound, tables or existing shards into a series of shards.

    Takes:
        One of:

        - a folder of pictures or sound, with a folder a class, or with captions beside them (``a.jpg``, ``a.txt``);
          also what img2dataset makes: see `torchdata_ais.writing.sources.folder.media_folder`;
        - a folder in Hugging Face's layout, with a ``metadata.jsonl`` (``.csv``, ``.parquet``);
        - a ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet`` table, or several Parquet files, or a folder of them: see
          `torchdata_ais.writing.sources.table.table`;
        - such a folder of pictures or sound in a bucket: ``ais://bucket/prefix/``;
        - shards: paths, ``ais://`` prefixes, brace templates, object URLs, a folder of shards, or a list of these.

        Names of classes are kept beside the shards, in ``classes.json``; if one is there that has these, too, classes
        get the numbers that they have there.

    Order:
        Files by path, rows and shards as they stand, or shuffled. The shards written are the same, byte for byte, for
        any number of processes, interrupted or not; each item is used exactly once, in whichever part or split. What is
        left out is counted, and named with the reason (`Conversion.left_out`), and so are fields that only some samples
        have (`Conversion.lacking`). Of folders of classes the samples come class after class, unless they are shuffled.

    Memory:
        ``4 * processes`` chunks of 32 samples (at most 8 MiB before decoding, or one sample), what `ShardWriter`
        takes, and the list of the files or the table (of a Parquet file 64 rows, unless it is shuffled).

    Args:
        source: See above.
        target: The pattern of the shards: ``out/train-%06d.tar``, ``ais://bucket/train-%06d.tar``. A missing local
            folder is made. With ``split`` it has ``{split}`` in it.
        source_options: `SourceOptions`: what `source` is, where its name does not tell, and in which order it is taken.
        edit: `Edit`: what to make of each sample; None copies them.
        seed: For ``shuffle`` and ``rng``.
        processes: How many processes load, decode, map and encode; 1 is this one alone. (Reading shards, and all
            writing, is done by this process: more of them help where there is something to compute.)
        start_method: How they start; None is Python's default. ``spawn`` and ``forkserver`` need functions that can
            be pickled.
        resume: Go on where the interrupted conversion with the same `manifest` stopped. Source and arguments must be
            the same; what was finished is neither read nor written again.
        overwrite: Write even if there are shards of this pattern already; they are replaced one by one. None is
            removed: those with numbers beyond the new ones stay, and are named (`Conversion.stale`).
        on_error: ``"raise"``; or ``"warn"``, ``"skip"``: count samples that cannot be loaded, decoded, mapped or
            encoded, and go on; ``"warn"`` names the first 1,000 of each class in the log, ``"skip"`` the first. A
            source shard that is not sound always raises.
        progress: Called now and then with what is done, the total, and the unit (``image``, ``row``, ``shard``).
        cluster: See `torchdata_ais.store.Cluster`.
        **named: Single parts of `source_options` (``kind columns root shuffle
            image_field part split``) and of `edit` (``select decode map rng
            fields keys check encoder allow_pickle quality``), by their names, and further arguments of `ShardWriter`:
            ``manifest maxcount maxsize post compress mtime ...``.

    Raises:
        UsageError: The arguments cannot work, or there are shards of this pattern already; shards would be written
            over those that are read, or among them; `select` or `map` left all samples out.
        NotFoundError: There is no source, or no sample in it.
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
    writer: dict[str, Any] = {**named}
    how = option(SourceOptions, source_options, writer)
    edit = option(Edit, edit, writer)
    job = ConversionJob(
        source,
        os.fspath(target),
        how=how,
        edit=edit,
        seed=seed,
        processes=processes,
        start_method=start_method,
        resume=resume,
        overwrite=overwrite,
        on_error=on_error,
        progress=progress,
        cluster=cluster,
        writer=writer,
    )
    for reason, count, first in job.left_out:
        logger.warning("%s: %d left out (%s), such as %s", source, count, reason, first)
    done = job.run()
    for name, number, first in done.lacking:
        logger.warning(
            "%s of %s without %s, such as %s", number, count_text(done.samples, "sample"), name, first
        )
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
