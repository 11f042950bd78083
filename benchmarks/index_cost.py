"""What a sample index made on the way costs: processor time a sample of `ShardWriter`, `convert` and `lint`.

    python benchmarks/index_cost.py [--rounds 9] [--samples 2000] [--size 110000] [--only WORD] [--json FILE]

Each round runs the same work without and with the index, first the one and then the other first; the ratio is taken
within the round, and its median is shown. Processor time, not time: other programs on the machine count less. The
XXH64 of the samples alone is shown, too: an index that proves bytes cannot cost less. What an index costs once (files
written, requests) is shared by the samples of the run.
"""

import argparse
import contextlib
import datetime as dt
import io
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time
from functools import partial

import numpy as np
import shards
import xxhash
from PIL import Image

from torchdata_ais import ShardWriter, convert
from torchdata_ais.cli.checks import lint_shards
from torchdata_ais.local import LocalCluster


def samples_of(data, count):
    return [
        {"__key__": f"{number:06d}", "jpg": data[number % len(data)], "cls": str(number % 10).encode()}
        for number in range(count)
    ]


def arrays_of(data, count):
    """Samples whose pictures are still to be encoded."""
    pixels = [np.asarray(Image.open(io.BytesIO(one))) for one in data[:20]]
    return [
        {"__key__": f"{number:06d}", "jpg": pixels[number % len(pixels)], "cls": number % 10}
        for number in range(count)
    ]


def folder_of(root, data, count):
    """A folder of pictures with a folder a class."""
    for number in range(count):
        path = pathlib.Path(root, f"class-{number % 10}", f"{number:06d}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[number % len(data)])
    return root


def write(folder, samples, index):
    with ShardWriter(f"{folder}/w-%03d.tar", maxcount=1000, index=index) as writer:
        for sample in samples:
            writer.write(sample)


def cpu_s(work):
    begin = time.process_time()
    work()
    return time.process_time() - begin


def hash_all(samples):
    for sample in samples:
        xxhash.xxh64_intdigest(sample["jpg"])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--size", type=int, help="of random samples, in bytes; else JPEGs of 110 KB")
    parser.add_argument("--only", default="", help="rows whose names have this in them")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    random = [os.urandom(args.size) for _ in range(shards.DISTINCT)] if args.size else []
    samples = samples_of(random or shards.pictures(), args.samples)
    hashed = statistics.median(cpu_s(partial(hash_all, samples)) for _ in range(args.rounds))
    print(f"{'XXH64 of the samples':36s} {hashed / args.samples * 1e6:7.1f} us a sample")
    found = {}
    with tempfile.TemporaryDirectory() as root, LocalCluster(root=f"{root}/cluster") as cluster:
        cluster.client().bucket("cost").create()
        source = f"{root}/source"
        pathlib.Path(source).mkdir()
        write(source, samples, False)
        count = [0]

        def fresh():
            count[0] += 1
            folder = pathlib.Path(root, "out")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            return folder

        def lint(decode, index):
            with contextlib.redirect_stdout(io.StringIO()):
                assert lint_shards(f"{source}/w-*.tar", decode=decode, jobs=1, index=index).ok

        def converted(of, **how):
            return lambda index: convert(of, f"{fresh()}/c-%03d.tar", index=index, **how)

        rows = {
            "ShardWriter of bytes, to files": lambda index: write(fresh(), samples, index),
            "ShardWriter of bytes, to a cluster": lambda index: _to_cluster(cluster, count, samples, index),
            "convert of shards": converted(f"{source}/w-*.tar"),
            "lint --no-decode": lambda index: lint(False, index),
        }
        if not args.size:
            pictures = shards.pictures()
            arrays = arrays_of(pictures, args.samples)
            folder = folder_of(f"{root}/folder", pictures, args.samples)
            rows |= {
                "convert of a folder": converted(folder),
                "convert of a folder, check=True": converted(folder, check=True),
                "ShardWriter that encodes JPEGs": lambda index: write(fresh(), arrays, index),
                "lint": lambda index: lint(True, index),
            }
        rows = {name: work for name, work in rows.items() if args.only in name}
        for name, work in rows.items():
            work(True)  # imports
            found[name] = []
            for number in range(args.rounds):
                order = (False, True) if number % 2 else (True, False)
                took = {index: cpu_s(partial(work, index)) for index in order}
                found[name].append((took[False] / args.samples * 1e6, took[True] / args.samples * 1e6))
            without, with_it = (statistics.median(values) for values in zip(*found[name], strict=True))
            ratio = statistics.median(more / less for less, more in found[name])
            print(
                f"{name:36s} {without:7.1f} us a sample, with the index {with_it:7.1f}: {ratio - 1:+.1%}",
                flush=True,
            )
    if args.json:
        about = {
            "commit": _commit(),
            "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
            "samples": args.samples,
            "xxh64": hashed / args.samples * 1e6,
        }
        args.json.write_text(json.dumps({**about, "rows": found}, indent=1))


def _commit():
    command = ["git", "-C", str(pathlib.Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def _to_cluster(cluster, count, samples, index):
    count[0] += 1
    with ShardWriter(
        f"ais://cost/{count[0]}/w-%03d.tar", maxcount=1000, index=index, cluster=cluster
    ) as writer:
        for sample in samples:
            writer.write(sample)


if __name__ == "__main__":
    main()
