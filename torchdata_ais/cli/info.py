"""``torchdata-ais info``: contents of a data set."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchdata_ais._util.formatting import bytes_text, count_text, html_page, html_table, html_text
from torchdata_ais.cli._output import echo, echo_json, shown_line
from torchdata_ais.cli._run import AsJson, Endpoint, command, options_of
from torchdata_ais.errors import AISError, NotFoundError, SampleError, SampleIndexError, ShardError
from torchdata_ais.samples import dots_in_names

if TYPE_CHECKING:
    from torchdata_ais.index import IndexedSamples, SampleReference
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
    """Show samples, fields, classes and picture sizes of a data set.

    Fields have their bytes. All samples are counted from the index where there is one (torchdata-ais index makes it),
    and some of them are read for classes and pictures. Without an index all shards are read.

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
    from torchdata_ais._util.files import naming, whole_file
    from torchdata_ais.cli._output import check_new_file
    from torchdata_ais.store import StoreOptions
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
        count = min(len(index), look)
        evenly = [number * len(index) // count for number in range(count)]
        summary.look_into(index.take(evenly), options)
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
    """Report whether the listing has other shards than the index."""
    from torchdata_ais.index.build.by_reading import listed_shards
    from torchdata_ais.urls import parse_url

    now = {(parse_url(one).uri, one.size, one.checksum) for one in listed_shards(url, options)}
    rows = (
        (part.shard(number) for part, number, _ in index.selected()) if index.is_selection else index.shards
    )
    return now != {(row.name, row.size, row.checksum) for row in rows}


def _read(url: str, options: StoreOptions, summary: Summary) -> None:
    """Read all shards, as training would."""
    from torchdata_ais.cli._output import progress
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


_CLASS = "cls"
_WINDOW_BYTES = 8 << 20
_LONGEST = 40  # letters of a class; a longer text is not one


@dataclass
class FieldSummary:
    """Values of one field: number, and total, least and most bytes."""

    samples: int = 0
    bytes: int = 0
    least: int = 0
    most: int = 0

    def add(self, samples: int, total: int, least: int, most: int) -> None:
        """Count some more values."""
        self.least = min(self.least, least) if self.samples else least
        self.most = max(self.most, most)
        self.samples += samples
        self.bytes += total


@dataclass
class Summary:
    """Summary of a data set.

    Attributes:
        looked: Number of samples looked into, for the next attributes.
        classes: How many of these are of each class, by the field ``cls``.
        pictures: How many pictures there are of each width and height.
        broken: How many pictures could not be opened.
        names: The names of the classes, by number, where they are stored with the shards.
    """

    shards: int = 0
    samples: int = 0
    fields: dict[str, FieldSummary] = field(default_factory=lambda: defaultdict(FieldSummary))
    looked: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    pictures: Counter[tuple[int, int]] = field(default_factory=Counter)
    broken: int = 0
    names: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Bytes of all fields."""
        return sum(one.bytes for one in self.fields.values())

    def count(self, sample: Mapping[str, object]) -> None:
        """Count a sample by its bytes."""
        self.samples += 1
        for name, value in fields_of(sample).items():
            self.fields[name].add(1, len(value), len(value), len(value))

    def count_index(self, index: IndexedSamples) -> None:
        """Count all samples of an index; no shard is read."""
        import pyarrow as pa
        import pyarrow.compute as pc

        self.samples += len(index)
        shards = index.selected() if index.is_selection else index.shards
        self.shards += sum(1 for _ in shards)
        what = [("size", how) for how in ("count", "sum", "min", "max")]
        for batch in index.batches():
            names, sizes = (pc.list_flatten(batch.column(name)) for name in ("fields", "sizes"))
            table = pa.table({"field": names, "size": sizes}).group_by("field").aggregate(what)
            for row in table.to_pylist():
                self.fields[row["field"]].add(*(row[f"size_{how}"] for _, how in what))

    def look(self, sample: Mapping[str, object]) -> None:
        """Take classes and sizes of pictures from a sample."""
        from PIL import Image

        from torchdata_ais.codecs import IMAGE_EXTENSIONS

        self.looked += 1
        for name, value in fields_of(sample).items():
            if name == _CLASS and len(value) <= _LONGEST:
                self.classes[value.decode("utf-8", "backslashreplace").strip()] += 1
            elif name.rpartition(".")[2].lower() in IMAGE_EXTENSIONS:
                try:
                    with Image.open(io.BytesIO(value)) as picture:
                        self.pictures[picture.size] += 1
                except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
                    self.broken += 1

    def look_into(self, references: Iterable[SampleReference], options: StoreOptions) -> None:
        """Read some samples of an index, as training would, and look at them."""
        from torchdata_ais.reading.by_index import IndexedReader
        from torchdata_ais.reading.requests import Wanted
        from torchdata_ais.reading.runs import sample_of

        reader = IndexedReader([options], _WINDOW_BYTES)
        for wanted, run in reader.read([[Wanted(reference) for reference in references]]):
            if isinstance(run, AISError):
                raise run
            self.look(sample_of(run, wanted.reference.shard.name))

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return {
            "shards": self.shards,
            "samples": self.samples,
            "bytes": self.bytes,
            "fields": {name: vars(one) for name, one in sorted(self.fields.items())},
            "looked": self.looked,
            "classes": dict(self.by_class()),
            "class_names": self.names,
            "pictures": [
                {"width": width, "height": height, "count": count}
                for (width, height), count in sorted(self.pictures.items())
            ],
            "broken": self.broken,
            "notes": [note] if (note := dots_in_names(self.fields)) else [],
        }

    def lines(self) -> list[str]:
        """Return all of it for people, but for the first line."""
        width = max((len(name) for name in self.fields), default=0)
        lines = [
            f"  {name:<{width}}  {one.samples:>10} samples  {bytes_text(one.bytes):>9}"
            f"  {bytes_text(one.bytes // max(1, one.samples)):>9} each"
            f"  ({bytes_text(one.least)} to {bytes_text(one.most)})"
            for name, one in sorted(self.fields.items())
        ]
        some = "" if self.looked == self.samples else f", of {self.looked} samples"
        if self.pictures:
            widths, heights = ([size[side] for size in self.pictures.elements()] for side in (0, 1))
            common, count = self.pictures.most_common(1)[0]
            lines.append(
                f"pictures: {min(widths)} to {max(widths)} wide, {min(heights)} to {max(heights)} high,"
                f" most often {common[0]} x {common[1]} ({count} of {len(widths)}){some}"
            )
        if merged := dots_in_names(self.fields):
            lines.append(f"note: {merged}")
        if self.broken:
            lines.append(f"error: {self.broken} of them cannot be opened: torchdata-ais lint names them")
        if self.classes:
            shown = self.by_class()
            listed = ", ".join(f"{self.named(name)} {count}" for name, count in shown[:_SHOWN])
            more = f", and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
            lines.append(f"classes: {len(shown)}: {listed}{more}{some}")
        return lines

    def by_class(self) -> list[tuple[str, int]]:
        """Return the classes by number, with their samples among those looked at."""
        return sorted(
            self.classes.items(), key=lambda one: (int(one[0]) if one[0].isdecimal() else 1 << 62, one[0])
        )

    def named(self, number: str) -> str:
        """Return the name of a class, or its number where it has none."""
        known = number.isdecimal() and int(number) < len(self.names)
        return self.names[int(number)] if known else number


_SHOWN = 20  # classes


def fields_of(sample: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the fields of a sample of bytes, without those of its origin."""
    return {name: value for name, value in sample.items() if not name.startswith("__")}


_WIDTH, _ROW, _LABEL = 760, 22, 220
_BARS = 50
_LONGEST_TEXT = 26
_SIDE = 360


def page_of(url: str, source: str, summary: Summary) -> str:
    """Return the page with the plots."""
    some = "" if summary.looked == summary.samples else f", of {count_text(summary.looked, 'sample')}"
    held = f"{count_text(summary.samples, 'sample')} in {count_text(summary.shards, 'shard')}"
    total = f"{held}, {bytes_text(summary.bytes)} ({source})"
    parts = [f"<h1>{_text(url)}</h1><p>{_text(total)}</p>", _fields(summary)]
    if summary.classes:
        named = [(summary.named(number), count) for number, count in summary.by_class()]
        parts.append(f"<h2>Samples of {len(named)} classes{some}</h2>{_bars(named)}")
    if summary.pictures:
        parts.append(
            f"<h2>Sizes of {count_text(sum(summary.pictures.values()), 'picture')}{some}</h2>{_sizes(summary)}"
        )
    if summary.broken:
        parts.append(f"<p>{summary.broken} of them cannot be opened: torchdata-ais lint names them.</p>")
    return html_page(url, parts)


def _fields(summary: Summary) -> str:
    rows = []
    for name, one in sorted(summary.fields.items()):
        sizes = (one.bytes, one.bytes // max(1, one.samples), one.least, one.most)
        rows.append([shown_line(name), str(one.samples), *map(bytes_text, sizes)])
    table = html_table(("field", "samples", "bytes", "mean", "least", "most"), rows)
    largest = sorted(((name, one.bytes) for name, one in summary.fields.items()), key=lambda one: -one[1])
    bars = _bars(largest, is_size=True)
    return f'<h2>Fields</h2><div class="wide">{table}</div><h2>Bytes of each field</h2>{bars}'


def _bars(values: Sequence[tuple[str, int]], *, is_size: bool = False) -> str:
    """Return horizontal bars, each with its name and its number."""
    shown = values[:_BARS]
    most = max((value for _, value in shown), default=0) or 1
    room = _WIDTH - _LABEL - 90
    rows = []
    for number, (name, value) in enumerate(shown):
        y = number * _ROW
        width = room * value / most
        told = bytes_text(value) if is_size else str(value)
        short = name if len(name) <= _LONGEST_TEXT else f"{name[: _LONGEST_TEXT - 1]}…"
        rows.append(
            f'<text x="{_LABEL - 8}" y="{y + 15}" text-anchor="end">{_text(short)}<title>{_text(name)}</title></text>'
            f'<rect class="bar" x="{_LABEL}" y="{y + 3}" width="{width:.1f}" height="{_ROW - 7}"/>'
            f'<text x="{_LABEL + width + 6:.1f}" y="{y + 15}">{told}</text>'
        )
    more = f"<p>and {len(values) - _BARS} more</p>" if len(values) > _BARS else ""
    plot = f'<svg viewBox="0 0 {_WIDTH} {len(shown) * _ROW + 4}" role="img">{"".join(rows)}</svg>'
    return f'<div class="wide">{plot}</div>{more}'


def _sizes(summary: Summary) -> str:
    """Return width against height, a larger circle for more pictures."""
    most = max(max(size) for size in summary.pictures)
    common = max(summary.pictures.values())
    left, span = 50, _SIDE - 70
    circles = "".join(
        f'<circle class="dot" cx="{left + span * width / most:.1f}" cy="{_SIDE - 40 - span * height / most:.1f}"'
        f' r="{3 + 9 * (count / common) ** 0.5:.1f}"><title>{width} x {height}: {count}</title></circle>'
        for (width, height), count in summary.pictures.most_common(2000)
    )
    bottom = _SIDE - 40
    return (
        f'<svg viewBox="0 0 {_SIDE} {_SIDE}" width="{_SIDE}" class="small" role="img">'
        f'<path class="axis" fill="none" d="M{left} {bottom - span} V{bottom} H{left + span}"/>{circles}'
        f'<text x="{left + span}" y="{bottom + 16}" text-anchor="end">{most} pixels wide</text>'
        f'<text x="{left + 6}" y="{bottom - span + 4}" text-anchor="start">{most} pixels high</text>'
        "</svg>"
    )


def _text(text: str) -> str:
    return html_text(shown_line(text))
