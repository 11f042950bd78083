"""What `trace=True` costs: CPU time a sample, with and without, in interleaved pairs.

    python benchmarks/trace_cost.py [--pairs 20] [--samples 4000]

CPU time of this process, not of the wall: other work on the machine does not count. Both loaders stay open, and each
pair is one epoch of either; which comes first changes from pair to pair. The median of the pairs' ratios is printed,
with the quartiles.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from torchdata_ais import AISSourceLister, ais_loader
from torchdata_ais.testing import write_shard

BATCH = 64


def pipes(shards: list[str]) -> dict[str, Any]:
    samples = AISSourceLister(shards).load_tar().group_samples()
    return {
        "not decoded": samples.to_tuple("bin", "cls").batched(BATCH),
        "decoded": samples.decode("torchrgb8", size=224).to_tuple("jpg", "cls").batched(BATCH),
    }


def seconds(loader: Iterable[Any]) -> float:
    """Return the CPU time of one epoch."""
    begin = time.process_time()
    for _ in loader:
        pass
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--samples", type=int, default=4000)
    given = parser.parse_args()
    logging.disable(logging.WARNING)  # of batches that hold bytes
    picture = BytesIO()
    Image.effect_noise((500, 375), 50).convert("RGB").save(picture, "JPEG", quality=85)
    with tempfile.TemporaryDirectory() as folder:
        members = {}
        for number in range(given.samples):
            fields = {"jpg": picture.getvalue(), "cls": b"1", "bin": bytes(4096)}
            members.update({f"{number:06}.{name}": data for name, data in fields.items()})
        shard = str(write_shard(Path(folder) / "s.tar", members))
        for name, pipe in pipes([shard]).items():
            shares, costs = [], []
            with ais_loader(pipe) as plain, ais_loader(pipe, trace=True) as traced:
                for loader in (plain, traced):
                    seconds(loader)  # the first epoch opens files and imports
                for pair in range(given.pairs):
                    order = (plain, traced) if pair % 2 else (traced, plain)
                    took = {loader: seconds(loader) for loader in order}
                    shares.append(took[traced] / took[plain] - 1)
                    costs.append((took[traced] - took[plain]) / given.samples)
            low, middle, high = statistics.quantiles(shares, n=4)
            print(
                f"{name}: {middle:+.2%} of CPU a sample (quartiles {low:+.2%} to {high:+.2%}), "
                f"{1e6 * statistics.median(costs):+.2f} us; {given.pairs} pairs of {given.samples} samples"
            )


if __name__ == "__main__":
    main()
