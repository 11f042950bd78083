"""The form of a stored index: Arrow schemas, and the head that says what belongs together.

A stored index is a folder: ``index.json``, the head, written last; and Arrow IPC files named by their content, which
polars, duckdb and pandas open. ``shards-*`` has a row a shard, ``samples-*`` a record batch a shard, ``counts-*``
the number of samples of each shard, ``fields-*`` the combinations of fields.

Every block is compared with its XXH64 before pyarrow sees it: damaged Arrow data may end the process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import pyarrow as pa
import xxhash

from torchdata_ais.errors import SampleIndexError

__all__ = [
    "FIELDS",
    "HEAD",
    "PAGE_ROWS",
    "SAMPLES",
    "SHARDS",
    "Block",
    "Head",
    "block_of",
    "checked",
    "read_batch",
]

HEAD = "index.json"
PAGE_ROWS = 4096  # shards in a record batch of the table of shards
_FORMAT = "torchdata_ais.index"
VERSION = 1

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
COUNTS = pa.schema([pa.field("count", pa.int64(), nullable=False)])


class Block(msgspec.Struct, frozen=True, array_like=True):
    """A range of bytes in a file, and their XXH64 in hexadecimal digits."""

    file: str
    start: int
    length: int
    xxh64: str


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What ``index.json`` holds."""

    samples: int
    shards: int
    proof: str
    digest: str
    counts: Block
    fields: Block
    pages: list[Block]
    parts: list[str]
    source: str = ""
    format: str = _FORMAT
    version: int = VERSION
    xxh64: str = ""

    def to_json(self) -> bytes:
        """Return the head as JSON, its own checksum included."""
        plain = msgspec.to_builtins(self)
        plain["xxh64"] = _sum_of(plain)
        return json.dumps(plain, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Head:
        """Return the head that `data` holds.

        Raises:
            SampleIndexError: It is damaged, of another kind, or of a version that this package does not know.
        """
        try:
            plain = json.loads(data)
            ours = plain["format"] == _FORMAT
            version, said = plain["version"], plain["xxh64"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise damaged("its head is not readable", where) from None
        if not ours:
            raise damaged("its head is of something else", where)
        if version != VERSION:
            raise SampleIndexError.at(
                f"{where}: the index has version {version!r}, this package reads version {VERSION}",
                todo="build it again: torchdata-ais index",
                url=where,
            )
        if said != _sum_of(plain):
            raise damaged("its head does not have its checksum", where)
        try:
            return msgspec.convert(plain, cls)
        except msgspec.ValidationError as error:
            raise damaged(f"its head is wrong ({error})", where) from None


def _sum_of(plain: dict[str, object]) -> str:
    rest = {key: value for key, value in plain.items() if key != "xxh64"}
    return xxhash.xxh64_hexdigest(json.dumps(rest, sort_keys=True).encode())


def damaged(what: str, where: str) -> SampleIndexError:
    """Return the error for an index that is not as it was written."""
    return SampleIndexError.at(
        f"{where}: the index is damaged: {what}",
        todo="build it again: torchdata-ais index",
        url=where,
    )


def block_of(file: str, start: int, data: bytes | memoryview) -> Block:
    """Return the block that names `data`, which begins at byte `start` of `file`."""
    return Block(file, start, len(data), xxhash.xxh64_hexdigest(data))


def checked(data: bytes, block: Block, where: str) -> bytes:
    """Return `data` if it is what `block` says.

    Raises:
        SampleIndexError: It is not.
    """
    if len(data) != block.length:
        raise damaged(f"{block.file} has {len(data)} of {block.length} bytes at byte {block.start}", where)
    if xxhash.xxh64_hexdigest(data) != block.xxh64:
        raise damaged(
            f"the bytes {block.start} to {block.start + block.length} of {block.file} changed", where
        )
    return data


def read_batch(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Return the record batch of one block, whose checksum was compared."""
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema)


def stacked(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> tuple[bytes, list[tuple[int, int]]]:
    """Return an Arrow IPC file of `batches`, and where each one stands in it."""
    sink = pa.BufferOutputStream()
    places = []
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            size = pa.ipc.get_record_batch_size(batch)
            places.append((sink.tell() - size, size))
    return sink.getvalue().to_pybytes(), places
