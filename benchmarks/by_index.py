"""Samples by index beside the stream and beside single Ranges; what a part of the data costs; what a request costs.

    python benchmarks/by_index.py [--rounds 5] [--samples N] [--server PID ...] [--only at-random] [--json FILE]

The rows take turns in each round, first to last and then last to first, over the same shards on the same server
(`AIS_ENDPOINT`, else an embedded cluster); shown are median, smallest and largest of the rounds, the ratio is taken
within each round, and the processor time of this process a sample, with ``--server`` that of the cluster's processes,
too: on one machine both bound the speed. Every row must give each sample it was asked for, or
the run ends. ``GetBatch, bare`` is what the server alone allows: urllib3 reads the same answers and looks at nothing.
"""

import argparse
import datetime as dt
import json
import multiprocessing
import os
import pathlib
import random
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import shards
import urllib3

from torchdata_ais import AISSampleReader, AISSourceLister, SampleIndex, ais_loader
from torchdata_ais.store import StoreOptions, concurrency_limit_of
from torchdata_ais.store.transport.batches import Asked, _encoded, _place_of

SMALL = shards.Shape("ten", shards=8, samples=1000, size=10_000)
JPEG = shards.JPEG


def cpu_us(begin, count):
    return (time.process_time() - begin) / count * 1e6


def cpu_of(pids):
    """Processor seconds of these processes so far."""
    found = 0.0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def bare(index, order, options, entries=76, threads=8):
    """Ask for the same ranges by GetBatch, as many in a request as the reader asks for, and throw them away."""
    references = index.take(order)
    bodies = []
    for begin in range(0, len(references), entries):
        wanted = [
            {"objname": one.shard.name.rpartition("/")[2], "start": one.start, "length": one.size}
            for one in references[begin : begin + entries]
        ]
        body = {"in": wanted, "mime": ".tar", "coer": True, "onob": False, "strm": True}
        bodies.append(json.dumps(body).encode())
    url = f"{options.endpoint}/v1/ml/moss/{shards.BUCKET}?provider=ais"

    def answered(body):
        came, response = 0, pool.urlopen("GET", url, body=body, redirect=False, preload_content=False)
        while response.status in (301, 307):
            response.drain_conn()
            location = response.headers["Location"]
            response = pool.urlopen("GET", location, body=body, redirect=False, preload_content=False)
        while data := response.read(1 << 20):
            came += len(data)
        response.release_conn()
        return came

    begin, cpu = time.perf_counter(), time.process_time()
    with urllib3.PoolManager(maxsize=threads) as pool, ThreadPoolExecutor(threads) as executor:
        came = sum(executor.map(answered, bodies))
    seconds = time.perf_counter() - begin
    if came < sum(one.size for one in references):
        raise SystemExit(f"{came} bytes")
    return len(order) / seconds, came, seconds, cpu_us(cpu, len(order))


def read(index, order, options, batches):
    """Read samples by number; return how many a second, and the bytes that came."""
    pace = concurrency_limit_of(options.endpoint)
    pace.batches = batches
    reader = AISSampleReader(index, positions=order, cluster=options)
    begin, cpu = time.perf_counter(), time.process_time()
    count = sum(1 for _ in reader)
    seconds = time.perf_counter() - begin
    if count != len(order):
        raise SystemExit(f"{count} samples of {len(order)}")
    return count / seconds, reader.counts().bytes, seconds, cpu_us(cpu, count)


def read_in_two(index, order, options):
    """Read half of the samples in each of two processes, as two ranks do."""
    context = multiprocessing.get_context("fork")
    halves = [context.Process(target=read, args=(index, order[half::2], options, True)) for half in (0, 1)]
    begin, cpu = time.perf_counter(), sum(os.times()[2:4])
    for process in halves:
        process.start()
    for process in halves:
        process.join()
    seconds = time.perf_counter() - begin
    if any(process.exitcode for process in halves):
        raise SystemExit("a process did not get its samples")
    return len(order) / seconds, 0, seconds, (sum(os.times()[2:4]) - cpu) / len(order) * 1e6


def stream(source, count, options):
    """Read the same shards in turn."""
    begin, cpu = time.perf_counter(), time.process_time()
    pipe = AISSourceLister(source, cluster=options).load_tar().group_samples()
    found = sum(1 for _ in pipe)
    seconds = time.perf_counter() - begin
    if found != count:
        raise SystemExit(f"{found} samples of {count}")
    return found / seconds, 0, seconds, cpu_us(cpu, found)


