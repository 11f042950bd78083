"""Throughput, processor time, first batch and memory beside webdataset, torchdata and the SDK.

    python benchmarks/run.py --case decode [--rounds 5] [--only ours webdataset] [--json FILE]

Pipelines take turns in each round, each time in a fresh process, over the same shards on the same server, so that
whatever else the machine does hits all of them. Shown are median [smallest-largest] of the rounds; the ratio to
webdataset is taken within each round. A row that does not give every sample once ends the run. How to read the table,
and what did not help: README.md beside this file.
"""

import argparse
import datetime as dt
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass, field, replace

import measure
import shards

from torchdata_ais.local import Bandwidth


@dataclass(frozen=True)
class Row:
    """One pipeline in one setting; `name` is its line in the table."""

    pipeline: str
    workers: int = 0
    label: str = ""
    fast: bool = True
    shape: shards.Shape | None = None
    options: dict = field(default_factory=dict)

    @property
    def name(self):
        return f"{self.pipeline}{', ' + self.label if self.label else ''}, W={self.workers}"


@dataclass(frozen=True)
class Case:
    """Rows measured together; `base` is what ratios refer to, by number of workers."""

    shape: shards.Shape
    rows: tuple
    base: str = "webdataset"
    decode: bool = False
    crop: bool = False
    batches: int = 0  # of a row that has no end
    repeat: int = 1
    ranks: int = 1
    metric: str = "samples/s"
    faults: tuple = ()


BOTH = (0, 2)
CURL = "webdataset"  # as it is: a curl for each shard
REQUESTS = "webdataset + requests"
NEEDS = {"AISShardReader": "alive_progress", "torchdata": "torchdata.dataloader2"}
CROPS_BY = "torchvision"  # what peers crop with
PEERS = (CURL, "torchdata", "AISShardReader")
BATCH = 64  # as in peers.py
MEMORY_MB = (10, 100, 500, 2000)
BARE = "bare loop"
BARE_DECODED = "bare loop, decoded"
BY_MEMBER = "SDK, a member a request"
CROPPING = (
    Row("limit", 2),
    *(Row(name, 2) for name in (CURL, "webdataset + fast decoder", "torchdata")),
    Row("ours, DataLoader2", 2),
    Row("ours, DataLoader2", 2, "no [fast]", fast=False),
    Row("ours, threads"),
)

CASES = {
    "decode": Case(
        shards.JPEG,
        (
            Row("limit", 2),
            Row(BARE_DECODED, 2),
            Row(BARE_DECODED, label="threads"),
            *(Row(name, 2) for name in (*PEERS, "webdataset + fast decoder")),
            Row("ours, DataLoader2", 2),
            Row("ours, DataLoader2", 2, "no [fast]", fast=False),
            Row("ours, DataLoader2", 1),
            Row("ours, DataLoader2, threads", 1),
            Row("ours, DataLoader", 2),
            Row("ours, threads"),
        ),
        decode=True,
        repeat=2,
    ),
    "crop": Case(shards.JPEG, CROPPING, decode=True, crop=True),
    "crop-12mp": Case(shards.PHOTO, CROPPING, decode=True, crop=True),
    "by-number": Case(
        shards.JPEG,
        (Row(BY_MEMBER, 2), Row("ours, SampleDataset", 2), Row("ours, by index", 2)),
        base=BY_MEMBER,
        decode=True,
    ),
    "planned": Case(
        shards.JPEG,
        (Row("ours, stream", 2), Row("ours, runs", 2), Row("ours, by index", 2)),
        base="ours, stream",
        decode=True,
    ),
    "planned-ranks": Case(
        shards.JPEG,
        (Row("ours, stream", 2), Row("ours, runs", 2), Row("ours, by index", 2)),
        base="ours, stream",
        decode=True,
        ranks=2,
    ),
    "mixture": Case(
        shards.JPEG,
        (Row("webdataset, RandomMix", 2), Row("ours, Mixture", 2)),
        base="webdataset, RandomMix",
        decode=True,
        batches=50,
    ),
    "undecoded": Case(
        shards.JPEG,
        (
            *(Row(name, workers) for workers in BOTH for name in (*PEERS, REQUESTS)),
            Row(BARE),
            Row("ours"),
            Row("ours", label="no checksum", options={"verify": False}),
            *(Row("ours, DataLoader2", workers) for workers in (0, 1, 2)),
            Row("ours, DataLoader", 2),
        ),
        repeat=4,
    ),
    "small": Case(
        shards.SMALL,
        (
            *(Row(name, workers) for workers in BOTH for name in (*PEERS, REQUESTS)),
            Row("ours"),
            Row("ours, DataLoader2", 2),
        ),
    ),
    "large": Case(
        shards.LARGE,
        (
            *(Row(name, workers) for workers in BOTH for name in ("webdataset", "AISShardReader")),
            Row(BARE),
            Row("ours"),
            Row("ours, DataLoader2", 2),
        ),
        repeat=3,
    ),
    "shuffle": Case(
        shards.JPEG,
        tuple(
            Row(name, label=f"buffer {size}", options={"buffer": size})
            for size in (0, 1000, 5000)
            for name in ("webdataset", "ours")
        ),
        repeat=2,
    ),
    "slow-link": Case(
        shards.JPEG,
        (
            Row(CURL),
            Row(REQUESTS),
            *(Row("ours", label=f"{n} open", options={"open_shards": n}) for n in (1, 2, 4)),
        ),
        faults=(Bandwidth(60e6),),
    ),
    "first-batch": Case(
        shards.JPEG,
        (
            *(Row(name, workers) for workers in BOTH for name in (CURL, REQUESTS)),
            Row("ours"),
            Row("ours, DataLoader2", 2),
            Row("ours, DataLoader", 2),
        ),
        metric="first ms",
    ),
    "first-decoded": Case(
        shards.JPEG,
        (
            *(Row(name, 2) for name in (CURL, "webdataset + fast decoder", "torchdata")),
            Row("ours, DataLoader2", 2),
            Row("ours, DataLoader", 2),
        ),
        decode=True,
        metric="first ms",
    ),
    "second-epoch": Case(
        shards.SMALL,  # to read 64 of them takes a millisecond: what is measured is the beginning
        (Row(CURL, 2), Row("torchdata", 2), Row("ours, DataLoader2", 2), Row("ours, ais_loader", 2)),
        metric="again ms",
    ),
    "memory": Case(
        shards.JPEG,
        tuple(
            Row(name, label=f"{size} MB", shape=shards.of_shard_size(size))
            for name in ("webdataset", "ours")
            for size in MEMORY_MB
        ),
        metric="PSS MB",
    ),
}


