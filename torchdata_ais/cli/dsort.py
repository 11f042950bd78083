"""``torchdata-ais dsort``: shards sorted, shuffled and resized by the cluster itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from torchdata_ais.cli._echo import echo, echo_json
from torchdata_ais.cli._run import AsJson, Endpoint, command, options_for
from torchdata_ais.errors import UsageError
from torchdata_ais.shown import bytes_text, count_text
from torchdata_ais.urls import parse_url

if TYPE_CHECKING:
    from torchdata_ais.dsort import DsortResult


@command("torchdata_ais.dsort.run", "aistore.sdk", "rich.progress", also={"output_shard_size": "--size"})
def dsort(
    source: str,
    target: Annotated[str, typer.Argument()] = "",
    order: Literal["shuffle", "name", "content", "keep"] = "shuffle",
    size: str = "100MB",
    seed: Annotated[int, typer.Option(min=-1)] = -1,
    field: str = "cls",
    kind: Literal["int", "float", "string"] = "int",
    decreasing: bool = False,
    check: bool = False,
    overwrite: bool = False,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    """Put the samples of many shards into another order and into shards of another size, on the cluster.

    With a specification file, as the ais command takes them, only --check and --overwrite count.

    Args:
        source (SRC): ais://bucket/samples-{00..18}.tar, ais://bucket/prefix, or a specification: a .json or .yaml file.
        target (PATTERN): ais://bucket/shuffled-%06d.tar
        order (ORDER): shuffle, name, content, or keep.
        size (SIZE): Bytes of a new shard: 100MB, 1GiB.
        seed: For shuffle; -1 is none.
        field: For content: the field to sort by, such as cls.
        kind (KIND): For content: int, float or string.
        decreasing: The last or largest first.
        check: Read old and new shards and compare: the same samples, each once.
        overwrite: Delete shards that have the names of new ones.
        as_json: Print the result as one JSON object.

    Examples:
        torchdata-ais dsort ais://pets/train- ais://pets/shuffled-%06d.tar
        torchdata-ais dsort --order name ais://pets/t- ais://pets/sorted-%d.tar
        torchdata-ais dsort --check SPEC.json
    """
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
        raise UsageError.at("PATTERN is missing", todo="say where to write: ais://bucket/shuffled-%06d.tar")
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
