"""Samples, and WebDataset's rule for their keys and fields.

The rule (as webdataset 1.0.2 applies it): the *key* of a member is its path up to the first dot of the last
component, the *field* is the rest, lower-cased. ``train/cat.seg.PNG`` is field ``seg.png`` of the sample
``train/cat``. A sample is a run of consecutive members with one key. Members without a key (``README``,
``.hidden``, ``__meta__``) belong to no sample.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from torchdata_ais._util.formatting import value_text
from torchdata_ais.errors.text import short_name

SHARD_SHIFT = 40
"""Bits of a place below those of its shard."""

_KEY = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)\Z", re.DOTALL)
_META = re.compile(r"__[^/]*__(?:/|\Z)")

_SHOWN_FIELDS = 20
_WIDEST = 30

_SHOWN_BY = "torchdata_ais.observe.display.shards:sample_html"
"""Module that displays samples in notebooks.

It is of a higher layer, so it is imported on use.
"""


class NoFieldError(KeyError):
    """A sample lacks the requested field; the message lists its fields."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


Fields = dict[str, Any]
"""The fields of a sample by name, ``__key__`` among them."""


class Sample(Fields):
    """One sample, a dict of fields in the shard's order.

    Its form is ``{"__key__": str, "__url__": str, field: value, ...}``.

    Attributes:
        place: Its place in the data set, as one integer (`pack_place`); -1 if it does not come from `load_tar`.
            Checkpoints identify the samples that they hold by it.

    Example:
        >>> sample = Sample({"__key__": "a"}, place=pack_place(shard=3, offset=1024))
        >>> sample.shard, sample.offset
        (3, 1024)
    """

    __slots__ = ("place",)

    place: int

    def __init__(self, *args: object, place: int = -1) -> None:
        super().__init__(*args)
        self.place = place

    @property
    def shard(self) -> int:
        """Position of its shard in the epoch's order before the split; or -1.

        The split is that over ranks and workers.
        """
        return unpack_place(self.place)[0]

    @property
    def offset(self) -> int:
        """Offset of its first header in the (decompressed) shard; or -1."""
        return unpack_place(self.place)[1]

    @property
    def where(self) -> str:
        """Its key, shard and byte, as far as they are known.

        Example:
            >>> Sample({"__key__": "a", "__url__": "ais://b/s.tar"}, place=pack_place(0, 512)).where
            "sample 'a', byte 512 of ais://b/s.tar"
        """
        key = f"sample {self['__key__']!r}" if "__key__" in self else "sample"
        if "__url__" not in self:
            return key
        url = self._shown_url
        return f"{key}, {'' if self.place < 0 else f'byte {self.offset} of '}{url}"

    def __missing__(self, name: object) -> Any:
        raise NoFieldError(f"the {self._called} has no field {name!r}, only {shown_fields(self)}")

    if not TYPE_CHECKING:  # checkers know that there is none

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(
                f'{text}. A sample is a dict: write sample["{name}"]' if name in self else text
            )

    @property
    def _shown_url(self) -> object:
        url = self["__url__"]
        return short_name(url) if isinstance(url, str) else url

    @property
    def _called(self) -> str:
        key = self.get("__key__")
        return "sample" if key is None else f"sample {key!r:.200}"

    def __repr__(self) -> str:
        named = self if "__url__" not in self else {**self, "__url__": self._shown_url}
        shown = (
            f"{name!r}: {value!r}" if name[:2] == "__" else f"{name!r}: {value_text(value)}"
            for name, value in named.items()
        )
        return f"{{{', '.join(shown)}}}"

    def __str__(self) -> str:
        fields = [name for name in self if name[:2] != "__"]
        width = min(_WIDEST, max(map(len, fields), default=0))
        return "\n".join([self.where, *(f"  {name:{width}}  {value_text(self[name])}" for name in fields)])

    def _repr_html_(self) -> str:
        return str(resolve_name(_SHOWN_BY)(self))

    def __copy__(self) -> Sample:
        return self.renewed(self)

    def renewed(self, fields: Fields) -> Sample:
        """Return a sample with other fields and the same place."""
        made = Sample.__new__(Sample)  # __init__ takes twice as long
        made.update(fields)
        made.place = self.place
        return made

    def __reduce__(self) -> tuple[Any, tuple[Fields, int]]:
        return _sample, (dict(self), self.place)


