"""`measure`: rates of machine and cluster, stage by stage, and advice."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import cycle
from typing import Any

from torchdata_ais._util.arguments import checked
from torchdata_ais.cli.checks.doctor import usable_cores
from torchdata_ais.cli.checks.lint import sources
from torchdata_ais.codecs import IMAGE_EXTENSIONS
from torchdata_ais.errors import NotFoundError
from torchdata_ais.pipes import AISFileLoader, TarSampleGrouper
from torchdata_ais.store import Cluster, StoreOptions, cluster_options, open_blocks

_CONNECTIONS = 4
_BATCH = 32
_FASTER = 1.3  # more connections, or more workers, must bring this much to be worth a word


@dataclass(frozen=True)
class Rate:
    """Rate of one stage, together with all stages before it.

    Attributes:
        stage: ``first read``, ``raw``, ``raw x4``, ``members``, ``samples``, ``decoded``, ``loader(n)``.
        seconds: How long it was measured.
        bytes: Bytes of shards or fields that came in that time; 0 where samples count.
        samples: Samples that came; 0 where bytes count.
    """

    stage: str
    seconds: float
    bytes: int = 0
    samples: int = 0

    @property
    def mb_s(self) -> float:
        """Megabytes a second."""
        return self.bytes / 1e6 / self.seconds if self.seconds > 0 else 0.0

    @property
    def samples_s(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0


@dataclass
class Speed:
    """The measurements in the order of the chain, and the advice from them.

    `advice` has the most important sentence first.
    """

    rates: list[Rate] = field(default_factory=list)
    cores: int = 1
    sample_bytes: float = 0.0
    advice: list[str] = field(default_factory=list)

    def rate(self, stage: str) -> Rate | None:
        """Return the measurement of a stage, if it was made."""
        return next((rate for rate in self.rates if rate.stage == stage), None)

    def as_dict(self) -> dict[str, Any]:
        """Return the measurements as plain values for JSON."""
        rows = [
            asdict(rate)
            | {
                "seconds": round(rate.seconds, 3),
                "mb_s": round(rate.mb_s, 2),
                "samples_s": round(rate.samples_s, 1),
            }
            for rate in self.rates
        ]
        return asdict(self) | {"rates": rows, "sample_bytes": round(self.sample_bytes)}


@checked
def measure(
    source: object,
    *,
    seconds: float = 3.0,
    workers: Iterable[int] = (0, 1, 2),
    spec: str = "torchrgb8",
    size: int = 224,
    progress: Callable[[str], object] | None = None,
    cluster: Cluster = None,
) -> Speed:
    """Time the stages of a chain over these shards, each for a few seconds.

    The first shard is read once before all else, since a cluster may have to fetch it from the cloud or a disk; the
    other figures are of shards read again and again. With images, the chain is ``decode(spec, size=,
    only=image).to_tuple(image).batched(32)``, else ``decode()``; it is timed with each number of `workers`. `progress`
    is called with the name of each stage before it runs.

    Example:
        >>> from torchdata_ais.testing import example_shards
        >>> speed = measure(example_shards(), seconds=0.02, workers=(0,))
        >>> [rate.stage for rate in speed.rates]
        ['first read', 'raw', 'raw x4', 'members', 'samples', 'decoded', 'loader(0)']
    """
    options = cluster_options(cluster)
    urls = sources(source, options)
    speed = Speed(cores=usable_cores())
    stages: dict[str, Callable[[], Rate]] = {
        "first read": lambda: _timed("first read", _raw(urls[:1], options), math.inf),
        "raw": lambda: _timed("raw", _raw(cycle(urls), options), seconds),
        f"raw x{_CONNECTIONS}": lambda: _raw_many(urls, options, seconds),
        "members": lambda: _timed("members", _members(_many(urls), options), seconds),
        "samples": lambda: _timed("samples", _samples(_many(urls), options), seconds),
    }
    for name, run in stages.items():
        if progress is not None:
            progress(name)
        speed.rates.append(run())
    first = next(iter(TarSampleGrouper(AISFileLoader(urls, cluster=options))), None)
    if first is None:
        raise NotFoundError.at("the shards hold no sample", todo="torchdata-ais lint says more", url=urls[0])
    grouped = speed.rates[-1]
    speed.sample_bytes = grouped.bytes / max(1, grouped.samples)
    image = next((name for name in first if name.rpartition(".")[2] in IMAGE_EXTENSIONS), None)
    for count in (None, *workers):
        name = "decoded" if count is None else f"loader({count})"
        if progress is not None:
            progress(name)
        speed.rates.append(_loader(name, _chain(_many(urls), options, image, spec, size), count, seconds))
    speed.advice = list(_advice(speed))
    return speed


def _many(urls: list[str]) -> list[str]:
    """Return the shards repeated, enough for all workers for a few seconds."""
    return urls * math.ceil(4096 / len(urls))


def _timed(stage: str, came: Iterable[tuple[int, int]], seconds: float) -> Rate:
    """Count the bytes and the samples that come within so many seconds."""
    began = time.monotonic()
    total = count = 0
    for size, samples in came:
        total += size
        count += samples
        if time.monotonic() - began > seconds:
            break
    return Rate(stage, time.monotonic() - began, total, count)


def _raw(urls: Iterable[str], options: StoreOptions) -> Iterator[tuple[int, int]]:
    """Read objects one after the other, to nowhere."""
    for url in urls:
        yield 0, 0  # of empty ones, too, there is an end
        with open_blocks(url, options) as blocks:
            for block in blocks:
                yield len(block), 0


def _raw_many(urls: list[str], options: StoreOptions, seconds: float) -> Rate:
    """The same over several connections."""
    began = time.monotonic()
    start = threading.Barrier(_CONNECTIONS)

    def one(number: int) -> int:
        start.wait(10)
        mine = cycle(urls[number % len(urls) :] + urls[: number % len(urls)])
        return _timed("", _raw(mine, options), seconds).bytes

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        total = sum(pool.map(one, range(_CONNECTIONS)))
    return Rate(f"raw x{_CONNECTIONS}", time.monotonic() - began, total)


def _members(urls: list[str], options: StoreOptions) -> Iterator[tuple[int, int]]:
    return ((len(data), 0) for _, data in AISFileLoader(urls, cluster=options))


def _samples(urls: list[str], options: StoreOptions) -> Iterator[tuple[int, int]]:
    for sample in TarSampleGrouper(AISFileLoader(urls, cluster=options)):
        yield sum(len(value) for value in sample.values() if isinstance(value, bytes)), 1


def _chain(urls: list[str], options: StoreOptions, image: str | None, spec: str, size: int) -> object:
    """Return a pipe of batches; `_loader` counts their contents."""
    samples: Any = TarSampleGrouper(AISFileLoader(urls, cluster=options), require=[image] if image else ())
    if image is None:
        return samples.decode().map(_one).batch(_BATCH)
    return samples.decode(spec, size=size, only=image).to_tuple(image).batched(_BATCH)


def _one(_: object) -> int:
    return 1


def _loader(name: str, chain: Any, workers: int | None, seconds: float) -> Rate:
    """Time a chain, also under `ais_loader`, after the first batch."""
    with ExitStack() as stack:
        if workers is not None:
            from torchdata_ais.loaders import ais_loader

            chain = stack.enter_context(ais_loader(chain, num_workers=workers))
        batches = iter(chain)
        next(batches, None)
        sizes = ((0, len(batch[0] if isinstance(batch, tuple) else batch)) for batch in batches)
        return _timed(name, sizes, seconds)


def _advice(speed: Speed) -> Iterator[str]:
    """Yield advice from the rates: workers, connections, the limit."""
    raw, many = speed.rates[1], speed.rates[2]
    decoded = speed.rate("decoded")
    grouped = speed.rate("samples")
    if decoded is None or grouped is None or not speed.sample_bytes or not decoded.samples_s:
        return
    best = max(raw.mb_s, many.mb_s)
    delivered = best * 1e6 / speed.sample_bytes
    alone = speed.rate("loader(0)")
    core = max(decoded.samples_s, alone.samples_s if alone is not None else 0.0)
    workers = math.ceil(delivered / core)
    if workers > speed.cores:
        yield (
            f"num_workers={speed.cores}: decoding is the limit. A core decodes {core:.0f} samples/s, the"
            f" cluster delivers {delivered:.0f}; more cores, a smaller size= or smaller images in the shards help,"
            " not a faster network"
        )
    else:
        yield (
            f"num_workers={max(1, workers)}: so many processes decode what the cluster delivers, {delivered:.0f}"
            f" samples/s ({best:.0f} MB/s); more would wait for it"
        )
    if many.mb_s > _FASTER * raw.mb_s:
        yield (
            f"load_tar(open_shards={_CONNECTIONS}) where workers are few: {_CONNECTIONS} connections bring"
            f" {many.mb_s:.0f} MB/s, one {raw.mb_s:.0f}"
        )
    first = speed.rates[0]
    if first.mb_s and raw.mb_s > 3 * first.mb_s:
        yield (
            f"the first read of a shard was slow ({first.mb_s:.0f} MB/s, later {raw.mb_s:.0f}): let the cluster"
            " prefetch the bucket, or expect a slow first epoch"
        )
