"""Reads one shard to its end and prints by how much the memory of the process grew over its imports.

Run as ``python memory_program.py ENDPOINT URL STAGES``; prints ``samples bytes growth peak`` in bytes as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def resident(name: str) -> int:
    """A line of /proc/self/status in bytes: VmRSS, or VmHWM, its highest value since `forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def main(endpoint: str, url: str, stages: str) -> None:
    import torchdata_ais  # the measurement begins with everything imported

    pipe = torchdata_ais.AISSourceLister(url, cluster=endpoint).load_tar().group_samples()
    if stages == "decode":
        pipe = pipe.decode()
    forget_peak()
    before = resident("VmRSS")
    samples = size = 0
    for sample in pipe:
        samples += 1
        size += sum(len(value) for name, value in sample.items() if isinstance(value, bytes))
    growth = resident("VmRSS") - before
    peak = resident("VmHWM") - before
    print(json.dumps({"samples": samples, "bytes": size, "growth": growth, "peak": peak}))


if __name__ == "__main__":
    main(*sys.argv[1:])