def _sample(fields: Fields, place: int) -> Sample:
    return Sample(fields, place=place)


class PlannedSample(Sample):
    """A sample that was read by index.

    Attributes:
        source: The number of its index in the mixture; 0 without one.
        draw: How many samples of that index were drawn before it, over the whole run.

    Example:
        >>> sample = PlannedSample({"__key__": "a"}, source=1, draw=7)
        >>> sample.renewed({"x": 3}).draw
        7
    """

    __slots__ = ("draw", "source")

    source: int
    draw: int

    def __init__(self, *args: object, place: int = -1, source: int = 0, draw: int = 0) -> None:
        super().__init__(*args, place=place)
        self.source = source
        self.draw = draw

    @override
    def renewed(self, fields: Fields) -> PlannedSample:
        return PlannedSample(fields, place=self.place, source=self.source, draw=self.draw)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _planned_sample, (dict(self), self.place, self.source, self.draw)


def _planned_sample(fields: Fields, place: int, source: int, draw: int) -> PlannedSample:
    return PlannedSample(fields, place=place, source=source, draw=draw)


def pack_place(shard: int, offset: int) -> int:
    """Return one 63-bit integer for a place.

    It has 23 bits of shard, and 40 bits of offset in blocks of 512 bytes.

    Headers are at multiples of 512, so it is enough for 8 million shards of 512 TiB.
    """
    return -1 if shard < 0 or offset < 0 else (shard << SHARD_SHIFT) | (offset >> 9)


def unpack_place(place: int) -> tuple[int, int]:
    """Return ``(shard, offset)`` of a packed place; ``(-1, -1)`` for -1."""
    return (-1, -1) if place < 0 else (place >> SHARD_SHIFT, (place & 0xFF_FFFF_FFFF) << 9)


def split_name(name: str) -> tuple[str, str] | None:
    """Return key and field of a member name; None if it has no sample.

    Example:
        >>> split_name("d.x/cat.seg.PNG")
        ('d.x/cat', 'seg.png')
        >>> split_name("README"), split_name(".hidden"), split_name("__index__/a.json")
        (None, None, None)
    """
    key, dot, field = name.partition(".")
    if "/" in field:  # the dot is in the name of a folder
        start = name.rfind("/") + 1
        key, dot, field = name[start:].partition(".")
        key = name[:start] + key
    if key and key[-1] != "/" and dot and not name.startswith("__"):
        return key, field.lower()
    if not dot or _META.match(name):
        return None
    # Rare names (dot files in folders, leading underscores): the letter of the rule decides.
    found = _KEY.match(name)
    return (found[1], found[2].lower()) if found else None


def shown_fields(sample: Iterable[str]) -> str:
    """Return the fields of a sample for a message: sorted, the first 20.

    Example:
        >>> shown_fields({"__key__": "a", "jpg": b"", "cls": b""})
        "['cls', 'jpg']"
    """
    fields = sorted(field for field in sample if not field.startswith("__"))
    if len(fields) <= _SHOWN_FIELDS:
        return str(fields)
    return f"{fields[:_SHOWN_FIELDS]} and {len(fields) - _SHOWN_FIELDS} more"


def dots_in_names(fields: Iterable[str]) -> str:
    """Return what dots in file names may have merged; "" if nothing.

    A key ends at the first dot of a name, so that ``22.00.png`` and ``22.01.png`` are one sample. Fields that begin
    with a digit and have another dot are a sign of that.

    Example:
        >>> dots_in_names(["00.png", "01.png", "cls"])[:40]
        'the fields 00.png, 01.png begin with dig'
        >>> dots_in_names(["left.png", "cls"])
        ''
    """
    found = sorted(field for field in fields if field[:1].isdigit() and "." in field)
    if not found:
        return ""
    shown = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
    number, _, rest = found[0].partition(".")
    return (
        f"the fields {shown} begin with digits: if they are samples of their own, write the shards with other names, "
        f"without dots before the ending (22-{number}.{rest}, not 22.{number}.{rest})"
    )


def is_apple_double(name: str) -> bool:
    """Return whether a member is macOS metadata (``._cat.jpg``), never data."""
    return name.startswith("._", name.rfind("/") + 1)
