"""``torchdata-ais info``: what a data set holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchdata_ais.cli._echo import echo, echo_json
from torchdata_ais.cli._run import AsJson, Endpoint, command, options_of
from torchdata_ais.errors import NotFoundError, SampleError, SampleIndexError, ShardError
from torchdata_ais.shown import bytes_text, count_text

if TYPE_CHECKING:
    from torchdata_ais.cli._summary import Summary
    from torchdata_ais.index import IndexedSamples
    from torchdata_ais.store import StoreOptions


@command("torchdata_ais.store", "rich.progress")
def info(
    url: str,
    look: Annotated[int, typer.Option(min=0)] = 200,
    read: bool = False,
    shards_from: Annotated[list[str] | None, typer.Option("--shards-from")] = None,
    html: Annotated[Path | None, typer.Option("--html")] = None,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    """Show how many samples a data set has, its fields and their bytes, its classes, and the sizes of its pictures.

    All samples are counted out of the index where there is one (torchdata-ais index makes it), and some of them are
    read for classes and pictures. Without an index all shards are read.

    Args:
        url: ais://bucket/prefix, ais://bucket/train-{000..099}.tar, a local folder or pattern.
        look: With an index: look into so many samples, for classes and sizes of pictures.
        read: Read all shards, even if there is an index.
        shards_from (PLACE): A bucket or folder whose shards the index may name, too. May be repeated.
        html (FILE): Write a page with plots, too.

    Examples:
        torchdata-ais info ais://pets/train-
        torchdata-ais info --json --look 1000 ais://pets/train-
        torchdata-ais info --html pets.html ais://pets/train-
        torchdata-ais info --read '/data/train-*.tar'
    """
    from torchdata_ais.cli._files import check_new_file
    from torchdata_ais.cli._info_page import page_of
    from torchdata_ais.cli._summary import Summary
    from torchdata_ais.store import StoreOptions
    from torchdata_ais.store.naming import naming
    from torchdata_ais.whole_file import whole_file
    from torchdata_ais.writing.classes import names_for_people

    check_new_file(html)
    options = options_of([url], endpoint) or StoreOptions()
    summary = Summary()
    index = None if read else _index(url, shards_from, options)
    if index is None:
        _read(url, options, summary)
        source = "read"
    else:
        summary.count_index(index)
        summary.look_into(index.take(_spread(len(index), look)), options)
        source = f"index, proof {index.proof}"
    stale = index is not None and _is_stale(url, index, options)
    summary.names = names_for_people(url, lambda: options)
    if html is not None:
        with naming(str(html)), whole_file(html) as file:
            file.write(page_of(url, source, summary).encode())
        echo(f"wrote {html}", err=True)
    if as_json:
        echo_json({"url": url, "source": source, "stale": stale, **summary.as_dict()}, indent=1)
        return
    echo(
        f"{url}: {count_text(summary.samples, 'sample')} in {count_text(summary.shards, 'shard')},"
        f" {bytes_text(summary.bytes)} ({source})",
        *summary.lines(),
    )
    if stale:
        echo(
            "note: shards were changed, added or removed since: torchdata-ais index brings it up to date",
            err=True,
        )


def _index(url: str, shards_from: list[str] | None, options: StoreOptions) -> IndexedSamples | None:
    from torchdata_ais.index import IndexedSamples

    try:
        return IndexedSamples.open(
            url, shards_from=shards_from, cluster=options if options.endpoint else None
        )
    except NotFoundError:
        return None
    except SampleIndexError as error:
        echo(f"note: {error.what}; torchdata-ais index brings it up to date", err=True)
        return None


def _is_stale(url: str, index: IndexedSamples, options: StoreOptions) -> bool:
    """Whether the listing has other shards than the index."""
    from torchdata_ais.indexing.listing import listed_shards
    from torchdata_ais.urls import parse_url

    now = {(parse_url(one).uri, one.size, one.checksum) for one in listed_shards(url, options)}
    rows = (
        (part.shard(number) for part, number, _ in index.selected()) if index.is_selection else index.shards
    )
    return now != {(row.name, row.size, row.checksum) for row in rows}


def _spread(samples: int, wanted: int) -> list[int]:
    """Return numbers of samples, evenly from the first to the last."""
    count = min(samples, wanted)
    return [number * samples // count for number in range(count)]


def _read(url: str, options: StoreOptions, summary: Summary) -> None:
    """Read all shards, as training would."""
    from torchdata_ais.cli._progress import progress
    from torchdata_ais.pipes import AISFileLoader, TarSampleGrouper
    from torchdata_ais.store import list_objects

    shards = list_objects(url, options=options)
    with progress("info", "shard", len(shards)) as advance:
        for shard in shards:
            try:
                for sample in TarSampleGrouper(AISFileLoader([shard], cluster=options)):
                    summary.count(sample)
                    summary.look(sample)
            except (ShardError, SampleError) as error:
                raise error.noting("torchdata-ais lint finds all that is bad") from error
            summary.shards += 1
            advance(1)
