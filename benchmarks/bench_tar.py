"""Microseconds a member, and what the checksum costs: our tar reader beside `tarfile` and webdataset.

    python benchmarks/bench_tar.py [--rounds 7] [--json FILE]

One process, one thread. Each archive lies in memory in blocks of 2 MiB, as the transport hands them over; every
reader gives every member as `bytes`. The readers take turns in each round, so that what else the machine does
hits all of them, and in its turn each reads the archive several times, of which the fastest counts; shown are
median, smallest and largest of the rounds. The archives (11 and 9 MB) are small enough for most machines' last
cache, as blocks are that have just arrived; from memory the copy of 110 KB takes two to three times as long.

Two rows are for reading the others. `copy alone` slices the same bytes out of the same blocks and does nothing
else: no reader that gives `bytes` can be faster. `headers alone` is our reader asked for no member, so that
it checks and reads every header and copies no data: what parsing costs by itself.

Then the whole way, from an embedded cluster to batches of bytes, as the case `undecoded` of `run.py`: with the
checksum of every shard compared and without, beside webdataset and `tarfile` on the same bodies. Neither of these
compares any.
"""

import argparse
import importlib.metadata
import io
import itertools
import json
import os
import pathlib
import platform
import statistics
import sys
import tarfile
import time
import urllib.request
from functools import partial

import peers
import run
import shards

from torchdata_ais.tar import TarReader, decompress
from torchdata_ais.testing import shard_bytes

BLOCK = 2 << 20
PASSES = 5
SIZES = {"110 KB": (110_000, 100), "4 KB": (4_000, 2_000)}


class BlockFile(io.RawIOBase):
    """The blocks as a file that cannot seek, as peers read a body."""

    def __init__(self, blocks):
        self._rest = iter(blocks)
        self._block = memoryview(b"")

    def readable(self):
        return True

    def readinto(self, buffer):
        if not self._block:
            self._block = memoryview(next(self._rest, b""))
        size = min(len(buffer), len(self._block))
        buffer[:size] = self._block[:size]
        self._block = self._block[size:]
        return size


def ours(blocks):
    for _name, _data, _begin, _end in TarReader(decompress(blocks)):
        pass


def headers_alone(blocks):
    for _ in TarReader(blocks, want=lambda _: False):
        raise AssertionError


def with_tarfile(blocks):
    with tarfile.open(fileobj=io.BytesIO(b"".join(blocks)), mode="r:") as tar:
        for info in tar:
            tar.extractfile(info).read()


def with_tarfile_stream(blocks):
    with tarfile.open(fileobj=io.BufferedReader(BlockFile(blocks), BLOCK), mode="r|") as tar:
        for info in tar:
            tar.extractfile(info).read()


def with_webdataset(blocks):
    from webdataset.tariterators import tar_file_iterator

    for _ in tar_file_iterator(io.BufferedReader(BlockFile(blocks), BLOCK)):
        pass


def copy_alone(size):
    step = 512 + size + -size % 512

    def read(blocks):
        pos = 0
        for block in blocks:
            while pos + size <= len(block):
                block[pos : pos + size]
                pos += step
            pos = max(0, pos - len(block))

    return read


def readers(size):
    return {
        "torchdata_ais": ours,
        "  headers alone": headers_alone,
        "  copy alone": copy_alone(size),
        "tarfile (r:, seeks)": with_tarfile,
        "tarfile (r|, stream)": with_tarfile_stream,
        "webdataset tar_file_iterator": with_webdataset,
    }


def archive(size, count):
    data = os.urandom(size)
    members = ((f"train/{n:08d}.jpg", data) for n in range(count))
    body = shard_bytes(members)
    return [body[at : at + BLOCK] for at in range(0, len(body), BLOCK)]


def measure(size, count, rounds):
    """Return microseconds a member of every reader, one number a round."""
    blocks = archive(size, count)
    times = {name: [] for name in readers(size)}
    for _, (name, read) in itertools.product(range(rounds), readers(size).items()):
        passes = []
        for _ in range(PASSES):
            begin = time.perf_counter()
            read(blocks)
            passes.append(time.perf_counter() - begin)
        times[name].append(min(passes) / count * 1e6)
    return times


def samples_of(pipeline, job):
    batches, close = peers.PIPELINES[pipeline](job)
    count = sum(len(batch[0]) for batch in batches)
    close()
    return count


def samples_of_tarfile(endpoint, names):
    count = 0
    for name in names:
        url = f"{endpoint}/v1/objects/{shards.BUCKET}/{name}?provider=ais"
        with urllib.request.urlopen(url) as body, tarfile.open(fileobj=body, mode="r|") as tar:
            for info in tar:
                tar.extractfile(info).read()
                count += info.name.endswith(".jpg")
    return count


def checksum_cost(rounds):
    """Return samples a second of each way, one number a round."""
    case = run.CASES["undecoded"]
    rates = {}
    with shards.served({case.shape}) as endpoint:
        job = {**run.job_of(case, run.Row("ours"), endpoint), "repeat": 1}
        ways = {
            "torchdata_ais": partial(samples_of, "ours", job),
            "  without the checksum": partial(samples_of, "ours", {**job, "verify": False}),
            "tarfile (r|, stream)": partial(samples_of_tarfile, endpoint, case.shape.names()),
            "webdataset": partial(samples_of, "webdataset", job),
        }
        for number, (name, way) in itertools.product(range(rounds + 1), ways.items()):
            begin = time.perf_counter()
            count = way()
            if number:  # the first round warms caches and imports
                rates.setdefault(name, []).append(count / (time.perf_counter() - begin))
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds, at least 5 (default 7)")
    parser.add_argument("--json", help="also write the numbers to this file, '-' for standard output")
    options = parser.parse_args()
    rounds = max(5, options.rounds)
    results = {label: measure(*shape, rounds) for label, shape in SIZES.items()}

    out = sys.stderr if options.json == "-" else sys.stdout
    print(f"us a member, median (smallest-largest) of {rounds} interleaved rounds", file=out)
    print(f"{'':30}" + "".join(f"{label:>28}" for label in results), file=out)
    for name in readers(0):
        cells = ""
        for times in results.values():
            us = times[name]
            cells += f"{statistics.median(us):12.2f} ({min(us):5.2f}-{max(us):6.2f})"
        print(f"{name:30}{cells}", file=out)

    rates = checksum_cost(rounds)
    print(f"\nsamples a second, median (smallest-largest) of {rounds} interleaved rounds", file=out)
    for name, values in rates.items():
        print(f"{name:30}{statistics.median(values):12.0f} ({min(values):5.0f}-{max(values):6.0f})", file=out)
    with_it, without = rates["torchdata_ais"], rates["  without the checksum"]
    share = statistics.median(1 - a / b for a, b in zip(with_it, without, strict=True))
    print(f"the checksum costs {share:.1%} of the speed, median within rounds", file=out)

    if options.json:
        report = {
            "unit": "us a member",
            "rounds": rounds,
            "passes": PASSES,
            "python": platform.python_version(),
            "machine": platform.processor() or platform.machine(),
            "cpus": os.cpu_count(),
            "webdataset": importlib.metadata.version("webdataset"),
            "samples a second": {name.strip(): values for name, values in rates.items()},
            "checksum share": share,
            "results": {
                label: {
                    name.strip(): {"median": statistics.median(us), "min": min(us), "max": max(us), "all": us}
                    for name, us in times.items()
                }
                for label, times in results.items()
            },
        }
        text = json.dumps(report, indent=2)
        if options.json == "-":
            print(text)
        else:
            pathlib.Path(options.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
