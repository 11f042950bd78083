"""Format of a stored index.

A stored index is a folder of Arrow IPC files, which polars, duckdb and pandas open. ``shards.arrow``, written last,
has a row for each shard. Its schema's metadata contains the head, which names all other files by their content.
``samples-*`` has a record batch for each shard, ``counts-*`` the number of samples of each shard, ``fields-*`` the
combinations of fields.

The head is at the beginning of ``shards.arrow`` as plain text, and every block is compared with its XXH64 before
pyarrow sees it: damaged Arrow data may end the process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from torchdata_ais.errors import SampleIndexError
from torchdata_ais.errors.text import Remedy, in_commands, in_programs
from torchdata_ais.plan.permutation import Integers
from torchdata_ais.urls import index_file_fault, shown_name

TABLE = "shards.arrow"
UNFINISHED = "unfinished.arrow"  # the same, of an unfinished build
PAGE_ROWS = 4096  # shards in a record batch of the table of shards
FORMAT = "torchdata_ais.index"
_KEY = b"torchdata_ais.index"  # of the head, in the metadata of the schema
_BEGINS = f'{{"format":"{FORMAT}"'.encode()
_NONE = "0" * 16
_DIGEST = re.compile(r"[0-9a-f]{16}")
VERSION = 1
MOST = 1 << 62  # bytes, samples or shards: sums of two of them are 64-bit integers
MOST_BLOCK = 1 << 31  # bytes of a record batch
_MOST_COLUMNS = 256
_MOST_BEFORE = 1 << 20
_MOST_FRAME = 64 << 10  # bytes of a record batch without its values
_MOST_HEAD = 64 << 20  # bytes: of 4 thousand million shards

SHARDS = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("size", pa.int64()),
        pa.field("checksum", pa.string()),
        pa.field("version", pa.string()),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("content", pa.uint64(), nullable=False),  # XXH64 of keys and sizes, however they were found
        pa.field("proven", pa.bool_(), nullable=False),  # whether each sample has its XXH64
        pa.field("part", pa.int32(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),  # of its record batch, in bytes of the part
        pa.field("length", pa.int64(), nullable=False),
        pa.field("xxh64", pa.uint64(), nullable=False),  # of these bytes
    ]
)
SAMPLES = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),  # of the first header, in bytes of the shard
        pa.field("size", pa.int64(), nullable=False),  # to the header after the sample
        pa.field("fields", pa.int32(), nullable=False),  # row in the table of fields
        pa.field("sizes", pa.list_(pa.int64()), nullable=False),  # bytes of each field
        pa.field("xxh64", pa.uint64()),  # of the bytes from start to start + size
    ]
)
FIELDS = pa.schema([pa.field("fields", pa.list_(pa.string()), nullable=False)])


def is_utf8(name: str) -> bool:
    """Return whether Arrow can store a name: not with a lone surrogate."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def samples_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of samples with added columns; unknown is null."""
    return pa.schema([*SAMPLES, *(pa.field(name, pa.int64()) for name in columns)])


COUNTS = pa.schema([pa.field("count", pa.int64(), nullable=False)])


