"""What planning costs: processor time, not the clock's, so that a busy machine shows the same figures.

    python benchmarks/plan.py [--shards 1000000] [--json FILE]

An index of `--shards` shards of 1,000 samples is made in a temporary folder first. Each figure is the
smallest of several rounds.
"""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import shards

from torchdata_ais import AISSampleReader, Mixture, SampleIndex, ais_loader
from torchdata_ais.plan import Permutation, Run, Sources, round_weights
from torchdata_ais.testing import example_shards

sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests/unit/index"))

FIRST_BATCH = """
import sys, time
import pyarrow.compute
from torchdata_ais import AISSampleReader, SampleIndex, ais_loader

def private():
    return sum(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Private")) / 1024

def first_batch(where):
    index = SampleIndex.open(where, shards_from="ais://large/")
    with ais_loader(AISSampleReader(index, shuffle="samples").batched(256), seed=1) as loader:
        return index, loader.samples_of(0)

first_batch(sys.argv[2])
before, began = private(), time.process_time()
index, batch = first_batch(sys.argv[1])
took = time.process_time() - began
print(len(index), len(batch), took, private() - before)
"""


def least(call, rounds=5):
    """Return the processor seconds of the quickest of some calls."""
    found = []
    for _ in range(rounds):
        begin = time.process_time()
        call()
        found.append(time.process_time() - begin)
    return min(found)


def of_first_batch(count):
    """Plan and look up the first batch of a large index, in a process of its own; return seconds and MiB."""
    from test_scale import write_large

    with tempfile.TemporaryDirectory() as folder:
        large, small = pathlib.Path(folder, "large"), pathlib.Path(folder, "small")
        write_large(large, count)
        write_large(small, 10)
        runs = []
        for _ in range(3):
            command = [sys.executable, "-c", FIRST_BATCH, str(large), str(small)]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            if (int(said[0]), int(said[1])) != (1000 * count, 256):
                raise SystemExit(f"not what was to be planned: {said}")
            runs.append((float(said[2]), float(said[3])))
    return min(seconds for seconds, _ in runs), max(size for _, size in runs)


def of_permutation(n, calls=200, at_once=4096):
    """Return microseconds an index, in calls of 4,096."""
    order = Permutation(n, key=7)
    positions = np.random.default_rng(1).integers(0, n, (calls, at_once))
    return 1e6 * least(lambda: [order.take(some) for some in positions]) / positions.size


def run_over(samples, weights, batch, ranks):
    return Run.begun(
        Sources(samples, weights=round_weights(weights), stop="first", shuffle="samples"),
        1,
        batch,
        ranks=ranks,
    )


def of_planning(run, steps):
    """Return microseconds a sample, planned as a worker plans: 1,024 positions at a time."""

    def plan():
        planned = 0
        for begin in range(0, steps, 4):
            positions = np.concatenate([run.positions(step) for step in range(begin, begin + 4)])
            planned += len(run.at(positions).index)
        return planned

    planned = plan()
    return 1e6 * least(plan) / planned


def of_decoding(folder):
    """Return microseconds of planning, of looking up and of all that is done for a sample of a decoding pipe."""
    pictures = [("jpg", data) for data in shards.pictures()]
    for number, name in enumerate(("a", "b")):
        shards._write(pathlib.Path(folder, f"{name}.tar"), pictures, 200 * number, 200)
    index = SampleIndex.build(folder)
    reader = AISSampleReader(index, shuffle="samples")
    pipe = reader.decode("torchrgb8", size=224, only="jpg cls").to_tuple("jpg", "cls").batched(64)
    with ais_loader(pipe) as loader:
        whole = least(lambda: list(loader), rounds=3)
    run = run_over((len(index),), [1], 64, 1)
    positions = np.arange(len(index))
    looked_up = least(lambda: reader.data.look_up(run, positions), rounds=5)
    planned = least(lambda: run.at(positions))
    return tuple(1e6 * seconds / len(index) for seconds in (planned, looked_up, whole))


def of_state(folder):
    """Return the bytes of a state over four sources, in the middle of an epoch."""
    indexes = []
    for number in range(4):
        place = pathlib.Path(folder, str(number))
        place.mkdir()
        indexes.append(SampleIndex.build(example_shards(place, (30 + number,))))
    mixture = Mixture(dict(zip(indexes, (0.4, 0.3, 0.2, 0.1), strict=True)), stop="never")
    pipe = AISSampleReader(mixture, shuffle="samples").to_tuple("cls").batched(4)
    with ais_loader(pipe, seed=2**62, epoch_steps=100_000) as loader:
        for _ in zip(range(9), loader):  # noqa: B905 - nine batches
            pass
        return len(json.dumps(loader.state_dict()))


def of_spread(count=1000, batch=256, steps=200):
    """Return how many of the shards a batch touches: the fewest and the mean."""
    run = run_over((count * 1000,), [1], batch, 1)
    found = [len(np.unique(run.at(run.positions(step)).index // 1000)) for step in range(steps)]
    return min(found), sum(found) / len(found)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shards", type=int, default=1_000_000, help="of the large index, 1,000 samples each"
    )
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(2)]
        seconds, size = of_first_batch(args.shards)
        planned, looked_up, whole = of_decoding(folders[0])
        fewest, mean = of_spread()
        large = run_over((10**9,), [1], 256, 1)
        mixed = run_over((10**9,) * 4, [4, 3, 2, 1], 256, 1)
        rows = [
            (
                f"first batch of 256 of {1000 * args.shards:.0e} samples, index opened",
                f"{seconds:.2f} s",
                "1 s",
            ),
            ("private memory for it", f"{size:.0f} MiB", "64 MiB"),
            (
                "a position of 2**30 + 1, permuted 4,096 at a time",
                f"{of_permutation((1 << 30) + 1):.2f} us",
                "0.5 us",
            ),
            ("planning a sample of 1e9", f"{of_planning(large, 400):.2f} us", "1 us"),
            ("planning a sample of a mixture of 4 sources", f"{of_planning(mixed, 400):.2f} us", "1 us"),
            ("planning, of all that a decoding pipe does", f"{planned / whole:.3%}", "1 %"),
            ("planning and looking up where a sample stands", f"{looked_up / whole:.2%}", ""),
            ("a state over 4 sources", f"{of_state(folders[1])} bytes", "1,024 bytes"),
            ("shards in a batch of 256, of 1,000: fewest, mean", f"{fewest}, {mean:.0f}", "200"),
        ]
    width = max(len(row[0]) for row in rows)
    for what, found, must in rows:
        print(f"{what:<{width}}  {found:>12}  {must}")
    if args.json:
        args.json.write_text(json.dumps({what: found for what, found, _ in rows}, indent=1))


if __name__ == "__main__":
    main()
