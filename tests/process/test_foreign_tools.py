"""Energon, DALI, wids and Lhotse themselves: what they write is opened, and what is exported they read."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.shards import odd_shards

from torchdata_ais import AISSampleReader, SampleIndex
from torchdata_ais.errors import SampleIndexError
from torchdata_ais.testing import example_shards, write_shard

pytestmark = [pytest.mark.ci, pytest.mark.timeout(300)]


def samples(index: SampleIndex) -> list[dict[str, Any]]:
    return [dict(sample) for sample in AISSampleReader(index)]


def needs(module: str) -> None:
    """Skip where a tool is not installed; it is not imported here, as some warn."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        pytest.skip(f"{module} is not installed")


def run(program: str, *arguments: object) -> str:
    """Run a program of another tool in a process of its own, and return what it prints last."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().rpartition("\n")[2]


PREPARE = """
import sys
from pathlib import Path
from typing import Any
from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator
if __name__ == "__main__":
    folder, *shards = sys.argv[1:]
    WebdatasetPreparator.prepare_dataset(Path(folder), shards, split_parts_ratio=[("train", 1.0)], workers=1)
"""
TRAIN = """
import json, sys
from megatron.energon import (Cooker, DefaultTaskEncoder, TextSample, WorkerConfig, basic_sample_keys,
                              get_savable_loader, get_train_dataset, stateless)
@stateless
def cook(sample):
    return TextSample(**basic_sample_keys(sample), text=sample["cls"])
class Encoder(DefaultTaskEncoder):
    decoder = None
    cookers = [Cooker(cook)]
    def batch(self, samples):
        return samples
    def encode_batch(self, batch):
        return batch
config = WorkerConfig(rank=0, world_size=1, num_workers=0)
data = get_train_dataset(sys.argv[1], worker_config=config, batch_size=1, shuffle_buffer_size=None,
                         max_samples_per_sequence=None, repeat=False, task_encoder=Encoder())
samples = [sample for batch in get_savable_loader(data) for sample in batch]
print(json.dumps([[sample.__key__, bytes(sample.text).decode()] for sample in samples]))
"""
CRUDE = """
__module__: megatron.energon
__class__: CrudeWebdataset
"""


def test_energon_s_own_index_and_ours_are_the_same(tmp_path: Path) -> None:
    needs("megatron.energon")
    shards = odd_shards(tmp_path)
    run(PREPARE, tmp_path, *(Path(shard).name for shard in shards))
    index = SampleIndex.open(tmp_path)
    built = SampleIndex.build(shards)
    assert samples(index) == samples(built)
    theirs = [Path(f"{shard}.idx").read_bytes() for shard in shards]
    counts = json.loads((tmp_path / ".nv-meta/.info.json").read_text())["shard_counts"]
    built.export("energon")
    assert [Path(f"{shard}.idx").read_bytes() for shard in shards] == theirs
    assert json.loads((tmp_path / ".nv-meta/.info.json").read_text())["shard_counts"] == counts


def test_energon_trains_on_what_is_exported(tmp_path: Path) -> None:
    needs("megatron.energon")
    index = SampleIndex.build(example_shards(tmp_path, counts=(5, 4)))
    index.export("energon")
    (tmp_path / ".nv-meta/dataset.yaml").write_text(CRUDE)
    read = json.loads(run(TRAIN, tmp_path))
    assert sorted(key.rpartition("/")[2] for key, _ in read) == list(index.keys)
    assert all(int(key.rpartition("/")[2]) == int(label) for key, label in read)


WDS2IDX = """
import sys
from wds2idx import IndexCreator
for shard in sys.argv[1:]:
    with IndexCreator(shard, shard[:-4] + ".idx", verbose=False) as creator:
        creator.create_index()
"""
READ_DALI = """
import json, sys
from nvidia.dali import fn, pipeline_def
shards = sys.argv[1:]
@pipeline_def(batch_size=4, num_threads=1, device_id=None)
def read():
    return tuple(fn.readers.webdataset(paths=shards, index_paths=[s[:-4] + ".idx" for s in shards], ext=["cls", "txt"],
                                       missing_component_behavior="empty"))
