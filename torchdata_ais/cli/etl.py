"""``torchdata-ais etl``: functions of samples, run by the cluster."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from torchdata_ais.cli._echo import echo, echo_json
from torchdata_ais.cli._page import add_command, command_line
from torchdata_ais.cli._run import AsJson, Endpoint, ExitCodes, command, options_for
from torchdata_ais.shown import bytes_text, count_text

etl = command_line(
    name="etl",
    add_completion=False,
    help="Functions of samples, run by the cluster on whole shards: start, list, use, look into, remove.",
    epilog=ExitCodes.HELP,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="6 to 32 of a-z, 0-9 and -.")]


@command("torchdata_ais.etl.bucket", "aistore.sdk", also={"replace_other": "--replace"})
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
        function (MODULE:FUNCTION): f(sample) or f(sample, args), or what shard_etl made of one.
        decode: What fields become before: pil, torchrgb8, ... Default: bytes.
        size: With --decode: images this many pixels square.
        dependency: A package for the pods to install.
        replace: Replace other code of this name.

    Examples:
        torchdata-ais etl init flip-left augment:flip --decode pil
    """
    from torchdata_ais.cli._function import function_named
    from torchdata_ais.etl import ensure_etl, shard_etl

    made: Any = function_named(function)
    if not isinstance(made, type):
        options: dict[str, Any] = {"size": size} if size else {}
        made = shard_etl(decode=decode or None, **options)(made)
    where = options_for(endpoint).endpoint
    ensure_etl(where, name, made, dependencies=dependency or (), replace_other=replace)
    echo(f"{name} runs; read through it with AISSourceLister(..., etl_name={name!r})", err=True)


@command("torchdata_ais.etl.bucket", "aistore.sdk")
def list_them(as_json: AsJson = False, endpoint: Endpoint = "") -> None:
    """List the transforms of the cluster.

    Args:
        as_json: Print JSON.

    Examples:
        torchdata-ais etl ls --json
    """
    from torchdata_ais.etl import list_etls

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


@command("torchdata_ais.etl.bucket", "aistore.sdk")
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
        skip: Go on after an object that fails.
        as_json: Print JSON.

    Examples:
        torchdata-ais etl run flip-left ais://pets/train- ais://flipped
    """
    from torchdata_ais.cli._progress import job_bars
    from torchdata_ais.etl import transform_bucket

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


@command("torchdata_ais.etl.bucket", "aistore.sdk")
def logs(
    name: Name,
    lines: Annotated[int, typer.Option(min=1)] = 40,
    endpoint: Endpoint = "",
) -> None:
    """Show what a transform has logged.

    Args:
        lines: Of each target, the last so many.

    Examples:
        torchdata-ais etl logs flip-left --lines 100
    """
    from torchdata_ais.etl import etl_logs

    echo(*etl_logs(options_for(endpoint).endpoint, name, lines).split("\n"))


@command("torchdata_ais.etl.bucket", "aistore.sdk")
def rm(name: Name, endpoint: Endpoint = "") -> None:
    """Stop a transform and take it away.

    Examples:
        torchdata-ais etl rm flip-left
    """
    from torchdata_ais.etl import delete_etl

    delete_etl(options_for(endpoint).endpoint, name)


add_command(etl, init)
add_command(etl, list_them, name="ls")
for _command in (run, logs, rm):
    add_command(etl, _command)