def decoded(pipe, count):
    """Decode and resize with two workers."""
    pipe = pipe.decode("torchrgb8", size=224, only="jpg cls").to_tuple("jpg", "cls").batched(64)
    with ais_loader(pipe, num_workers=2, seed=0) as loader:
        begin = time.perf_counter()
        found = sum(len(labels) for _, labels in loader)
        seconds = time.perf_counter() - begin
    if found != count:
        raise SystemExit(f"{found} samples of {count}")
    return found / seconds, 0, seconds, None


def measured(rows, rounds, server=()):
    """Return what each row gave in each round, and the processor seconds of the server."""
    found = {name: [] for name in rows}
    for number in range(rounds):
        for name in list(rows)[:: -1 if number % 2 else 1]:
            before = cpu_of(server)
            result = rows[name]()
            time.sleep(0.2 if server else 0)  # answers end later than their last entry
            found[name].append((*result, cpu_of(server) - before))
    return found


def show(title, found, base, counts=None):
    print(f"\n{title}")
    for name, values in found.items():
        speeds = [value[0] for value in values]
        ratios = [value[0] / other[0] for value, other in zip(values, found[base], strict=True)]
        print(
            f"  {name:40s} {statistics.median(speeds):8.0f} [{min(speeds):.0f}-{max(speeds):.0f}] samples/s,"
            f" {statistics.median(ratios):.2f} of {base}"
            + (
                ""
                if values[0][3] is None
                else f", {statistics.median(value[3] for value in values):.0f} us of CPU"
            )
            + (
                f", {statistics.median(value[4] for value in values) / counts[name] * 1e6:.0f} in the server"
                if counts and any(value[4] for value in values)
                else ""
            )
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
    parser.add_argument("--server", type=int, nargs="+", default=[], help="processes of a real cluster here")
    parser.add_argument("--only", choices=["at-random"], help="JPEGs of 110 KB at random, and nothing else")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    results = about()
    print(results)
    with shards.served([SMALL, JPEG]) as endpoint:
        options = StoreOptions(endpoint=endpoint)
        shapes = ((SMALL, "records of 10 KB"), (JPEG, "JPEGs of 110 KB"))
        for shape, title in shapes[1 if args.only else 0 :]:
            source = f"ais://{shards.BUCKET}/{shape.prefix}"
            index = SampleIndex.build(source, method="read", cluster=options)
            order = random.Random(1).sample(range(len(index)), min(args.samples, len(index)))
            rows = {
                "stream": partial(stream, source, len(index), options),
                "single Ranges": partial(read, index, order, options, False),
                "GetBatch": partial(read, index, order, options, True),
                "GetBatch, two processes": partial(read_in_two, index, order, options),
                "GetBatch, bare": partial(bare, index, order, options),
            }
            if args.only:
                del rows["single Ranges"]
            counts = {name: len(index) if name == "stream" else len(order) for name in rows}
            results[title] = measured(rows, args.rounds, args.server)
            show(f"{title}, at random", results[title], "stream" if args.only else "single Ranges", counts)
            if args.only:
                break
            few = order[: max(1, len(index) // 100)]
            _, came, seconds, _ = read(index, few, options, True)
            whole = sum(row.size for row in index.shards)
            all_s = statistics.median(value[2] for value in results[title]["stream"])
            print(f"  1 %: {came / whole:.2%} of the bytes, {seconds / all_s:.1%} of the stream's time")
        else:
            results |= decoding(index, source, options, args.rounds)
            print(f"\na request: {microseconds_of_a_request(index, options):.2f} us an entry")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


def decoding(index, source, options, rounds):
    lister = AISSourceLister(source, cluster=options).shuffle().load_tar().group_samples()
    rows = {
        "stream": partial(decoded, lister.shuffled(1000), len(index)),
        "by index": partial(decoded, AISSampleReader(index, shuffle="samples", cluster=options), len(index)),
    }
    found = measured(rows, rounds)
    show("decode and resize, 2 workers, shuffled", found, "stream")
    return {"decode": found}


def about():
    command = ["git", "-C", str(pathlib.Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "commit": commit,
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
    }


if __name__ == "__main__":
    main()
