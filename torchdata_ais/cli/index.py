"""``torchdata-ais index``: make the sample index of shards, or check it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from torchdata_ais._util.formatting import count_text
from torchdata_ais.cli._output import echo, echo_json
from torchdata_ais.cli._run import AsJson, Endpoint, ExitCodes, command, goes_on, options_of

if TYPE_CHECKING:
    from torchdata_ais.index.build import SampleIndex


@command("torchdata_ais.index", "rich.progress")
def index(
    urls: list[str],
    where: str | None = None,
    method: Literal["read", "cluster"] = "read",
    check: bool = False,
    processes: Annotated[int | None, typer.Option(min=0)] = None,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    """Make the index of all samples of shards, to read them in any order.

    Only shards that changed since the last time are indexed again; a run that broke off continues. The exit code of
    --check is 1 if shard or index differ.

    Args:
        urls (URL...): ais://bucket/prefix, ais://bucket/train-{000..099}.tar, shards, local paths and patterns.
        where: The place of the index: a folder, or ais://bucket/name. Default: with the shards, in .index/.
        method (HOW): read: read every shard; cluster: by AIStore's job, which refuses shards uploaded in parts.
        check: Compare the index that is there with the shards; change nothing.
        processes: Processes that read. Default: one a core.

    Examples:
        torchdata-ais index ais://pets/train-
        torchdata-ais index --check ais://pets/train-
        torchdata-ais index --where /data/index ais://a/train- ais://b/train-
    """
    goes_on()
    from torchdata_ais.cli._output import job_bars
    from torchdata_ais.errors import UsageError
    from torchdata_ais.index import index_place
    from torchdata_ais.index.build import SampleIndex, problems_of
    from torchdata_ais.store import StoreOptions

    if not where and len(urls) > 1:
        raise UsageError.at("Several sources have no place of their own for an index", todo="pass --where")
    options = options_of(filter(None, [*urls, where]), endpoint) or StoreOptions()
    place = where or index_place(urls[0])
    workers = processes or os.cpu_count() or 1
    problems = None
    with job_bars() as bars:
        if check:
            found = SampleIndex.open(where or urls[0], shards_from=urls if where else None, cluster=options)
            problems = [str(error.what) for error in problems_of(found, processes=workers, progress=bars)]
        else:
            found = SampleIndex.build(
                list(urls),
                method=method,
                processes=workers,
                where=place,
                progress=bars,
                cluster=options,
            )
    _show(found, place, as_json, problems)
    if problems:
        raise typer.Exit(ExitCodes.FAILED)


def _show(index: SampleIndex, place: str, as_json: bool, problems: list[str] | None) -> None:
    """Print the extent of an index and, if it was compared, the problems."""
    shards = sum(1 for _ in (index.selected() if index.is_selection else index.shards))
    if as_json:
        plain = {
            "where": place, "samples": len(index), "shards": shards, "proof": index.proof, "digest": index.digest,
        }  # fmt: skip
        echo_json(plain | ({} if problems is None else {"problems": problems}), indent=1)
        return
    for problem in problems or []:
        echo(f"error: {problem}")
    text = f"{count_text(len(index), 'sample')} in {count_text(shards, 'shard')}, proof {index.proof}"
    if problems is None:
        echo(f"{text}: {place}")
    else:
        echo(f"{text}: {count_text(len(problems), 'error') if problems else 'sound'}")
