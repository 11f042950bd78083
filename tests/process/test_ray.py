"""Ray Data over shards and indexes, on a local Ray of two workers and a real cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais.errors import MissingLibraryError
from torchdata_ais.testing import example_shards

PROGRAM = """
import sys
import ray
from torchdata_ais import AISFileLoader, SampleIndex, StoreOptions
from torchdata_ais.errors import UsageError
from torchdata_ais.integrations.ray import IndexDatasource, ShardDatasink, ShardDatasource
from torchdata_ais.local import LocalCluster

folder = sys.argv[1]
with LocalCluster() as cluster:
    cluster.put_dir(folder + "/in", "ais://in")
    options = StoreOptions(endpoint=cluster.endpoint)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[2])
    ray.data.DataContext.get_current().enable_progress_bars = False

    ds = ray.data.read_datasource(ShardDatasource("ais://in/shard-", cluster=options))
    rows = sorted(ds.take_all(), key=lambda row: row["__key__"])
    assert [(row["__key__"], row["cls"], row["txt"]) for row in rows] == [
        (f"{n:05d}", b"%d" % n, b"x" * n) for n in range(40)
    ], rows

    index = SampleIndex.build("ais://in/shard-", cluster=options)
    some = IndexDatasource(index[10:30], fields="cls none")
    ds = ray.data.read_datasource(some, override_num_blocks=3)
    assert ds.count() == 20
    rows = sorted(ds.take_all(), key=lambda row: row["__key__"])
    assert [row["cls"] for row in rows] == [b"%d" % n for n in range(10, 30)]
    assert {row["none"] for row in rows} == {None}

    def larger(row):
        return {**row, "cls": int(row["cls"]) + 100, "json": {"was": row["cls"].decode()}, "seg.txt": None}

    cluster.client().bucket("out").create()
    for pattern, given in ((folder + "/out/s-%06d.tar", None), ("ais://out/s-%06d.tar", options)):
        sink = ShardDatasink(pattern, maxcount=7, index=True, cluster=given)
        ray.data.read_datasource(ShardDatasource("ais://in/shard-", cluster=options)).map(larger).write_datasink(sink)
        names = [shard.name for shard in sink.shards]
        assert sum(shard.samples for shard in sink.shards) == 40 and len(names) >= 6, names
        beginning = pattern.partition("%")[0] + ("*" if given is None else "")
        found = SampleIndex.open(beginning, cluster=given)
        assert len(found) == 40 and found.proof == "bytes", found
        samples = list(AISFileLoader(names, cluster=given).group_samples())
        assert sorted(int(sample["cls"]) for sample in samples) == list(range(100, 140))
        assert set(samples[0]) == {"__key__", "__url__", "cls", "json", "txt"}, samples[0]
        try:
            ray.data.range(1).write_datasink(ShardDatasink(pattern, cluster=given))
        except UsageError as error:
            assert "shards of this pattern already" in str(error)
        else:
            raise AssertionError("nothing was said")
    try:
        ray.data.from_items([{"__key__": "a.b", "txt": "x"}]).write_datasink(ShardDatasink(folder + "/bad/s-%d.tar"))
    except Exception as error:
        assert "a dot in its last part" in str(error), error
    else:
        raise AssertionError("nothing was said")
    assert not list(__import__("pathlib").Path(folder, "bad").iterdir())
    ray.shutdown()
print("all of it")
"""


@pytest.mark.ci
@pytest.mark.timeout(240)
def test_a_local_ray_reads_and_writes_shards_with_their_index(tmp_path: Path) -> None:
    pytest.importorskip("ray.data")
    (tmp_path / "in").mkdir()
    example_shards(tmp_path / "in", counts=[13, 1, 20, 6])
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory(
        prefix="ray-", dir="/tmp"
    ) as short:  # names of sockets: at most 107 bytes
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path), short],
            capture_output=True, text=True, timeout=220, cwd=tmp_path,
            env={
                **os.environ, "PYTHONPATH": path, "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_AUTH_MODE": "disabled",
            },
        )  # fmt: skip
    assert done.stdout.endswith("all of it\n"), done.stdout[-2000:] + done.stderr[-6000:]


def test_without_ray_the_extra_is_named() -> None:
    try:
        import ray.data  # noqa: F401
    except ImportError:
        pass
    else:
        pytest.skip("Ray is installed")
    from torchdata_ais.integrations.ray import ShardDatasink, ShardDatasource

    kinds: list[Any] = [ShardDatasource, ShardDatasink]
    for kind in kinds:
        with pytest.raises(MissingLibraryError, match=r"pip install \"ray\[data\]\""):
            kind("s-%d.tar")
