"""Encoding of samples to tar blocks, checked to be read back the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torchdata_ais.codecs import EncodeError, build_encoder
from torchdata_ais.codecs.encoder import EncoderSpec
from torchdata_ais.errors import DuplicateFieldError, MissingFieldError, UsageError
from torchdata_ais.errors.text import Remedy, in_programs
from torchdata_ais.samples import split_name
from torchdata_ais.tar import TarBuilder
from torchdata_ais.tar.writer import Buffer

logger = logging.getLogger("torchdata_ais")

_BY_READERS = frozenset({"__key__", "__url__", "__local_path__"})
"""Fields that readers add themselves: as members they would be doubled."""


class Packed(NamedTuple):
    """A sample as stored in the archive.

    Attributes:
        blocks: Headers, data and padding of its members.
        size, payload: Bytes of the blocks, and of the data alone.
        fields, sizes: Its fields, as readers will name them, and the bytes of each.
    """

    key: str
    blocks: list[Buffer]
    size: int
    payload: int
    fields: tuple[str, ...]
    sizes: tuple[int, ...]


class SamplePacker:
    """Encodes samples and lays out their members, sorted by field.

    Nothing is written here. Keys such as ``/data/x`` and ``../x`` are written as they are, as webdataset does; the
    first is logged as a warning. The arguments are those of `TarWriter`.
    """

    def __init__(
        self,
        *,
        encoder: EncoderSpec = True,
        keep_meta: bool = False,
        allow_pickle: bool = False,
        quality: int = 100,
        allow_nan: bool = False,
        user: str = "bigdata",
        group: str = "bigdata",
        mode: int = 0o0444,
        mtime: float | None = None,
    ) -> None:
        self._encode = build_encoder(encoder, allow_pickle=allow_pickle, quality=quality, allow_nan=allow_nan)
        self._keep_meta = keep_meta
        self._has_warned = False
        self._tar = TarBuilder(mtime=mtime or 0, mode=mode, user=user, group=group)

    def __call__(self, sample: Mapping[str, object]) -> Packed:
        """Return the members of a sample."""
        if not isinstance(sample, Mapping):
            raise UsageError.at(
                f"a {type(sample).__name__} is no sample",
                todo='write dicts such as {"__key__": "000", "jpg": data}',
            )
        _check_names(sample)
        encoded = self._encode(sample)  # type: ignore[arg-type]  # a dict nearly always
        _check_names(encoded)
        key = key_of(encoded)
        if not self._has_warned and (key.startswith("/") or ".." in key.split("/")):
            self._has_warned = True
            logger.warning(
                "the key %r leads out of the folder that somebody may unpack the shard in with tar; readers of shards"
                " take it as it is. Relative keys without .. are safer",
                key,
            )
        blocks: list[Buffer] = []
        fields: list[str] = []
        sizes: list[int] = []
        for name, field, data in self._members(key, encoded):
            blocks += self._tar.member(name, data)
            fields.append(field)
            sizes.append(len(data))
        if not blocks:
            raise MissingFieldError.at(
                f"the sample {key!r} has no field to write",
                todo=Remedy(in_programs("add one; fields that begin with _ need keep_meta=True")),
                key=key,
            )
        return Packed(key, blocks, sum(map(len, blocks)), sum(sizes), tuple(fields), tuple(sizes))

    def _members(
        self, key: str, sample: Mapping[str, object]
    ) -> Iterator[tuple[str, str, bytes | bytearray]]:
        seen: set[str] = set()
        for field in sorted(sample):
            if field in _BY_READERS or (field[:1] == "_" and not self._keep_meta):
                continue
            if field[:1] == ".":
                raise UsageError.at(
                    f"the field {field!r} of the sample {key!r} begins with a dot",
                    todo=f"write {field.lstrip('.') or 'txt'!r}: the dot between key and field is added",
                    key=key,
                    field=field,
                )
            name = f"{key}.{field}"
            lowered = field.lower()  # readers lower it
            if not field or "\n" in field or split_name(name) != (key, lowered):
                raise UsageError.at(
                    f"field {field!r} of sample {key!r} cannot be the end of a member's name",
                    todo="use a name without slash and line break, such as jpg or seg.png",
                    key=key,
                    field=field,
                )
            if lowered in seen:
                raise DuplicateFieldError.at(
                    f"the sample {key!r} has the field {lowered!r} twice: readers do not tell upper from lower case",
                    todo="rename one",
                    key=key,
                    field=field,
                )
            seen.add(lowered)
            yield name, lowered, _bytes(key, field, sample[field])


def key_of(sample: Mapping[str, object]) -> str:
    """Return the key of a sample, if readers will find the same one."""
    key = sample.get("__key__")
    if not isinstance(key, str):
        what = "has no __key__" if key is None else f"has a key of type {type(key).__name__}"
        raise UsageError.at(f"the sample {what}", todo='give it a str, such as "__key__": "000017"')
    try:
        key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError.at(
            f"the key {key!r} cannot be part of a name: {error.reason}",
            todo="give it real characters",
            key=key,
        ) from None
    # webdataset passes over names with a line break in silence.
    if split_name(key + ".x") != (key, "x") or key.endswith("/") or "\n" in key:
        last = key.rpartition("/")[2]
        what = "a dot in its last part ends the key there" if "." in last else "it is no key"
        raise UsageError.at(
            f"readers would not find the key {key!r} again: {what}",
            todo='use letters, digits, "_", "-" and, between folders, "/": key.replace(".", "_")',
            key=key,
        )
    return key


def _check_names(sample: Mapping[Any, object]) -> None:
    for field in sample:
        if not isinstance(field, str):
            key = sample.get("__key__")
            raise UsageError.at(f"sample {key!r} has a field {field!r}", todo="name fields by str", key=key)


def _bytes(key: str, field: str, value: object) -> bytes | bytearray:
    if isinstance(value, bytes | bytearray):
        return value
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, str) and field[0] == "_":
        try:
            return value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise EncodeError.at(
                f"field {field!r} of sample {key!r} is no text: {error.reason}",
                todo="give it real characters",
                key=key,
                field=field,
            ) from None
    takes = "str or bytes" if field[0] == "_" else "bytes, or what the encoder turns into bytes"
    raise EncodeError.at(
        f"field {field!r} of sample {key!r} is {type(value).__name__}; a shard takes {takes}",
        todo="encode it before",
        key=key,
        field=field,
    )