def job_of(case, row, endpoint):
    shape = row.shape or case.shape
    return {
        "pipeline": row.pipeline,
        "workers": row.workers,
        "fast": row.fast,
        "endpoint": endpoint,
        "template": shape.template,
        "prefix": shape.prefix,
        "record": "bin" if shape.size else "jpg",
        "repeat": case.repeat,
        "decode": case.decode,
        "crop": case.crop,
        "batches": case.batches,
        "ranks": case.ranks,
        "each": shape.samples,
        "second_epoch": case.metric == "again ms",
        "buffer": 0,
        "open_shards": 1,
        "first_only": case.metric == "first ms",
        **row.options,
    }


def samples_of(case, row):
    """How many samples the row must give; None for the limit, which reads no shards."""
    if row.pipeline == "limit":
        return None
    shape = row.shape or case.shape
    if case.batches:
        return case.batches * BATCH
    samples = shape.shards * shape.samples * case.repeat
    return min(samples // max(1, row.workers), BATCH) if case.metric == "first ms" else samples


def check_samples(case, row, result):
    """End the run if a row has lost or doubled samples: it did another work than the others."""
    wanted = samples_of(case, row)
    if wanted is not None and result["samples"] != wanted:
        raise SystemExit(f"\n{row.name}: {result['samples']} samples instead of {wanted}; nothing is shown")


def metric_of(case, result):
    if case.metric == "first ms":
        return 1e3 * result["first_s"]
    if case.metric == "again ms":
        return 1e3 * result["again_s"]
    if case.metric == "PSS MB":
        return result["pss_mb"]
    return result["samples"] / result["wall_s"]


def measured(case, rows, rounds, endpoint):
    results = {row.name: [] for row in rows}
    for number in range(rounds):
        for row in rows if number % 2 == 0 else reversed(rows):
            print(f"\rround {number + 1}: {row.name:60}", end="", file=sys.stderr, flush=True)
            job = job_of(case, row, endpoint)
            if case.ranks > 1:
                result = measure.run_ranks(job)
            else:
                result = measure.run(job, 0.05 if case.metric == "PSS MB" else 0)
            check_samples(case, row, result)
            results[row.name].append(result)
    print("\r" + " " * 72 + "\r", end="", file=sys.stderr)
    return results


def base_of(case, row, results):
    """The row that `row` is compared with: the peer in the same setting, else with the same workers, else any."""
    names = [
        f"{case.base}, {row.label}, W={row.workers}",
        f"{case.base}, W={row.workers}",
        f"{case.base}, W=0",
        f"{case.base}, W=2",
    ]
    return next((name for name in names if name in results), None)


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "all": values}