class Block(msgspec.Struct, frozen=True, array_like=True):
    """A range of bytes in a file, and their XXH64 in hexadecimal digits."""

    file: str
    start: int
    length: int
    xxh64: str


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of ``shards.arrow``."""

    format: str = FORMAT
    version: int = VERSION
    samples: int
    shards: int
    proof: str
    digest: str
    counts: Block
    fields: Block
    pages: list[tuple[int, str]]
    """Length and XXH64 of each record batch of the shard table, in order."""
    parts: list[str]
    """The files of samples."""
    source: str = ""
    selection: bool = False
    """True if the index leaves out samples of its shards."""
    columns: list[str] = []
    """Names of the columns of samples that a program has added."""
    before: list[str] = []
    """The files of the previous index in this place."""
    whole: str = _NONE
    """XXH64 of ``shards.arrow``, computed with zeros in this field."""
    xxh64: str = _NONE
    """XXH64 of the head without this and `whole`."""

    @property
    def files(self) -> list[str]:
        """Its files, except the table of shards."""
        return [*self.parts, self.counts.file, self.fields.file]

    def to_json(self) -> str:
        """Return the head as JSON, its own checksum included."""
        plain = msgspec.to_builtins(self)
        plain["xxh64"] = _sum_of(plain)
        return json.dumps(plain, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, where: str) -> Head:
        """Return the head that `text` begins with, or raise `SampleIndexError`."""
        try:
            plain = json.JSONDecoder().raw_decode(text)[0]
            version, said = plain["version"], plain["xxh64"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise damaged("its head is not readable", where) from None
        if version != VERSION:
            raise SampleIndexError.at(
                f"{where}: the index has version {version!r}, this package reads version {VERSION}",
                todo="build it again: torchdata-ais index",
                url=where,
            )
        if said != _sum_of(plain):
            raise damaged("its head does not have its checksum", where)
        try:
            head = msgspec.convert(plain, cls)
        except msgspec.ValidationError as error:
            raise damaged(f"its head is wrong ({error})", where) from None
        head._check_numbers(where)
        head._check_files(where)
        return head

    def _check_numbers(self, where: str) -> None:
        """Refuse numbers that cannot be right, before memory is taken for them."""
        lengths = [length for length, _ in self.pages]
        numbers = [self.samples, self.shards, self.counts.start, self.fields.start, *lengths]
        columns = set(self.columns)
        wrong = {
            "a number that is negative or too large": not all(0 <= number <= MOST for number in numbers),
            "a proof that is not known": self.proof not in ("bytes", "headers"),
            f"{len(lengths)} pages for {self.shards} shards": len(lengths) != -(-self.shards // PAGE_ROWS),
            f"{len(self.parts)} parts for {self.shards} shards": len(self.parts) > self.shards,
            "too many files of the index before": len(self.before) > _MOST_BEFORE,
            "columns that cannot be": len(columns) != len(self.columns)
            or len(columns) > _MOST_COLUMNS
            or not columns.isdisjoint(["", *SAMPLES.names])
            or not all(map(is_utf8, columns)),
            f"{self.counts.length} bytes of counts": not 0
            <= self.counts.length
            <= 8 * self.shards + _MOST_FRAME,
            f"{self.fields.length} bytes of fields": not 0 <= self.fields.length <= _MOST_HEAD,
        }
        for what, is_wrong in wrong.items():
            if is_wrong:
                raise damaged(f"its head has {what}", where)

    def _check_files(self, where: str) -> None:
        """Refuse names that no writer makes.

        They become paths and URLs, and the files in `before` are removed.
        """
        named = [
            (self.counts.file, "counts"),
            (self.fields.file, "fields"),
            *((name, "samples") for name in self.parts),
            *((name, "") for name in self.before),
        ]
        for name, kind in named:
            if why := index_file_fault(name, kind):
                raise damaged(f"its head names {shown_name(name)}: {why}", where)
        digests = (
            self.digest,
            self.whole,
            self.counts.xxh64,
            self.fields.xxh64,
            *(sum_ for _, sum_ in self.pages),
        )
        if not all(map(_DIGEST.fullmatch, digests)):  # copies and tables of partners are named by them
            raise damaged("its head has a digest that is not 16 hexadecimal digits", where)


def _sum_of(plain: dict[str, object]) -> str:
    rest = {key: value for key, value in plain.items() if key not in ("xxh64", "whole")}
    return xxhash.xxh64_hexdigest(json.dumps(rest, sort_keys=True).encode())


def damaged(what: str, where: str) -> SampleIndexError:
    """Return the error for an index that is not as it was written."""
    return SampleIndexError.at(
        f"{where}: the index is damaged: {what}",
        todo="open it again, as it may have been written anew meanwhile; else build it again: torchdata-ais index",
        url=where,
    )


def foreign_shard(name: object, why: str, where: str) -> SampleIndexError:
    """Return the error for an index that names a shard which it may not name."""
    return SampleIndexError.at(
        f"{where}: the index names {shown_name(name)} as a shard: {why}",
        todo=Remedy(
            "build it again: torchdata-ais index",
            in_programs("if its author may choose the shards, SampleIndex.open(..., shards_from=...)"),
            in_commands("if its author may choose the shards, name their place by shards_from="),
        ),
        url=where,
    )


def block_of(file: str, start: int, data: bytes | memoryview) -> Block:
    """Return the block of `data`, which begins at byte `start` of `file`."""
    return Block(file, start, len(data), xxhash.xxh64_hexdigest(data))


def checked(data: bytes, block: Block, where: str) -> bytes:
    """Return `data` if it matches `block`, or raise `SampleIndexError`."""
    if len(data) != block.length:
        raise damaged(f"{block.file} has {len(data)} of {block.length} bytes at byte {block.start}", where)
    if xxhash.xxh64_hexdigest(data) != block.xxh64:
        raise damaged(
            f"the bytes {block.start} to {block.start + block.length} of {block.file} changed", where
        )
    return data


def read_batch(data: bytes, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """Return the record batch of one block, whose checksum its author chose.

    Raises:
        SampleIndexError: It is not a record batch of this schema, or its offsets lead out of it.
    """
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, MemoryError, OverflowError) as error:
        raise damaged(
            f"a record batch cannot be read ({type(error).__name__}: {error!s:.200})", where
        ) from None
    for field, column in zip(schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise damaged(f"the column {field.name} lacks values", where)
    return batch


def as_numpy(column: pa.Array) -> npt.NDArray[Any]:
    """Return the numbers of an Arrow column without nulls, uncopied.

    `pyarrow.Array.to_numpy` imports pandas where it is installed, which takes most of a second.

    Example:
        >>> as_numpy(pa.array([3, 4])).tolist()
        [3, 4]
    """
    return np.from_dlpack(column)


def as_arrow(numbers: Integers) -> pa.Array:
    """Return an Arrow column of int64, without the import of pandas.

    Example:
        >>> as_arrow(np.arange(2)).to_pylist()
        [0, 1]
    """
    values = np.ascontiguousarray(numbers, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def as_scalar(text: str) -> pa.Scalar:
    """Return an Arrow scalar, without the import of pandas.

    Example:
        >>> as_scalar("cat").as_py()
        'cat'
    """
    data = text.encode("utf-8", "surrogateescape")
    ends = np.array([0, len(data)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])[0]


def stacked(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> tuple[bytes, list[tuple[int, int]]]:
    """Return an Arrow IPC file of `batches`, and the offset of each."""
    sink = pa.BufferOutputStream()
    places: list[tuple[int, int]] = []
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            size = pa.ipc.get_record_batch_size(batch)
            places.append((sink.tell() - size, size))
    return sink.getvalue().to_pybytes(), places


def named_by_content(kind: str, data: bytes, written: str = "0") -> str:
    """Return the name of a file that holds `data`.

    `written` identifies the writing process. Removal of the files of an older index must not affect a new one with the
    same contents.
    """
    return f"{kind}-{xxhash.xxh64_hexdigest(data)}-{written}.arrow"


def digest_in(name: str) -> str:
    """Return the XXH64 of the contents that the name of a file has.

    Example:
        >>> digest_in(named_by_content("counts", b"abc")) == xxhash.xxh64_hexdigest(b"abc")
        True
    """
    return [*name.removesuffix(".arrow").split("-"), ""][1]


def table_file(head: Head, pages: Sequence[pa.RecordBatch]) -> bytes:
    """Return ``shards.arrow``: pages of shards, and `head` with their sums."""
    data, places = stacked(pages, SHARDS)
    head = msgspec.structs.replace(
        head,
        pages=[(size, xxhash.xxh64_hexdigest(data[start : start + size])) for start, size in places],
    )
    data, _ = stacked(pages, SHARDS.with_metadata({_KEY: head.to_json()}))
    return _with_whole(data, _NONE, whole_of(data, _NONE))


def whole_of(data: bytes, whole: str) -> str:
    """Return XXH64 of ``shards.arrow`` with zeros in place of `whole`."""
    return xxhash.xxh64_hexdigest(_with_whole(data, whole, _NONE))


def _with_whole(data: bytes, old: str, new: str) -> bytes:
    return data.replace(f'"whole":"{old}"'.encode(), f'"whole":"{new}"'.encode())


def head_in(data: bytes, where: str) -> tuple[Head | None, int]:
    """Return the head of the table of shards, and the first page's offset.

    The head is None if `data`, the beginning of ``shards.arrow``, must reach to that offset.

    Raises:
        SampleIndexError: This is not an index, or has changed after it was written.
    """
    if len(data) < 16 or data[:6] != b"ARROW1" or data[8:12] != b"\xff\xff\xff\xff":
        raise damaged(f"{TABLE} does not begin as an Arrow file", where)
    begin = 16 + int.from_bytes(data[12:16], "little")
    if begin > _MOST_HEAD:
        raise damaged(f"the schema in {TABLE} says that it has {begin} bytes", where)
    if len(data) < begin:
        return None, begin
    text = data[16:begin]
    at = text.find(_BEGINS)
    if at < 0:
        raise damaged(f"{TABLE} has no head of an index", where)
    return Head.from_json(text[at:].decode("utf-8", "replace"), where), begin
