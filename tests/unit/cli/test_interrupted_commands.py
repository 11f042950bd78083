"""What was broken off leaves nothing: no bucket, no folder, no part of a file, whatever the moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from torchdata_ais.cli import app
from torchdata_ais.cli._objects import Bucket, new_bucket
from torchdata_ais.cli.checks import lint_shards
from torchdata_ais.cli.checks.resharding import reshard
from torchdata_ais.local import Status
from torchdata_ais.store import StoreOptions
from torchdata_ais.testing import example_shards
from torchdata_ais.urls import parse_url


class Interrupted(Bucket):
    """Ctrl-C when the cluster has made the bucket, and its answer is on the way."""

    def create(self) -> None:
        super().create()
        raise KeyboardInterrupt


def test_a_bucket_whose_answer_never_came_goes_again(ais_cluster: Any, ais_client: Any) -> None:
    def names() -> list[str]:
        return [one.name for one in ais_client.cluster().list_buckets()]

    options, place = StoreOptions(ais_cluster.endpoint), parse_url("ais://broken-off")
    with pytest.raises(KeyboardInterrupt), new_bucket(Interrupted.of(place, options)):
        raise AssertionError("it is not reached")
    assert "broken-off" not in names()
    ais_client.bucket("broken-off").create()
    try:
        with pytest.raises(KeyboardInterrupt), new_bucket(Bucket.of(place, options)):
            raise KeyboardInterrupt
        assert "broken-off" in names(), "what was there stays"
    finally:
        ais_client.bucket("broken-off").delete()


@pytest.mark.parametrize("there", [False, True])
def test_folders_that_get_made_go_again_when_nothing_comes_into_them(
    there: bool,
    ais_cluster: Any,
    ais_bucket: Any,
    ais_faults: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIS_ENDPOINT", ais_cluster.endpoint)
    monkeypatch.chdir(tmp_path)
    ais_bucket.object("a/b/s.bin").get_writer().put_content(b"1" * 4000)
    if there:
        (tmp_path / "out").mkdir()
    ais_faults.add(Status(404), verb="GET", object="a/b/s.bin", bucket=ais_bucket.name)
    done = CliRunner().invoke(app, ["get", f"ais://{ais_bucket.name}/a", "out/"])
    assert done.exit_code == 1, done.output
    assert sorted(path.name for path in tmp_path.rglob("*")) == (["out"] if there else [])


def test_good_samples_that_are_not_written_after_all_leave_no_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    report = lint_shards(example_shards(tmp_path / "in"))

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reshard(report, f"{tmp_path}/out/deep/%03d.tar", progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


PROGRAM = """
import os, signal, sys
from torchdata_ais import ShardWriter
signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupt(event, arguments):
    if event == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(interrupt)
try:
    with ShardWriter("s-%d.tar", maxcount=1) as writer:
        writer.write({"__key__": "a", "txt": "x"})
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("event", ["os.truncate", "os.rename"])
def test_ctrl_c_where_a_shard_begins_or_ends_leaves_no_part(event: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, event], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"s-0.tar"}


def test_a_cluster_without_space_is_told_as_such(ais_cluster: Any, ais_bucket: Any, ais_faults: Any) -> None:
    from torchdata_ais.errors import ReadError
    from torchdata_ais.store import put_object

    ais_faults.add(Status(507), verb="PUT", object="x", bucket=ais_bucket.name)
    with pytest.raises(ReadError, match="Make room on the disks of the cluster"):
        put_object(f"ais://{ais_bucket.name}/x", b"1", StoreOptions(ais_cluster.endpoint))