def report(case, rows, results):
    """Numbers of each row: the metric, processor time, first batch, and ratios within rounds."""
    lines = {}
    for row in rows:
        own = results[row.name]
        line = {"metric": summary([metric_of(case, result) for result in own])}
        line["cpu_ms_per_sample"] = summary([1e3 * result["cpu_s"] / result["samples"] for result in own])
        line["first_ms"] = summary([1e3 * result["first_s"] for result in own])
        line["ratios"] = {
            peer: statistics.median(
                metric_of(case, a) / metric_of(case, b) for a, b in zip(own, results[peer], strict=True)
            )
            for peer in results
            if peer.startswith(case.base) and peer != row.name
        }
        base = base_of(case, row, results)
        if base:
            pairs = list(zip(own, results[base], strict=True))
            line["base"] = base
            line["ratio"] = summary([metric_of(case, a) / metric_of(case, b) for a, b in pairs])
            line["cpu_ratio"] = summary(
                [(a["cpu_s"] / a["samples"]) / (b["cpu_s"] / b["samples"]) for a, b in pairs]
            )
        lines[row.name] = line
    return lines


def show(name, case, lines, rounds):
    print(f"\n{name}: median [smallest-largest] of {rounds} rounds, ratios to {case.base} within rounds")
    print(f"| pipeline | {case.metric} | ratio | CPU s/1000 | CPU ratio | first batch ms |")
    print("|---|---|---|---|---|---|")
    for label, line in lines.items():
        metric, cpu, first = line["metric"], line["cpu_ms_per_sample"], line["first_ms"]
        spread = f"{metric['median']:.0f} [{metric['min']:.0f}-{metric['max']:.0f}]"
        ratio = f"{line['ratio']['median']:.2f}" if "ratio" in line else "-"
        cpu_ratio = f"{line['cpu_ratio']['median']:.2f}" if "ratio" in line else "-"
        print(f"| {label} | {spread} | {ratio} | {cpu['median']:.3f} | {cpu_ratio} | {first['median']:.0f} |")


def version_of(package):
    """Return the installed version of a package, or that it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def surroundings():
    packages = (
        "torchdata-ais",
        "torch",
        "torchdata",
        "aistore",
        "webdataset",
        "simplejpeg",
        "pillow",
        "urllib3",
    )
    model = ""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        model = next(
            (ln.split(":")[1].strip() for ln in cpuinfo.read_text().splitlines() if "model name" in ln), ""
        )
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "versions": {name: version_of(name) for name in packages},
        "python": platform.python_version(),
        "kernel": platform.release(),
        "processor": model or platform.processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
        "server": "AIS_ENDPOINT" if os.environ.get("AIS_ENDPOINT") else "LocalCluster",
        "commit": commit.stdout.strip(),
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
    }


def smaller(case, samples):
    """The case with about so many samples in each of its shapes."""

    def cut(shape):
        return shape and replace(shape, samples=max(1, samples // shape.shards))

    rows = tuple(replace(row, shape=cut(row.shape)) for row in case.rows)
    batches = case.batches and max(2, samples // BATCH)
    return replace(case, shape=cut(case.shape), rows=rows, batches=batches)


def is_there(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="+", default=list(CASES), choices=list(CASES), metavar="CASE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[], help="only rows whose names begin with one of these")
    parser.add_argument("--repeat", type=int, help="read the shards so many times (shorter or steadier runs)")
    parser.add_argument(
        "--samples", type=int, help="so many samples in each kind of data (to try a case out)"
    )
    parser.add_argument("--json", type=pathlib.Path, help="write numbers, versions and machine to this file")
    arguments = parser.parse_args(words)
    left_out = {name: module for name, module in NEEDS.items() if not is_there(module)}
    for name, module in left_out.items():
        print(
            f"{name} is left out: {module} is not there. install the extra [bench] of this checkout",
            file=sys.stderr,
        )
    everything = {
        "surroundings": surroundings(),
        "rounds": arguments.rounds,
        "left_out": sorted(left_out),
        "cases": {},
    }
    for name in arguments.case:
        case = CASES[name]
        if arguments.repeat:
            case = replace(case, repeat=arguments.repeat)
        if arguments.samples:
            case = smaller(case, arguments.samples)
        rows = [row for row in case.rows if not arguments.only or row.name.startswith(tuple(arguments.only))]
        rows = [row for row in rows if row.pipeline not in left_out]
        if case.crop and not is_there(CROPS_BY):
            print(f"{name}: peers are left out, {CROPS_BY} is not there", file=sys.stderr)
            rows = [row for row in rows if row.pipeline.startswith(("ours", "limit"))]
        with shards.served({row.shape or case.shape for row in rows}, case.faults) as endpoint:
            results = measured(case, rows, arguments.rounds, endpoint)
        lines = report(case, rows, results)
        show(name, case, lines, arguments.rounds)
        everything["cases"][name] = {"metric": case.metric, "rows": lines}
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
