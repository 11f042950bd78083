"""`reshard`: write the good samples of linted shards into new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from torchdata_ais.cli.checks.lint import LintReport, ShardReport, lacking
from torchdata_ais.codecs import Decoder
from torchdata_ais.errors import NEVER_SKIPPED, SampleError
from torchdata_ais.pipes import AISFileLoader, TarSampleGrouper
from torchdata_ais.samples import Fields
from torchdata_ais.store import Cluster, StoreOptions, cluster_options


@dataclass
class Resharded:
    """Result of `reshard`.

    Attributes:
        shards: Names of the new shards.
        joined: Samples whose members were not consecutive, now put together.
        renamed: Samples that got a new key, since another shard has the same.
        left_out: Samples left out, by the class of the problem.
        classes: Where the names of the classes were noted; None without any.
    """

    shards: list[str] = field(default_factory=list)
    samples: int = 0
    joined: int = 0
    renamed: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    classes: str | None = None


def reshard(
    report: LintReport,
    target: str,
    *,
    decode: bool = True,
    maxcount: int = 10_000,
    maxsize: float = 1e9,
    progress: Callable[[int, int], object] | None = None,
    cluster: Cluster = None,
) -> Resharded:
    """Write the good samples of a report's shards to new shards.

    The old ones stay as they are. Of a shard that breaks off, the samples before the break are written. Members of one
    key that are not consecutive are put together (in a shard that is whole; in another, a part may be missing).
    Samples that do not decode or lack a field of ``report.required`` are left out and counted. Names of classes that
    are stored with the shards (``classes.json``) are written with the new ones, too. `target` is a pattern such as
    ``out/train-%06d.tar``; `progress` is called with (shards done, shards in all) after each.

    Order: that of the shards; samples that were put together come at the end of theirs.

    Memory: the members of scattered keys of one shard, and 100 bytes for each sample's key.

    Raises:
        UsageError: `target` is not a pattern, or there are shards of this pattern already, or other classes next to
            it.
    """
    from torchdata_ais.writing import ShardWriter
    from torchdata_ais.writing.classes import carried_classes, write_classes
    from torchdata_ais.writing.prepare import folder_of, prepare

    options = cluster_options(cluster)
    done = Resharded()
    codec = Decoder() if decode else None
    keys: set[str] = set()
    with ExitStack() as stack:
        stack.enter_context(folder_of(target))
        prepare(target, lambda: options, new=True)
        classes = carried_classes([shard.source for shard in report.shards], target, lambda: options)
        writer = ShardWriter(
            target, maxcount=maxcount, maxsize=maxsize, encoder=False, cluster=options, overwrite=None
        )
        stack.enter_context(writer)
        for number, shard in enumerate(report.shards):
            for sample in _samples(shard, done, options):
                if lacking(sample, report.required):
                    done.left_out["MissingFieldError"] += 1
                    continue
                try:
                    if codec is not None:
                        codec(sample)
                except NEVER_SKIPPED:
                    raise
                except SampleError as error:
                    done.left_out[type(error).__name__] += 1
                    continue
                if sample["__key__"] in keys:
                    sample["__key__"] = f"{sample['__key__']}_{number:06d}"
                    done.renamed += 1
                keys.add(sample["__key__"])
                writer.write({name: value for name, value in sample.items() if name != "__url__"})
                done.samples += 1
            if progress is not None:
                progress(number + 1, len(report.shards))
    done.shards = [written.name for written in writer.shards]
    if classes and done.shards:
        done.classes = write_classes(target, classes, lambda: options)
    return done


def _samples(shard: ShardReport, done: Resharded, options: StoreOptions) -> Iterator[Fields]:
    """Yield the whole samples of a shard, those with scattered keys last."""

    def counted(error: Exception) -> bool:
        if isinstance(error, SampleError):
            done.left_out[type(error).__name__] += 1
        return True

    parts: dict[str, list[Fields]] = {}
    members = AISFileLoader([shard.source], on_error=counted, cluster=options)
    for sample in TarSampleGrouper(members, adjacent="split", on_error=counted):
        if sample["__key__"] in shard.scattered:
            parts.setdefault(sample["__key__"], []).append(sample)
        else:
            yield sample
    for runs in parts.values():
        names = Counter(name for run in runs for name in run if not name.startswith("__"))
        if not shard.whole:
            done.left_out["NonAdjacentKeyError"] += 1
        elif max(names.values()) > 1:
            done.left_out["DuplicateFieldError"] += 1
        else:
            done.joined += 1
            yield {name: value for run in runs for name, value in run.items()}
