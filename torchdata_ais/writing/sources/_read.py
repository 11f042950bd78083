"""The samples of one shard, without torch: for conversions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata_ais.errors import NonAdjacentKeyError
from torchdata_ais.reading.keyset import KeySet
from torchdata_ais.reading.runs import whole_runs
from torchdata_ais.reading.samples import whole_samples
from torchdata_ais.store import StoreOptions, open_blocks
from torchdata_ais.tar import TarReader, decompress
from torchdata_ais.urls import parse_url

_MAX_SAMPLE_BYTES = 1 << 30


def read_samples(url: str, options: StoreOptions, *, start: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(offset after it, sample)`` for each sample of a shard, whole ones only.

    Args:
        url: A shard: object, file, web file or standard input.
        options: Transport settings.
        start: Samples that begin before this offset (in the decompressed shard) are read and passed over.

    Raises:
        TransportError, ShardError: The shard cannot be read, or is not sound.
        SampleError: Its members do not make samples. Conversions never go on after it: what else would be lost?

    Example:
        >>> from torchdata_ais.testing import example_shards
        >>> [(end, sample["__key__"]) for end, sample in read_samples(example_shards()[1], StoreOptions())]
        [(2048, '00001'), (4096, '00002'), (6144, '00003')]
    """
    keys = KeySet()
    place = parse_url(url)
    url = place.shown
    with open_blocks(place, options) as blocks:
        reader = TarReader(decompress(blocks, url=url), url=url, max_member_bytes=_MAX_SAMPLE_BYTES)
        runs = whole_runs(reader, url=url, max_bytes=_MAX_SAMPLE_BYTES)
        for run, sample in whole_samples(runs, url):
            if not keys.add(sample["__key__"]):
                raise NonAdjacentKeyError.at(
                    f"the key {run.key!r} was met before in this shard: the members of a sample must stand together",
                    todo="sort the shard first (tar --sort=name)",
                    url=url,
                    offset=run.offset,
                    key=run.key,
                )
            if run.offset >= start:
                yield run.end, sample