pipe = read()
pipe.build()
found = []
for _ in range(3):
    labels, texts = pipe.run()
    found += [[bytes(labels.at(n)).decode(), bytes(texts.at(n)).decode()] for n in range(len(labels))]
print(json.dumps(found))
"""


def test_dali_s_own_index_is_opened(tmp_path: Path) -> None:
    needs("wds2idx")
    shards = odd_shards(tmp_path)
    wanted = samples(SampleIndex.build(shards))
    run(WDS2IDX, *shards)
    assert samples(SampleIndex.open(tmp_path / "s-*.idx")) == wanted
    plain = example_shards(tmp_path / "plain", counts=(5, 4)) if (tmp_path / "plain").mkdir() is None else []
    run(WDS2IDX, *plain)
    theirs = [Path(shard).with_suffix(".idx").read_text() for shard in plain]
    SampleIndex.build(plain).export("dali")
    assert [Path(shard).with_suffix(".idx").read_text() for shard in plain] == theirs


def test_dali_reads_what_is_exported(tmp_path: Path) -> None:
    needs("nvidia.dali")
    shards = example_shards(tmp_path, counts=(5, 4))
    SampleIndex.build(shards).export("dali")
    read = json.loads(run(READ_DALI, *shards))
    assert read[:9] == [[str(number), "x" * number] for number in range(9)]


CREATE_WIDS = """
import sys
sys.argv = ["widsindex", "create", *sys.argv[2:], "--output", sys.argv[1], "--name", "x"]
from wids.wids_index import main
main()
"""
READ_WIDS = """
import json, sys
import wids
data = wids.ShardListDataset(sys.argv[1], cache_dir=sys.argv[2], transformations=[])
print(json.dumps([[data[n]["__key__"], data[n][".cls"].read().decode()] for n in range(len(data))]))
"""


def test_wids_own_index_is_opened_and_ours_is_read(tmp_path: Path) -> None:
    needs("wids")
    shards = example_shards(tmp_path, counts=(5, 4))
    run(CREATE_WIDS, tmp_path / "theirs.json", *shards)
    index = SampleIndex.open(tmp_path / "theirs.json")
    assert samples(index) == samples(SampleIndex.build(shards))
    (ours,) = index.export("wids")
    read = json.loads(run(READ_WIDS, ours, tmp_path / "cache"))
    assert read == [[f"{number:05d}", str(number)] for number in range(9)]


def test_a_sample_that_wids_does_not_see_is_told(tmp_path: Path) -> None:
    """Its reader cuts names of GNU tar at 100 bytes."""
    needs("wids")
    shards = odd_shards(tmp_path)
    run(CREATE_WIDS, tmp_path / "theirs.json", *shards)
    with pytest.raises(SampleIndexError, match="it says 4 samples, and the shard has 5") as caught:
        SampleIndex.open(tmp_path / "theirs.json")
    assert caught.value.url == shards[2]


CREATE_LHOTSE = """
import sys
from lhotse.indexing import create_tar_index
create_tar_index(sys.argv[1])
"""


def test_lhotse_s_own_index_is_opened(tmp_path: Path) -> None:
    needs("lhotse.indexing")
    members = [(f"cut-{n}.{end}", b"x" * n) for n in range(7) for end in ("flac", "json")]
    shard = write_shard(tmp_path / "recording.000000.tar", members)
    run(CREATE_LHOTSE, shard)
    assert samples(SampleIndex.open(f"{shard}.idx")) == samples(SampleIndex.build(shard))
    dotted = write_shard(
        tmp_path / "b.tar", [(f"a-{n}.5-1.{end}", b"") for n in (1, 1) for end in ("flac", "json")][:2]
    )
    run(CREATE_LHOTSE, dotted)
    assert len(SampleIndex.open(f"{dotted}.idx")) == 1
    three = [("a.flac", b""), ("a.json", b""), ("a.1.flac", b""), ("a.1.json", b"")]
    shard = write_shard(tmp_path / "c.tar", three)  # two cuts for Lhotse, one key for WebDataset
    run(CREATE_LHOTSE, shard)
    with pytest.raises(SampleIndexError, match="2 samples, and the shard 1") as caught:
        SampleIndex.open(f"{shard}.idx")
    assert caught.value.url == shard
