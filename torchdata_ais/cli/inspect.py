"""``torchdata-ais inspect``: contents of a shard, and its soundness."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from torchdata_ais._util.formatting import bytes_text, count_text
from torchdata_ais.cli._output import check_new_file, echo, echo_json, names_of, shown_line
from torchdata_ais.cli._run import AsJson, Debug, Endpoint, ExitCodes, command, options_of, sentence
from torchdata_ais.errors import AISError, NotFoundError, UsageError
from torchdata_ais.urls import Location, parse_url

_SHEET_SAMPLES = 48


class _Member(NamedTuple):
    key: str | None
    field: str | None
    member: str
    offset: int
    size: int


@command("torchdata_ais.pipes")
def inspect(
    url: str,
    count: Annotated[int, typer.Option("-n", "--count", min=0, show_default=False)] = 0,
    as_json: AsJson = False,
    sheet: Path | None = None,
    endpoint: Endpoint = "",
    debug: Debug = False,
) -> None:
    """Show the samples of a shard: key, offset, and the size of each field.

    The shard is read to its end and checked as in training: tar headers, end of archive, length and checksum of the
    object, and that the members of each sample are consecutive. If it is not sound, the exit code is 1, and the
    readable part is shown before the error.

    Args:
        url: A shard: ais://bucket/name.tar, an object URL, or a local file.
        count: Read the first so many samples only, and check no more.
        sheet (FILE): Write a contact sheet of the first images, such as out.png.

    Examples:
        torchdata-ais inspect ais://pets/train-000.tar
        torchdata-ais inspect -n 3 ais://pets/train-000.tar
        torchdata-ais inspect --sheet out.png /data/train-000.tar
    """
    check_new_file(sheet)
    _check_ending(sheet)
    where = parse_url(url)
    if where.kind == "object" and not where.name:
        raise UsageError.at(
            f"{url} is a bucket, not a shard", todo=f"torchdata-ais ls {url} shows its shards"
        )
    members: list[_Member] = []
    first: list[Any] = []
    problem: AISError | None = None
    ended = True
    try:
        ended = _read(url, endpoint, members, first, _SHEET_SAMPLES if sheet else 0, count)
    except NotFoundError as error:
        hint = _what_is_there(where, url)
        raise (error.noting(hint) if hint else error) from None
    except AISError as error:
        problem = error
    if sheet is not None and first:
        _draw(sheet, first, url, endpoint)
    samples = list(_samples(members))
    if as_json:
        text = "" if problem is None else sentence(problem, names_of(inspect))
        whole = problem is None if ended else None
        echo_json({"url": url, "whole": whole, "error": text, "samples": samples})
    elif members or problem is None:
        state = "not sound; read so far" if problem else "whole" if ended else "the beginning"
        _show(url, members, samples, state, err=problem is not None)
    if problem is None:
        return
    if as_json and not debug:
        raise typer.Exit(ExitCodes.FAILED)
    raise problem


def _what_is_there(where: Location, url: str) -> str:
    """Return the sentence that names the command for what is there instead."""
    if where.kind == "object":
        return f"torchdata-ais ls {url} shows which names begin like this"
    if where.kind != "file":
        return ""
    folder = next(one for one in Path(where.name).absolute().parents if one.exists())
    return f"ls {shlex.quote(str(folder))} shows what is there"


def _read(url: str, endpoint: str, members: list[_Member], first: list[Any], keep: int, count: int) -> bool:
    """Note the members, keep the first samples; report if all was read."""
    from torchdata_ais.pipes import AISFileLoader, TarSampleGrouper
    from torchdata_ais.samples import split_name

    loader = AISFileLoader([url], cluster=options_of([url], endpoint))

    def noted() -> Generator[Any, None, None]:
        for path, data in loader:
            key, field = split_name(path.member) or (None, None)
            members.append(_Member(key, field, path.member, path.offset, len(data)))
            yield path, data

    with closing(noted()) as reading:
        for number, sample in enumerate(TarSampleGrouper(reading), 1):
            if len(first) < keep:
                first.append(sample)
            if number == count:
                return False
    return True


def _draw(path: Path, samples: list[Any], url: str, endpoint: str) -> None:
    """Write a contact sheet of samples of bytes, with the names of classes."""
    from PIL import Image

    from torchdata_ais._util.files import naming, whole_file
    from torchdata_ais.observe.display import contact_sheet
    from torchdata_ais.store import StoreOptions
    from torchdata_ais.writing.classes import names_for_people

    names = names_for_people(url, lambda: options_of([url], endpoint) or StoreOptions())
    picture = contact_sheet(samples, classes=names or None)
    with naming(str(path)), whole_file(path) as file:
        picture.save(file, Image.registered_extensions()[path.suffix.lower()])
    echo(f"wrote {path}: {count_text(len(samples), 'image')}", err=True)


def _check_ending(sheet: Path | None) -> None:
    from PIL import Image

    if sheet is not None and sheet.suffix.lower() not in Image.registered_extensions():
        raise UsageError.at(
            f"{sheet}: no kind of picture is called {sheet.suffix or 'so'}", todo="name it out.png or out.jpg"
        )


def _samples(members: Iterable[_Member]) -> Iterator[dict[str, Any]]:
    """Yield a row for each run of one key, or member without a key."""
    for (key, _), run in groupby(members, lambda one: (one.key, one.member if one.key is None else "")):
        fields = [
            {"field": one.field, "member": one.member, "offset": one.offset, "size": one.size} for one in run
        ]
        yield {"key": key, "offset": fields[0]["offset"], "fields": fields}


def _show(url: str, members: list[_Member], samples: list[dict[str, Any]], state: str, *, err: bool) -> None:
    keys = [shown_line(sample["key"]) if sample["key"] is not None else "(no key)" for sample in samples]
    width = max((len(key) for key in keys), default=0)
    for key, sample in zip(keys, samples, strict=True):
        fields = "  ".join(
            f"{part['field'] or part['member']} {bytes_text(part['size'])}" for part in sample["fields"]
        )
        echo(f"{key:<{width}}  @{sample['offset']:<10}  {fields}")
    count = sum(sample["key"] is not None for sample in samples)
    total = f"{count_text(count, 'sample')}, {count_text(len(members), 'member')}"
    echo(f"{url}: {state}: {total}, {bytes_text(sum(m.size for m in members))}", err=err)
