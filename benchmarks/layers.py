"""Where a sample's processor time goes: the chain built up layer by layer.

    python benchmarks/layers.py [--rounds 12] [--crop] [--json FILE]

One process with one thread for torch, one shard of 500 JPEGs from an embedded cluster, whose own time does not
count. All layers take turns in each round, so that what else the machine does hits all of them. Shown is what a sample
takes up to and with each, median and lower quarter: on a busy machine the latter is nearer to what a quiet one takes.
What a pass costs once, about 2 ms, is in it. Two series:

* bytes as stored: receiving, XXH64, the members, runs, samples, tuples, batches; beside the bare loop of `run.py`;
* images: the same, decoded, packed for another process and opened again; beside decoding out of memory.
"""

import argparse
import gc
import json
import pathlib
import statistics
import time
from dataclasses import replace

import bare
import peers
import run
import shards
import torch
import urllib3

from torchdata_ais import AISSourceLister, Decoder
from torchdata_ais.reading.runs import whole_runs
from torchdata_ais.store import StoreOptions, open_blocks
from torchdata_ais.tar import TarReader
from torchdata_ais.workers.memory import Lender
from torchdata_ais.workers.pickling import pack, unpack

SHAPE = replace(shards.JPEG, shards=1)
HOLD = 64  # as many as a batch, so that memory is used as a batch uses it


def drained(items):
    """Take all items, and hold a batch's worth of them."""
    held = []
    for item in items:
        held.append(item)
        if len(held) == HOLD:
            held = []


def received(url):
    pool = urllib3.PoolManager()
    response = pool.request("GET", url, preload_content=False, decode_content=False)
    while response.read1(1 << 20):
        pass
    response.release_conn()
    pool.clear()


def chain(job):
    lister = AISSourceLister(f"ais://{shards.BUCKET}/{job['template']}", cluster=job["endpoint"])
    return lister.load_tar().group_samples()


def undecoded(job):
    """Return the steps from the socket to a batch of bytes: a name, and what runs it."""
    place = f"ais://{shards.BUCKET}/{job['template']}"
    url = f"{job['endpoint']}/v1/objects/{shards.BUCKET}/{job['template']}?provider=ais"
    loud, silent = (StoreOptions(endpoint=job["endpoint"], verify=verify) for verify in (True, False))

    def blocks(options):
        with open_blocks(place, options) as source:
            yield from source

    return {
        "bare loop": lambda: drained(bare.reading(job)[0]),
        "receiving, by urllib3 alone": lambda: received(url),
        "receiving": lambda: drained(blocks(silent)),
        "XXH64": lambda: drained(blocks(loud)),
        "headers, members copied": lambda: drained(TarReader(blocks(loud))),
        "runs of members": lambda: drained(whole_runs(TarReader(blocks(loud)), url=url, max_bytes=1 << 30)),
        "samples, open shards": lambda: drained(chain(job)),
        "tuples": lambda: drained(chain(job).to_tuple("jpg", "cls")),
        "batches": lambda: drained(chain(job).to_tuple("jpg", "cls").batched(HOLD)),
    }


def decoded(job, crop):
    """Return the steps from bytes in memory to a batch of images in another process."""
    how = {"random_resized_crop": peers.SIZE, "flip": 0.5} if crop else {"size": peers.SIZE}
    images = Decoder("torchrgb8", **how)
    samples = list(chain(job))
    batch = torch.empty((HOLD, 3, peers.SIZE, peers.SIZE), dtype=torch.uint8)
    lender = Lender()

    def out_of_memory():
        for index, sample in enumerate(samples):
            batch[index % HOLD] = images.decode_field("jpg", sample["jpg"], index)

    def whole(fields):
        return chain(job).decode("torchrgb8", only=fields, **how)

    def batches():
        return whole("jpg cls").to_tuple("jpg", "cls").batched(HOLD)

    def packed():
        for one in batches():
            drained(unpack(pack(one, lender)))

    return {
        "decoding out of memory": out_of_memory,
        "reading": lambda: drained(chain(job)),
        "image and class decoded": lambda: drained(whole("jpg cls")),
        "tuples and batches": lambda: drained(batches()),
        "packed and opened again": packed,
        "with the .json decoded": lambda: drained(whole(None)),
    }


def measured(steps, rounds):
    """Return microseconds a sample of each step, one number a round."""
    found = {name: [] for name in steps}
    for step in steps.values():
        step()
    for number in range(rounds):
        for name in steps if number % 2 == 0 else reversed(steps):
            gc.collect()
            begin = time.process_time()
            steps[name]()
            found[name].append(1e6 * (time.process_time() - begin) / SHAPE.samples)
    return found


def quarter(values):
    return sorted(values)[len(values) // 4]


def show(title, found):
    print(f"\n{title}: processor time, us a sample\n\n| up to | median | lower quarter |\n|---|---|---|")
    for name, values in found.items():
        print(f"| {name} | {statistics.median(values):.0f} | {quarter(values):.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--crop", action="store_true", help="random crops instead of the whole picture")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {"surroundings": run.surroundings(), "rounds": arguments.rounds}
    with shards.served({SHAPE}) as endpoint:
        job = {"endpoint": endpoint, "template": SHAPE.names()[0], "repeat": 1, "record": "jpg"}
        for title, steps in (
            ("bytes as stored", undecoded(job)),
            ("images", decoded(job, arguments.crop)),
        ):
            results[title] = measured(steps, arguments.rounds)
            show(title, results[title])
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
