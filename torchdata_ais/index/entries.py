"""What an index holds of one shard, as it is found and before it is stored."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import xxhash


class ShardEntry(msgspec.Struct, frozen=True):
    """What is known of one shard, beside its samples.

    Attributes:
        name: The object's URI, the file's path or the page's URL.
        size: Bytes, if known.
        checksum: As the store has it, if known.
        version: As the store has it, if known.
    """

    name: str
    size: int | None = None
    checksum: str | None = None
    version: str | None = None


@dataclass
class ShardSamples:
    """The samples of one shard, in its order; all lists have the same length.

    Attributes:
        keys: Their keys.
        starts: Where the first header of each begins, in bytes of the shard.
        ends: Where the header after it begins.
        fields: The names of its fields, in their order.
        sizes: The bytes of each field.
        xxh64: XXH64 of the bytes from start to end, or None if nobody has read them.
        columns: Values of columns that a program has added, by name; None where nothing is known.
    """

    keys: list[str]
    starts: list[int]
    ends: list[int]
    fields: list[tuple[str, ...]]
    sizes: list[tuple[int, ...]]
    xxh64: list[int] | None
    columns: dict[str, list[int | None]] = field(default_factory=dict)


def content_of(samples: ShardSamples) -> int:
    """Return XXH64 over keys, fields and sizes: the same however they were found.

    Example:
        >>> one = ShardSamples(["a"], [0], [1024], [("cls",)], [(1,)], None)
        >>> content_of(one) == content_of(ShardSamples(["a"], [0], [1024], [("cls",)], [(1,)], [77]))
        True
    """
    combinations = dict.fromkeys(samples.fields)
    numbers = {names: number for number, names in enumerate(combinations)}
    plain = [
        stored_texts(samples.keys),
        [[stored_text(name) for name in names] for names in combinations],
        [numbers[names] for names in samples.fields],
        samples.sizes,
    ]
    return xxhash.xxh64_intdigest(msgspec.msgpack.encode(plain))


IndexedShard = tuple[ShardEntry, ShardSamples]
"""A shard and its samples."""


def stored_text(text: str) -> str:
    r"""Return `text` as an index holds it: bytes of a name that are no UTF-8 stand there as escapes.

    Example:
        >>> stored_text("caf\udce9"), stored_text("caf\u00e9") == "caf\u00e9"
        ('caf\\udce9', True)
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def stored_texts(texts: list[str]) -> list[str]:
    """Return texts as an index holds them."""
    return texts if "".join(texts).isascii() else [stored_text(text) for text in texts]
