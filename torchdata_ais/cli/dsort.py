"""``torchdata-ais dsort``: shards sorted, shuffled and resized by the cluster itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from torchdata_ais.cli._echo import echo, echo_json
from torchdata_ais.cli._run import Debug, Endpoint, options_for, reported
from torchdata_ais.errors import UsageError
from torchdata_ais.shown import bytes_text, count_text
from torchdata_ais.urls import parse_url

if TYPE_CHECKING:
    from torchdata_ais.dsort import DsortResult


def dsort(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="ais://bucket/samples-{00..18}.tar, ais://bucket/prefix, or a specification: a .json or .yaml file.",
        ),
    ],
    target: Annotated[
        str, typer.Argument(metavar="PATTERN", help="ais://bucket/shuffled-%06d.tar", show_default=False)
    ] = "",
    order: Annotated[
        Literal["shuffle", "name", "content", "keep"],
        typer.Option(metavar="ORDER", help="shuffle, name, content, or keep."),
    ] = "shuffle",
    size: Annotated[str, typer.Option(metavar="SIZE", help="Bytes of a new shard: 100MB, 1GiB.")] = "100MB",
    seed: Annotated[int, typer.Option(help="For shuffle; -1 is none.", min=-1)] = -1,
    field: Annotated[str, typer.Option(help="For content: the field to sort by, such as cls.")] = "cls",
    kind: Annotated[
        Literal["int", "float", "string"],
        typer.Option(metavar="KIND", help="For content: int, float or string."),
    ] = "int",
    decreasing: Annotated[bool, typer.Option("--decreasing", help="The last or largest first.")] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Read old and new shards and compare: the same samples, each once."),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete shards that have the names of new ones.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    endpoint: Endpoint = "",
    debug: Debug = False,
) -> None:
    """Put the samples of many shards into another order and into shards of another size, on the cluster.

    With a specification file, as the ais command takes them, also in its old form, only --check and --overwrite count.

    Examples:
        torchdata-ais dsort ais://pets/train- ais://pets/shuffled-%06d.tar
        torchdata-ais dsort --order name ais://pets/t- ais://pets/sorted-%d.tar
        torchdata-ais dsort --check SPEC.json
    """
    with reported(
        debug, "torchdata_ais.dsort.run", "aistore.sdk", "rich.progress",
        command=dsort, also={"output_shard_size": "--size"},
    ):  # fmt: skip
        from torchdata_ais.cli._progress import job_bars
        from torchdata_ais.dsort import DsortSpec, run_dsort

        spec: Any
        if source.endswith((".json", ".yaml", ".yml")) and "://" not in source:
            if target:
                raise UsageError.at("the specification says where to write", todo="leave PATTERN out")
            spec = Path(source)
        elif target:
            spec = DsortSpec(source, target, size, _order(order, seed, field, kind, decreasing))
        else:
            raise UsageError.at(
                "PATTERN is missing", todo="say where to write: ais://bucket/shuffled-%06d.tar"
            )
        where = options_for(endpoint).endpoint
        with job_bars() as show:
            result = run_dsort(where, spec, check=check, overwrite=overwrite, progress=show)
        _tell(result, as_json=as_json)


def _order(
    name: str, seed: int, field: str, kind: Literal["int", "float", "string"], decreasing: bool
) -> Any:
    from torchdata_ais.dsort import ByContent, ByName, Shuffle, Unchanged

    if name == "shuffle":
        return Shuffle(None if seed < 0 else seed)
    if name == "name":
        return ByName(decreasing)
    if name == "content":
        return ByContent(field, kind, decreasing)
    return Unchanged()


def _tell(result: DsortResult, *, as_json: bool) -> None:

    rows = [{"url": parse_url(shard).uri, "size": shard.size} for shard in result.shards]
    if as_json:
        facts = {"job": result.job_id, "samples": result.samples, "missing": result.missing}
        echo_json({**facts, "shards": rows})
        return
    for row in rows:
        echo(f"{bytes_text(int(row['size'] or 0)):>10}  {row['url']}")
    checked = (
        "not checked"
        if result.samples is None
        else f"checked: {count_text(result.samples, 'sample')}, the same"
    )
    missing = (
        f"; {count_text(len(result.missing), 'input shard')} of the template were not there"
        if result.missing
        else ""
    )
    echo(f"{count_text(len(rows), 'shard')}, {checked}{missing}", err=True)
