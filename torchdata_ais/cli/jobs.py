"""etl and dsort."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from torchdata_ais._util.formatting import bytes_text, count_text
from torchdata_ais.cli._output import echo, echo_json
from torchdata_ais.cli._run import (
    AsJson,
    Endpoint,
    ExitCodes,
    add_command,
    command,
    command_line,
    options_for,
)
from torchdata_ais.errors import UsageError
from torchdata_ais.urls import parse_url

if TYPE_CHECKING:
    from torchdata_ais.codecs.decoder import SpecName
    from torchdata_ais.jobs.dsort import DsortResult


etl = command_line(
    name="etl",
    add_completion=False,
    help="Functions of samples, run by the cluster on whole shards: start, list, use, look into, remove.",
    epilog=ExitCodes.HELP,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="6 to 32 of a-z, 0-9 and -.")]


@command("torchdata_ais.jobs.etl.cluster", "aistore.sdk", also={"replace_other": "--replace"})
def init(
    name: Name,
    function: str,
    decode: str | None = None,
    size: Annotated[int | None, typer.Option(min=0)] = None,
    dependency: list[str] | None = None,
    replace: bool = False,
    endpoint: Endpoint = "",
) -> None:
    """Start a transform, unless it runs already.

    Args:
        function (MODULE:FUNCTION): f(sample) or f(sample, args), or a result of shard_etl.
        decode: Decoding of the fields before: pil, torchrgb8, ... Default: bytes.
        size: With --decode: images this many pixels square.
        dependency: A package for the pods to install.
        replace: Replace other code of this name.

    Examples:
        torchdata-ais etl init flip-left augment:flip --decode pil
    """
    from torchdata_ais.cli._run import function_named
    from torchdata_ais.jobs.etl import ensure_etl, shard_etl

    made: object = function_named(function)
    if not isinstance(made, type):
        made = shard_etl(decode=cast("SpecName | None", decode or None), size=size or None)(made)
    where = options_for(endpoint).endpoint
    ensure_etl(where, name, made, dependencies=dependency or (), replace_other=replace)
    echo(f"{name} runs; read through it with AISSourceLister(..., etl_name={name!r})", err=True)


@command("torchdata_ais.jobs.etl.cluster", "aistore.sdk")
def list_them(as_json: AsJson = False, endpoint: Endpoint = "") -> None:
    """List the transforms of the cluster.

    Args:
        as_json: Print JSON.

    Examples:
        torchdata-ais etl ls --json
    """
    from torchdata_ais.jobs.etl import list_etls

    rows = list_etls(options_for(endpoint).endpoint)
    if as_json:
        echo_json(rows, indent=1)
        return
    for row in rows:
        echo(
            f"{row['stage']:<12} {row['name']:<32} {count_text(row['objects'], 'object')}, "
            f"{bytes_text(row['in_bytes'])} in, {bytes_text(row['out_bytes'])} out"
        )
    echo(count_text(len(rows), "transform"), err=True)


@command("torchdata_ais.jobs.etl.cluster", "aistore.sdk")
def run(
    name: Name,
    source: str,
    target: str,
    skip: bool = False,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    """Put all objects of a bucket through a transform into another bucket.

    Args:
        source (SRC): ais://bucket or ais://bucket/prefix.
        target (DST): ais://bucket, or ais://bucket/text to put before names.
        skip: Continue after an object that fails.
        as_json: Print JSON.

    Examples:
        torchdata-ais etl run flip-left ais://pets/train- ais://flipped
    """
    from torchdata_ais.cli._output import job_bars
    from torchdata_ais.jobs.etl import transform_bucket

    where = options_for(endpoint).endpoint
    on_error: Literal["raise", "skip"] = "skip" if skip else "raise"
    with job_bars() as show:
        result = transform_bucket(where, name, source, target, on_error=on_error, progress=show)
    if as_json:
        echo_json({"job": result.job_id, "objects": result.objects, "errors": result.errors})
        return
    for failed, why in result.errors.items():
        echo(f"left out {failed}: {why}", err=True)
    echo(f"{count_text(result.objects, 'object')} written to {target}")


@command("torchdata_ais.jobs.etl.cluster", "aistore.sdk")
def logs(
    name: Name,
    lines: Annotated[int, typer.Option(min=1)] = 40,
    endpoint: Endpoint = "",
) -> None:
    """Show the log of a transform.

    Args:
        lines: Of each target, the last so many.

    Examples:
        torchdata-ais etl logs flip-left --lines 100
    """
    from torchdata_ais.jobs.etl import etl_logs

    echo(*etl_logs(options_for(endpoint).endpoint, name, lines).split("\n"))


@command("torchdata_ais.jobs.etl.cluster", "aistore.sdk")
def rm(name: Name, endpoint: Endpoint = "") -> None:
    """Stop a transform and take it away.

    Examples:
        torchdata-ais etl rm flip-left
    """
    from torchdata_ais.jobs.etl import delete_etl

    delete_etl(options_for(endpoint).endpoint, name)


add_command(etl, init)
add_command(etl, list_them, name="ls")
for _command in (run, logs, rm):
    add_command(etl, _command)


@command("torchdata_ais.jobs.dsort.run", "aistore.sdk", "rich.progress", also={"output_shard_size": "--size"})
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
    """Put the samples of many shards into another order, on the cluster.

    The new shards may have another size. With a specification file, as the ais command takes them, only --check and
    --overwrite count.

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
    from torchdata_ais.cli._output import job_bars
    from torchdata_ais.jobs.dsort import DsortSpec, run_dsort

    spec: object
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
    from torchdata_ais.jobs.dsort import ByContent, ByName, Shuffle, Unchanged

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
    text = "not checked"
    if result.samples is not None:
        text = f"checked: {count_text(result.samples, 'sample')}, the same"
    if result.missing:
        text += f"; {count_text(len(result.missing), 'input shard')} of the template were not there"
    echo(f"{count_text(len(rows), 'shard')}, {text}", err=True)
