"""Reading by index uses the memory of the samples before again: the kernel need not clear pages for each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torchdata_ais import SampleIndex
from torchdata_ais.local import LocalCluster
from torchdata_ais.store import StoreOptions, put_object
from torchdata_ais.testing import shard_bytes

pytestmark = pytest.mark.ci

PROGRAM = """
import random, resource, sys
from torchdata_ais import SampleIndex
from torchdata_ais.reading.by_index import IndexedReader
from torchdata_ais.reading.requests import Wanted

index = SampleIndex.open(sys.argv[2], shards_from="ais://b/", cluster=sys.argv[1])
wanted = [Wanted(one) for one in index.take(random.Random(3).choices(range(len(index)), k=900))]
faults = []
for _ in range(5):
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    found = IndexedReader([index.options], 32 << 20).read([wanted])
    read = sum(len(run.members[0].data) for _, run in found)
    faults.append((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begun) / len(wanted))
print(read, *faults)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="about glibc")
def test_samples_at_random_fault_few_pages(tmp_path: Path) -> None:
    with LocalCluster() as cluster:
        cluster.client().bucket("b").create()
        data = shard_bytes({f"{number:02d}.jpg": bytes(110_000) for number in range(40)})
        put_object("ais://b/s.tar", data, StoreOptions(endpoint=cluster.endpoint))
        index = SampleIndex.build("ais://b/s.tar", method="read", cluster=cluster.endpoint)
        index.save(tmp_path / "index")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, cluster.endpoint, str(tmp_path / "index")],
            capture_output=True, text=True, check=True, timeout=50, cwd=Path(__file__).parents[3],
        )  # fmt: skip
    read, *faults = map(float, done.stdout.split())
    assert read == 900 * 110_000
    assert min(faults) < 10  # of the 27 pages of a sample
