"""Samples by index beside the stream and beside single Ranges; what a part of the data costs; what a request costs.

    python benchmarks/by_index.py [--rounds 5] [--samples N] [--json FILE]

The rows take turns in each round, first to last and then last to first, over the same shards on the same server
(`AIS_ENDPOINT`, else an embedded cluster); shown are median, smallest and largest of the rounds, the ratio is taken
within each round. Every row must give each sample it was asked for, or the run ends.
"""

import argparse
import json
import pathlib
import random
import statistics
import time
from functools import partial

import shards

from torchdata_ais import AISSampleReader, AISSourceLister, SampleIndex, ais_loader
from torchdata_ais.store import StoreOptions, pace_of
from torchdata_ais.store.batch_archive import Asked
from torchdata_ais.store.batches import _encoded, _place_of

SMALL = shards.Shape("ten", shards=8, samples=1000, size=10_000)
JPEG = shards.JPEG


def read(index, order, options, batches):
    """Read samples by number; return how many a second, and the bytes that came."""
    pace = pace_of(options.endpoint)
    pace.batches = batches
    reader = AISSampleReader(index, positions=order, cluster=options)
    begin = time.perf_counter()
    count = sum(1 for _ in reader)
    seconds = time.perf_counter() - begin
    if count != len(order):
        raise SystemExit(f"{count} samples of {len(order)}")
    return count / seconds, reader.counts().bytes, seconds


def stream(source, count, options):
    """Read the same shards in turn."""
    begin = time.perf_counter()
    pipe = AISSourceLister(source, cluster=options).load_tar().group_samples()
    found = sum(1 for _ in pipe)
    seconds = time.perf_counter() - begin
    if found != count:
        raise SystemExit(f"{found} samples of {count}")
    return found / seconds, 0, seconds


def decoded(pipe, count):
    """Decode and resize with two workers."""
    pipe = pipe.decode("torchrgb8", size=224, only="jpg cls").to_tuple("jpg", "cls").batched(64)
    with ais_loader(pipe, num_workers=2, seed=0) as loader:
        begin = time.perf_counter()
        found = sum(len(labels) for _, labels in loader)
        seconds = time.perf_counter() - begin
    if found != count:
        raise SystemExit(f"{found} samples of {count}")
    return found / seconds, 0, seconds


def measured(rows, rounds):
    """Return what each row gave in each round."""
    found = {name: [] for name in rows}
    for number in range(rounds):
        for name in list(rows)[:: -1 if number % 2 else 1]:
            found[name].append(rows[name]())
    return found


def show(title, found, base):
    print(f"\n{title}")
    for name, values in found.items():
        speeds = [value[0] for value in values]
        ratios = [value[0] / other[0] for value, other in zip(values, found[base], strict=True)]
        print(
            f"  {name:40s} {statistics.median(speeds):8.0f} [{min(speeds):.0f}-{max(speeds):.0f}] samples/s,"
            f" {statistics.median(ratios):.2f} of {base}"
        )


def microseconds_of_a_request(index, options, entries=256):
    """Return what making one entry of a request costs: its place, and its part of the JSON."""
    references = index.take(random.Random(0).choices(range(len(index)), k=entries))
    wanted = [(one.shard.name, one.start, one.size) for one in references]

    def make():
        places = [_place_of(url, options.endpoint) for url, _, _ in wanted]
        asked = [
            Asked(number, f"{place.bucket}/{place.name}", start, length)
            for number, (place, (_, start, length)) in enumerate(zip(places, wanted, strict=True))
        ]
        return _encoded(asked, places, places[0].bucket)

    make()
    begin = time.process_time()
    for _ in range(100):
        make()
    return (time.process_time() - begin) / 100 / entries * 1e6


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=3000, help="read at random in a row")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    results = {}
    with shards.served([SMALL, JPEG]) as endpoint:
        options = StoreOptions(endpoint=endpoint)
        for shape, title in ((SMALL, "records of 10 KB"), (JPEG, "JPEGs of 110 KB")):
            source = f"ais://{shards.BUCKET}/{shape.prefix}"
            index = SampleIndex.build(source, method="read", cluster=options)
            order = random.Random(1).sample(range(len(index)), min(args.samples, len(index)))
            rows = {
                "stream": partial(stream, source, len(index), options),
                "single Ranges": partial(read, index, order, options, False),
                "GetBatch": partial(read, index, order, options, True),
            }
            results[title] = measured(rows, args.rounds)
            show(f"{title}, at random", results[title], "single Ranges")
            few = order[: max(1, len(index) // 100)]
            _, came, seconds = read(index, few, options, True)
            whole = sum(row.size for row in index.shards)
            all_s = statistics.median(value[2] for value in results[title]["stream"])
            print(f"  1 %: {came / whole:.2%} of the bytes, {seconds / all_s:.1%} of the stream's time")
        lister = AISSourceLister(source, cluster=options).shuffle().load_tar().group_samples()
        rows = {
            "stream": partial(decoded, lister.shuffled(1000), len(index)),
            "by index": partial(
                decoded, AISSampleReader(index, shuffle="samples", cluster=options), len(index)
            ),
        }
        results["decode"] = measured(rows, args.rounds)
        show("decode and resize, 2 workers, shuffled", results["decode"], "stream")
        print(f"\na request: {microseconds_of_a_request(index, options):.2f} us an entry")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
