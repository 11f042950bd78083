"""``torchdata-ais convert``: pictures, sound, tables, shards into shards."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from torchdata_ais._util.formatting import bytes_text, count_text
from torchdata_ais.cli._output import echo, echo_json
from torchdata_ais.cli._run import AsJson, Endpoint, command, goes_on, options_for
from torchdata_ais.errors import UsageError
from torchdata_ais.urls import parse_url
from torchdata_ais.urls.parsing import common_beginning, expand_template

if TYPE_CHECKING:
    from torchdata_ais.writing import Conversion


@command("torchdata_ais.writing", "rich.progress", also={"columns": "--column"})
def convert(
    sources: list[str],
    target: str,
    kind: Literal["auto", "images", "audio", "table", "shards"] = "auto",
    maxcount: Annotated[int, typer.Option(min=1)] = 100000,
    maxsize: str = "3GB",
    fields: str | None = None,
    number_keys: bool = False,
    column: list[str] | None = None,
    root: str | None = None,
    image_field: str | None = None,
    allow_outside: Annotated[bool, typer.Option("--allow-outside")] = False,
    check: bool = False,
    shuffle: bool = False,
    split: str | None = None,
    part: str | None = None,
    seed: int = 0,
    size: Annotated[int | None, typer.Option(min=0)] = None,
    shorter: Annotated[int | None, typer.Option(min=0)] = None,
    max_pixels: Annotated[int | None, typer.Option(min=0)] = None,
    quality: Annotated[int, typer.Option(min=1, max=100)] = 95,
    map_with: Annotated[str | None, typer.Option("--map")] = None,
    rng: bool = False,
    select: str | None = None,
    processes: Annotated[int, typer.Option(min=1)] = 1,
    compress: Literal["gz", "bz2", "xz", "zst"] | None = None,
    manifest: str | None = None,
    resume: bool = False,
    index: bool = False,
    overwrite: bool = False,
    on_error: Literal["raise", "warn", "skip"] = "raise",
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    """Write tar shards from folders of media, a table, or other shards.

    Media are pictures or sound. Shards appear when they are whole. The result is the same, byte for byte, for
    any number of processes, and for a conversion that was interrupted and resumed. Names of classes are stored with
    the shards, in classes.json. Left-out items are counted and named.

    Args:
        sources (SRC...): A folder of pictures or sound, also in a bucket (ais://raw/photos/): with a folder for each
            class, or with captions next to them (a.jpg, a.txt), or with Hugging Face's metadata.jsonl; a .csv, .tsv,
            .jsonl or .parquet table; or shards: files, folders of them, ais://bucket/prefix, templates such as
            ais://bucket/s-{000..099}.tar.
        target (PATTERN): out/train-%06d.tar or ais://bucket/train-%06d.tar; with --split ais://bucket/{split}-%06d.tar.
        kind (KIND): images, audio, table or shards, where SRC is not enough.
        maxcount: Most samples in a shard.
        maxsize (SIZE): Most bytes of a shard, such as 500MB or 1GiB.
        fields: Keep these fields only: 'jpg cls'.
        number_keys: Give new keys: for shards whose keys repeat.
        column: For a table: COLUMN=FIELD, such as image_path=jpg.
        root: For a table: where its files are. Default: its folder.
        image_field (FIELD): The field of all pictures; 'ending' for each its own. Default: jpg, or the ending that all
            have.
        allow_outside: Follow links out of the folder, and cells of a table that name URLs or files outside of it.
        check: Decode every picture, sound, text and JSON once: broken ones are errors.
        shuffle: Put files or rows into a random order first.
        split (PARTS): 0.9/0.1 (train and val), 0.8/0.1/0.1 (and test), fit=0.7/held=0.3: drawn by --seed.
        part (K/N): Only the k-th of n parts, for several machines: 1/16 to 16/16 are the whole.
        seed: For --shuffle, --split and --rng.
        size: Encode images again, this many pixels square.
        shorter: Encode images again, the shorter side so long.
        max_pixels: Refuse images of more pixels, as stored or as made. Default: 89478485.
        quality: Of JPEG and WebP files made here.
        map_with: MODULE:FUNCTION from a decoded sample to a sample, or None.
        rng: Call the function with a random.Random, too.
        select: MODULE:FUNCTION that returns whether to keep a sample (of bytes).
        processes: Processes that read, decode and encode.
        compress (FORMAT): gz, bz2, xz or zst. Default: by the end of PATTERN.
        manifest: Where to note the finished shards, as JSON.
        resume: Continue after the shards of --manifest.
        index: Make the sample index of the new shards on the way.
        overwrite: Write over shards that are there; those beyond the new ones stay, and are named.
        on_error (WHAT): raise; or continue without samples that cannot be made: warn (and name each), skip.
        as_json: Print the result as one JSON object.

    Examples:
        torchdata-ais convert photos ais://pets/train-%06d.tar
        torchdata-ais convert --manifest m.json --resume photos out/%06d.tar
        torchdata-ais convert --column path=jpg --column label=cls t.csv %06d.tar
        torchdata-ais convert --split 0.9/0.1 photos 'ais://pets/{split}-%06d.tar'
        torchdata-ais convert --part 3/16 photos ais://pets/train-%06d.tar
        torchdata-ais convert --shorter 256 ais://a/train- ais://b/%06d.tar
    """
    goes_on("--resume" if manifest else "--overwrite")
    from torchdata_ais.cli._objects import bucket_for, new_bucket
    from torchdata_ais.cli._output import progress_of
    from torchdata_ais.cli._run import function_named
    from torchdata_ais.writing import ConversionJob, Edit, SourceOptions

    touches_cluster = any(parse_url(url).kind == "object" for url in (*sources, target))
    options = options_for(endpoint) if touches_cluster else None
    function = function_named(map_with)
    bars = ExitStack()
    job = ConversionJob(
        sources[0] if len(sources) == 1 else sources,
        target,
        how=SourceOptions(
            kind,
            columns=_columns(column or []),
            root=root or None,
            shuffle=shuffle,
            image_field=image_field,
            part=part,
            split=split,
            allow_outside=allow_outside,
        ),
        edit=Edit(
            select=function_named(select),
            decode=_decoder(function, size, shorter, max_pixels),
            map=function,
            rng=rng,
            fields=fields.replace(",", " ") if fields else None,
            keys="number" if number_keys else "keep",
            check=check,
            quality=quality,
        ),
        seed=seed,
        processes=processes,
        resume=resume,
        overwrite=overwrite,
        on_error=on_error,
        progress=progress_of(bars, "convert", size=lambda: job.bytes),
        cluster=options,
        writer={
            "manifest": manifest or None,
            "maxcount": maxcount,
            "maxsize": _bytes(maxsize),
            "compress": compress or None,
            "index": index,
        },
    )
    # Only now: a bucket for arguments that cannot work would stay empty.
    with bars, new_bucket(bucket_for(target.replace("{split}", "split"), options)):
        done = job.run()
    tell(done, target, as_json=as_json)


def _decoder(
    function: Callable[..., object] | None, size: int | None, shorter: int | None, max_pixels: int | None
) -> Any:
    """Return the decoder of the samples, where values are needed."""
    if function is None and not size and not shorter:
        return None
    from torchdata_ais.codecs import MAX_PIXELS, Decoder

    # Without a function nothing but images changes: other fields stay the bytes they are.
    return Decoder(
        "pil",
        size=size or None,
        shorter=shorter or None,
        partial=True,
        post=None if function else [],
        max_pixels=max_pixels or MAX_PIXELS,
    )


def _columns(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise UsageError.at(f"--column {pair}", todo="write COLUMN=FIELD, such as image_path=jpg")
    return {before: after for before, _, after in (pair.rpartition("=") for pair in pairs)}


def _bytes(text: str) -> float:
    """Return a number of bytes.

    Example:
        >>> _bytes("500MB"), _bytes("1 GiB"), _bytes("4096")
        (500000000.0, 1073741824.0, 4096.0)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?\s*", text, re.IGNORECASE)
    if not found:
        raise UsageError.at(f"--maxsize {text!r} is no size", todo="write 500MB, 1GiB, or a number of bytes")
    base = 1024 if found[3] else 1000
    power = "kmgt".index(found[2].lower()) + 1 if found[2] else 0
    return float(found[1]) * float(base**power)


_SHOWN = 8  # classes


def tell(done: Conversion, target: str, *, as_json: bool) -> None:
    """Print the written shards, and the left-out items."""
    if as_json:
        echo_json(_as_json(done))
        return
    skipped = sum(done.skipped.values())
    echo(
        f"wrote {count_text(done.samples, 'sample')}, {bytes_text(done.size)}, "
        f"in {count_text(len(done.shards), 'shard')} {target}"
        + (f": {', '.join(f'{name} {count}' for name, count in done.splits.items())}" if done.splits else "")
        + (f"; {done.dropped} left out" if done.dropped else "")
        + (f"; {count_text(skipped, 'error')} skipped" if skipped else "")
    )
    if done.classes:
        names = done.notes["classes"]
        shown = ", ".join(f"{name} {number}" for number, name in enumerate(names[:_SHOWN]))
        more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        echo(
            f"{'1 class' if len(names) == 1 else f'{len(names)} classes'}: {shown}{more}; noted in {done.classes}"
        )
    for reason, count, first in done.left_out:
        echo(
            f"note: {count} left out ({reason}): {first.splitlines()[0] if first else 'see above'}", err=True
        )
    from torchdata_ais.writing.sources.files import OUTSIDE_CELL, OUTSIDE_LINK

    if any(one.reason in (OUTSIDE_LINK, OUTSIDE_CELL) for one in done.left_out):
        echo("note: --allow-outside follows links and cells that lead out of the folder", err=True)
    for name, count, first in done.lacking:
        echo(f"note: {count_text(count, 'sample')} without {name}, such as {first}", err=True)
    if done.merged:
        echo(f"note: {done.merged}", err=True)
    if done.by_class:
        echo("note: the samples stand class after class, as their folders do; --shuffle mixes them", err=True)
    if done.stale:
        older = count_text(len(done.stale), "older shard")
        echo(
            f"warning: {older} of this pattern left beyond the new ones: training would read them, too",
            f"next: {_removing(done.stale)}",
            err=True,
        )


def _as_json(done: Conversion) -> dict[str, object]:
    found: dict[str, object] = {"samples": done.samples, "size": done.size, "dropped": done.dropped}
    found |= {"skipped": done.skipped, "left_out": [one._asdict() for one in done.left_out]}
    if done.classes:
        found |= {"classes": done.notes["classes"], "classes_in": done.classes}
    lacking = [one._asdict() for one in done.lacking]
    others = {"splits": done.splits, "stale": done.stale, "lacking": lacking, "by_class": done.by_class}
    others["merged"] = done.merged
    found |= {name: value for name, value in others.items() if value}
    rows = [
        {"name": shard.name, "samples": shard.samples, "size": shard.size, "checksum": shard.checksum}
        for shard in done.shards
    ]
    return {**found, "shards": rows}


def _removing(shards: list[str]) -> str:
    """Return the command that removes shards, with braces for many.

    Example:
        >>> _removing([f"ais://pets/s-{number:03d}.tar" for number in range(8, 12)])
        'torchdata-ais rm ais://pets/s-0{08..11}.tar'
        >>> _removing(["out/a b-1.tar"])
        "rm 'out/a b-1.tar'"
    """
    command = "torchdata-ais rm" if parse_url(shards[0]).kind == "object" else "rm"
    head, tail = common_beginning(shards), common_beginning([name[::-1] for name in shards])[::-1]
    first, last = (name[len(head) : len(name) - len(tail)] for name in (shards[0], shards[-1]))
    if first.isdigit() and last.isdigit():
        braces = f"{{{first}..{last}}}"
        if [f"{head}{number}{tail}" for number in expand_template(braces)] == shards:
            return f"{command} {shlex.quote(head)}{braces}{shlex.quote(tail)}"
    return f"{command} {shlex.join(shards)}"
