"""``torchdata-ais lint``: is every shard sound, and do they fit together?"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from torchdata_ais._util.formatting import bytes_text, count_text
from torchdata_ais.cli._output import as_typed, echo, echo_json, names_of, remedy_as_typed
from torchdata_ais.cli._run import AsJson, Endpoint, ExitCodes, command, goes_on, options_of
from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.errors.text import Sentences

if TYPE_CHECKING:
    from torchdata_ais.cli.checks import LintReport, Problem, Resharded
    from torchdata_ais.cli.checks.lint import ShardReport
    from torchdata_ais.store import StoreOptions

_SHOWN_ALIKE = 3  # problems of one kind in one shard


@command("torchdata_ais.cli.checks.lint", "rich.progress")
def lint(
    urls: list[str],
    require: str | None = None,
    decode: bool = True,
    only: str | None = None,
    processes: Annotated[int | None, typer.Option(min=0)] = None,
    fix: str | None = None,
    maxcount: Annotated[int, typer.Option(min=1)] = 10_000,
    index: bool = False,
    strict: bool = False,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
) -> None:
    """Read every shard as training would, and report each problem.

    Each problem is one line. Errors: a shard that is not whole, keys that repeat or whose members are not consecutive,
    fields that are double, missing or do not decode. Notes: fields that few samples have, keys that are in several
    shards, uneven sizes. The exit code is 1 if there are errors, also with --fix.

    Args:
        urls (URL...): ais://bucket/prefix, ais://bucket/train-{000..099}.tar, shards, local paths and patterns.
        require: Fields each sample must have, such as 'jpg;png cls'. Default: those most samples have.
        decode: Decode every field, images to the last pixel.
        only: Decode these fields only: 'jpg cls'.
        processes: Shards read at once, in threads. Default: one a core.
        fix (PATTERN): Write the good samples to new shards: out/train-%06d.tar, ais://bucket/train-%06d.tar.
        maxcount: Most samples in a shard that --fix writes.
        index: Make the sample index of shards that are sound, too.
        strict: Notes count as errors.

    Examples:
        torchdata-ais lint ais://pets/train-
        torchdata-ais lint --require 'jpg;png cls' /data/train-*.tar
        torchdata-ais lint ais://pets/train- --fix ais://good/train-%06d.tar
    """
    if fix:
        goes_on()
    with ExitStack() as stack:
        from torchdata_ais.cli._objects import bucket_for, new_bucket
        from torchdata_ais.cli._output import progress_of
        from torchdata_ais.cli.checks import lint_shards, reshard
        from torchdata_ais.index.build.builder import IndexLocation
        from torchdata_ais.store import resolve_options
        from torchdata_ais.writing.prepare import folder_of

        options = options_of(filter(None, [*urls, fix]), endpoint)
        if fix:
            stack.enter_context(folder_of(fix))
            _check_target(fix, urls, options)
        bars = stack.enter_context(ExitStack())
        if index and len(urls) > 1:
            raise UsageError.at(
                "Several sources have no place of their own for an index",
                todo="run torchdata-ais index --where",
            )
        if index:
            IndexLocation(urls[0], options or resolve_options()).refuse_part()
        sizes: list[int] = []
        report = lint_shards(
            list(urls),
            require=require or (),
            decode=decode,
            only=only or None,
            jobs=processes or None,
            progress=progress_of(bars, "lint", size=lambda: sum(sizes)),
            read=sizes.append,
            index=index,
            cluster=options,
        )
        bars.close()
        where = None if report.index is None else report.index.save().stored[0].folder.where
        more: dict[str, object] = {"index": where} if index else {}
        if not as_json:
            _show(report, more.get("index"), fix)
        if fix:
            stack.enter_context(new_bucket(bucket_for(fix, options)))
            goes_on(after=f"remove the shards of {fix}, then ")
            bar = progress_of(bars, "fix")
            written = reshard(report, fix, decode=decode, maxcount=maxcount, progress=bar, cluster=options)
            bars.close()
            more = {"fixed": vars(written), **more}
            if not as_json:
                _show_written(written, fix, broken=sum(not shard.whole for shard in report.shards))
        if as_json:
            echo_json(report.as_dict() | more, indent=1)
        if not report.ok or (strict and any(report.problems())):
            raise typer.Exit(ExitCodes.FAILED)


def _show_problems(shard: ShardReport) -> None:
    shown: Counter[str] = Counter()
    for problem in shard.problems:
        shown[problem.kind] += 1
        if shown[problem.kind] <= _SHOWN_ALIKE:
            echo(_typed(problem))
    unseen = shard.errors - sum(min(count, _SHOWN_ALIKE) for count in shown.values())
    if unseen:
        kinds = ", ".join(kind for kind, count in shown.items() if count > _SHOWN_ALIKE)
        echo(f"error: {shard.url}: {count_text(unseen, 'more error')} of this shard (such as {kinds})")


def _show(report: LintReport, index: object, fix: str | None) -> None:
    for shard in report.shards:
        _show_problems(shard)
    for problem in report.across:
        echo(_typed(problem))
    samples = sum(shard.samples for shard in report.shards)
    broken = sum(not shard.whole for shard in report.shards)
    errors = sum(shard.errors for shard in report.shards)
    errors += sum(problem.severity == "error" for problem in report.across)
    urls = {problem.url for problem in report.errors() if problem.url}
    fields = " ".join(report.required) or "none"
    verdict = "sound"
    if errors:
        verdict = f"{count_text(errors, 'error')} in {count_text(len(urls), 'shard')}, {broken} not whole"
    echo(
        f"{count_text(len(report.shards), 'shard')}, {count_text(samples, 'sample')},"
        f" {bytes_text(sum(shard.bytes for shard in report.shards))}, fields {fields}: {verdict}"
        f" ({report.seconds:.1f} s)"
    )
    if index:
        echo(f"index: {index}")
    if not (report.ok or fix) and any(shard.good for shard in report.shards):
        todo = "--fix ais://BUCKET/good-%06d.tar writes what is good to new shards; the old ones stay"
        echo(f"next: {todo}", err=True)


def _typed(problem: Problem) -> Problem:
    """Return the same problem, with a remedy that can be typed here."""
    text = problem.text
    if not isinstance(text, Sentences):
        return replace(problem, text=as_typed(text, names_of(lint)))
    parts = [as_typed(text.what, names_of(lint)), remedy_as_typed(text.todo, names_of(lint))]
    return replace(problem, text=". ".join(filter(None, parts)))


def _show_written(written: Resharded, target: str, broken: int) -> None:
    out = [f"{count} {name}" for name, count in written.left_out.items()]
    if broken:
        out.append(f"what follows the break in {count_text(broken, 'shard')}")
    echo(
        f"wrote {count_text(written.samples, 'sample')} in {count_text(len(written.shards), 'shard')} {target}"
        + (f"; {written.joined} put together" if written.joined else "")
        + (f"; {written.renamed} renamed" if written.renamed else "")
        + (f"; left out: {', '.join(out)}" if out else "")
        + (f"; classes noted in {written.classes}" if written.classes else "")
    )


def _check_target(target: str, urls: list[str], options: StoreOptions | None) -> None:
    """Refuse a target that cannot be written to, before everything is read."""
    from torchdata_ais.store import resolve_options
    from torchdata_ais.writing.prepare import check_apart, prepare

    def store() -> StoreOptions:
        return options or resolve_options()

    try:
        prepare(target, store, new=True, todo="remove them or write elsewhere")
        check_apart(target, urls, store)
    except NotFoundError:
        return  # the bucket is made when there is something to write
