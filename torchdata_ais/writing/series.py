"""The series of shards that a conversion writes, one for each split: their patterns, and their manifests."""

from __future__ import annotations

from typing import NamedTuple

from torchdata_ais.errors import UsageError
from torchdata_ais.shard_names import is_shard
from torchdata_ais.urls import parse_url, redact
from torchdata_ais.writing.pattern import check_pattern
from torchdata_ais.writing.shard_writer import ShardWriter
from torchdata_ais.writing.sources.options import SourceOptions
from torchdata_ais.writing.sources.source import Source

SPLIT = "{split}"
"""The place of a split in the names of its shards."""


class Series(NamedTuple):
    """One series of shards: that of a split, or the only one."""

    name: str
    pattern: str
    source: Source
    writer: ShardWriter


def patterns_of(target: str, how: SourceOptions) -> dict[str, str]:
    """Return the pattern of each series by its name."""
    splits = how.splits
    if bool(splits) != (SPLIT in target):
        what = "split= needs a place in the names" if splits else f"{SPLIT} in the names needs split="
        raise UsageError.at(what, todo="write split='0.9/0.1' and out/{split}-%06d.tar", url=target)
    patterns = {name: target.replace(SPLIT, name) for name in splits} or {"": target}
    for pattern in patterns.values():
        check_pattern(pattern)
        if not is_shard(parse_url(pattern).name):
            raise UsageError.at(
                f"no reader would know {redact(pattern)} for shards by their names",
                todo="end the pattern in .tar, .tar.gz, .tar.bz2, .tar.xz, .tar.zst or .tgz",
            )
    return patterns


def manifest_of(manifest: str | None, split: str, how: SourceOptions) -> str | None:
    """Return the manifest of one series of one part: each has its own.

    Example:
        >>> manifest_of("m.json", "val", SourceOptions(part="3/16")), manifest_of("m.json", "", SourceOptions())
        ('m-val-3-of-16.json', 'm.json')
    """
    if manifest is None:
        return None
    words = [split] if split else []
    if how.part is not None:
        words.append("{}-of-{}".format(*how.part_of))
    stem, dot, ending = manifest.rpartition(".")
    if "/" in ending or not dot:
        stem, ending = manifest, ""
    return "-".join([stem, *words]) + dot * bool(ending) + ending
