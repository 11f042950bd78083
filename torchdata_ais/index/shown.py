"""An index as a notebook shows it: what it covers, its fields, and its first samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchdata_ais.errors import AISError
from torchdata_ais.shown import bytes_text
from torchdata_ais.tables import html_table, html_text

if TYPE_CHECKING:
    from torchdata_ais.index.numbered import NumberedSamples

_FIRST = 5
_KINDS = 8  # combinations of fields


def index_html(index: NumberedSamples) -> str:
    """Return tables in HTML, escaped. No shard is read, and what of the index cannot be read is left out.

    Example:
        >>> from torchdata_ais import SampleIndex
        >>> from torchdata_ais.testing import example_shards
        >>> "5 samples of 2 shards" in index_html(SampleIndex.build(example_shards(counts=(3, 2))))
        True
    """
    try:
        kinds = [" ".join(names) for names in index.fields]
    except (AISError, OSError):
        kinds = []
    more = [f"and {len(kinds) - _KINDS} more"] if len(kinds) > _KINDS else []
    facts = [
        ("fields", "; ".join([*kinds[:_KINDS], *more]) or "none"),
        ("proof", index.proof),
        ("digest", index.digest),
    ]
    shards = sum(part.head.shards for part in index.stored)
    title = f"{type(index).__name__}: {len(index)} samples of {shards} shard{'' if shards == 1 else 's'}"
    try:
        facts.insert(0, ("mean sample", bytes_text(index.mean_bytes())))
        first = [
            (str(number), one.key, one.shard.name, str(one.start), _sizes(one.fields, one.sizes))
            for number, one in enumerate(index.take(range(min(_FIRST, len(index)))))
        ]
    except (AISError, OSError):  # the cluster is gone: a notebook shows what it has
        first = []
    samples = html_table(("", "key", "shard", "byte", "fields"), first, left=5) if first else ""
    return f"<div><b>{html_text(title)}</b>{html_table((), facts, left=2)}{samples}</div>"


def _sizes(names: Iterable[str], sizes: Iterable[int]) -> str:
    return ", ".join(f"{name} {bytes_text(size)}" for name, size in zip(names, sizes, strict=True))
