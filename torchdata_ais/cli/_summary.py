"""What a data set holds, summed up: out of its index, and by looking into some or all samples."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchdata_ais.errors import AISError

if TYPE_CHECKING:
    from torchdata_ais.index import IndexedSamples, SampleReference
    from torchdata_ais.store import StoreOptions

_PICTURES = frozenset(["jpg", "jpeg", "png", "webp", "ppm", "pgm", "bmp", "gif", "tif", "tiff"])
_CLASS = "cls"
_WINDOW_BYTES = 8 << 20
_LONGEST = 40  # letters of a class; what is longer is none


@dataclass
class FieldSummary:
    """The values of one field: how many, and how many bytes in all, at least and at most."""

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
    """A data set.

    Attributes:
        shards: How many shards it has.
        samples: How many samples.
        fields: What is known of each field.
        looked: How many samples were looked into, for what follows.
        classes: How many of these are of each class, by the field ``cls``.
        pictures: How many pictures there are of each width and height.
        broken: How many pictures could not be opened.
        names: The names of the classes, by number, where they lie beside the shards.
    """

    shards: int = 0
    samples: int = 0
    fields: dict[str, FieldSummary] = field(default_factory=dict)
    looked: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    pictures: Counter[tuple[int, int]] = field(default_factory=Counter)
    broken: int = 0
    names: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Bytes of all fields."""
        return sum(one.bytes for one in self.fields.values())

    def count(self, sample: Mapping[str, Any]) -> None:
        """Count a sample by its bytes."""
        self.samples += 1
        for name, value in fields_of(sample).items():
            self._field(name).add(1, len(value), len(value), len(value))

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
                self._field(row["field"]).add(*(row[f"size_{how}"] for _, how in what))

    def look(self, sample: Mapping[str, Any]) -> None:
        """Take classes and sizes of pictures from a sample."""
        from PIL import Image

        self.looked += 1
        for name, value in fields_of(sample).items():
            if name == _CLASS and len(value) <= _LONGEST:
                self.classes[value.decode("utf-8", "backslashreplace").strip()] += 1
            elif name.rpartition(".")[2].lower() in _PICTURES:
                try:
                    with Image.open(io.BytesIO(value)) as picture:
                        self.pictures[picture.size] += 1
                except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
                    self.broken += 1

    def look_into(self, references: Iterable[SampleReference], options: StoreOptions) -> None:
        """Read some samples of an index, as training would, and look at them."""
        from torchdata_ais.reading.by_index import IndexedReader
        from torchdata_ais.reading.requests import Wanted
        from torchdata_ais.reading.samples import sample_of

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
        }

    def lines(self) -> list[str]:
        """Return all of it for people, but for the first line."""
        from torchdata_ais.shown import bytes_text

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
        if self.broken:
            lines.append(f"error: {self.broken} of them cannot be opened: torchdata-ais lint names them")
        if self.classes:
            shown = self.by_class()
            listed = ", ".join(f"{self.named(name)} {count}" for name, count in shown[:_SHOWN])
            more = f", and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
            lines.append(f"classes: {len(shown)}: {listed}{more}{some}")
        return lines

    def by_class(self) -> list[tuple[str, int]]:
        """Return the classes by number, with how many samples of those looked into they have."""
        return sorted(self.classes.items(), key=_by_number)

    def named(self, number: str) -> str:
        """Return the name of a class, or its number where it has none."""
        known = number.isdecimal() and int(number) < len(self.names)
        return self.names[int(number)] if known else number

    def _field(self, name: str) -> FieldSummary:
        return self.fields.setdefault(name, FieldSummary())


_SHOWN = 20  # classes


def _by_number(item: tuple[str, int]) -> tuple[int, str]:
    return (int(item[0]) if item[0].isdecimal() else 1 << 62, item[0])


def fields_of(sample: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the fields of a sample of bytes, without what tells where it came from."""
    return {name: value for name, value in sample.items() if not name.startswith("__")}
