"""The life of a LocalCluster: start, stop, restart, death of the parent; and what it offers besides HTTP."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.waiting import is_living, until

import torchdata_ais.local
from torchdata_ais.errors import ConnectError, UsageError
from torchdata_ais.local import LocalCluster, coverage_table

pytestmark = pytest.mark.kills


def wait_until_gone(pid: int) -> None:
    until(lambda: not is_living(pid), what=f"process {pid} is still alive")


def test_start_and_stop_can_be_repeated() -> None:
    cluster = LocalCluster(targets=3)
    cluster.stop()
    cluster.start()
    pid, root = cluster.pid, cluster.root
    assert cluster.start() is cluster
    assert cluster.pid == pid
    assert len(cluster.target_urls) == 3
    cluster.stop()
    cluster.stop()
    assert not is_living(pid)
    assert not root.exists()
    with pytest.raises(UsageError, match="not running"):
        _ = cluster.endpoint
    with cluster:
        assert cluster.client().cluster().is_ready()


def test_a_port_in_use_is_an_error_that_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"Port {port} on 127.0.0.1 is in use"):
            LocalCluster(port=port).start()


def test_a_fixed_port_is_the_proxys() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with LocalCluster(port=port) as cluster:
        assert cluster.endpoint == f"http://127.0.0.1:{port}"


def test_no_targets_is_an_error() -> None:
    with pytest.raises(UsageError, match="targets=0"):
        LocalCluster(targets=0)


def test_a_root_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("not json")
    with pytest.raises(ConnectError, match="has ended"):
        LocalCluster(root=tmp_path).start()


def test_data_under_a_root_is_read_again_and_kept(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "root"
    with LocalCluster(targets=2, root=root) as cluster:
        uuid = cluster.client().cluster().get_uuid()
        bucket = cluster.client().bucket("keep").create()
        for number in range(5):
            bucket.object(f"o{number}").get_writer().put_content(b"x" * number)
        bucket.object("o3").get_writer().put_content(b"second")
        bucket.object("o3").get_writer().set_custom_props({"k": "v"})
        bucket.object("o4").delete()
        bucket.copy(cluster.client().bucket("copied"))
        cluster.client().bucket("gone").create().delete()
        bucket.rename("renamed")
    with LocalCluster(targets=3, root=root) as cluster:
        client = cluster.client()
        assert client.cluster().get_uuid() == uuid
        assert sorted(bucket.name for bucket in client.cluster().list_buckets()) == ["copied", "renamed"]
        bucket = client.bucket("renamed")
        assert [entry.name for entry in bucket.list_all_objects()] == ["o0", "o1", "o2", "o3"]
        assert bucket.object("o3").get_reader().read_all() == b"second"
        assert bucket.object("o3").props.obj_version == "2"
        assert bucket.object("o3").props.custom_metadata == {"k": "v"}
        assert client.bucket("copied").object("o2").get_reader().read_all() == b"xx"


def test_a_journal_that_ends_in_the_middle_of_a_line_loses_only_that_line(tmp_path: Path) -> None:
    with LocalCluster(root=tmp_path) as cluster:
        bucket = cluster.client().bucket("b").create()
        bucket.object("a").get_writer().put_content(b"a")
        bucket.object("b").get_writer().put_content(b"b")
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-10])
    with LocalCluster(root=tmp_path) as cluster:
        bucket = cluster.client().bucket("b")
        assert [entry.name for entry in bucket.list_all_objects()] == ["a"]
        bucket.object("b").get_writer().put_content(b"b2")
    with LocalCluster(root=tmp_path) as cluster:
        assert cluster.client().bucket("b").object("b").get_reader().read_all() == b"b2"


def test_two_clusters_on_one_root_are_an_error(tmp_path: Path) -> None:
    with LocalCluster(root=tmp_path):
        with pytest.raises(UsageError, match="Another cluster runs"):
            LocalCluster(root=tmp_path).start()


def test_a_cluster_that_was_killed_says_so() -> None:
    cluster = LocalCluster().start()
    os.kill(cluster.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while cluster.running:
        assert time.monotonic() < deadline
    with pytest.raises(UsageError, match="has ended"):
        cluster.stats()
    root = cluster._folder
    assert root.exists()
    cluster.stop()
    assert not root.exists()


def test_a_temporary_folder_whose_server_and_owner_were_killed_goes_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, young, foreign = (tmp_path / f"ais-local-{name}" for name in ("left", "young", "foreign"))
    for folder in (left, young):
        (folder / "data").mkdir(parents=True)
        (folder / "lock").touch()
    foreign.symlink_to(tmp_path)
    os.utime(left / "lock", (0, 0))
    with LocalCluster() as running:
        os.utime(running.root / "lock", (0, 0))  # held, so it stays
        with LocalCluster():
            assert running.root.exists()
        assert not left.exists()
        assert young.exists()
        assert foreign.is_symlink()


@pytest.mark.parametrize("made", [False, True])
def test_data_are_of_the_user_alone(made: bool, tmp_path: Path) -> None:
    root = tmp_path / "root"
    if made:
        root.mkdir(0o755)
    with LocalCluster(targets=1, root=root) as cluster:
        bucket = cluster.client().bucket("b").create()
        bucket.object("o").get_writer().put_content(b"private")
        bucket.object("o").multipart_upload().create().add_part(1).put_content(b"private")
        open_to_others = [
            str(path.relative_to(root)) for path in (root, *root.rglob("*")) if path.stat().st_mode & 0o077
        ]
        assert open_to_others == (["."] if made else [])


OWNER = """
    import os, sys, time
    from torchdata_ais.local import LocalCluster
    cluster = LocalCluster().start()
    if "fork" in sys.argv and os.fork() == 0:
        time.sleep(30)
        os._exit(0)
    print(cluster.pid, cluster.root, flush=True)
    if "exit" in sys.argv:
        sys.exit(3)
    time.sleep(30)
"""


@pytest.mark.quick(1)
@pytest.mark.parametrize("how", ["killed", "exit", "fork"])
def test_the_cluster_dies_with_its_parent(how: str) -> None:
    """Also when a fork of the parent lives on and holds the pipe open; and the temporary folder goes, too."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(OWNER), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as owner:
        try:
            assert owner.stdout is not None
            pid, _, root = owner.stdout.readline().strip().partition(" ")
            assert pid
            if how != "exit":
                os.kill(owner.pid, signal.SIGKILL)
            wait_until_gone(int(pid))
            assert not Path(root).exists()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(owner.pid, signal.SIGKILL)


def test_a_fork_neither_stops_nor_steers_the_cluster() -> None:
    with LocalCluster() as cluster:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            code = 1
            try:
                cluster.stop()
                try:
                    cluster.stats()
                except UsageError:
                    code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert cluster.client().cluster().is_ready()


def test_the_process_loads_neither_torch_nor_the_package() -> None:
    with LocalCluster() as cluster:
        maps = Path(f"/proc/{cluster.pid}/maps").read_text()
        assert "/torch/" not in maps  # the name of an environment may have the word
        assert "/numpy/" not in maps


def test_it_listens_on_loopback_only() -> None:
    with LocalCluster(targets=2) as cluster:
        inodes = set()
        for fd in Path(f"/proc/{cluster.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed meanwhile
                inodes.add(str(fd.readlink()))
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        listening = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]
        assert len(listening) == 3
        assert {address.partition(":")[0] for address in listening} == {"0100007F"}


def test_env_sets_the_endpoint_inside_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIS_ENDPOINT", "http://before")
    with LocalCluster() as cluster:
        with cluster.env():
            assert os.environ["AIS_ENDPOINT"] == cluster.endpoint
        assert os.environ["AIS_ENDPOINT"] == "http://before"
        monkeypatch.delenv("AIS_ENDPOINT")
        with cluster.env() as endpoint:
            assert os.environ["AIS_ENDPOINT"] == endpoint
        assert "AIS_ENDPOINT" not in os.environ


def test_put_dir_names_objects_by_their_path(ais_local_cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "sub" / "b.txt").write_text("b")
    assert ais_local_cluster.put_dir(tmp_path, "ais://put-dir/x/") == ["x/a.txt", "x/sub/b.txt"]
    bucket = ais_local_cluster.client().bucket("put-dir")
    assert bucket.object("x/sub/b.txt").get_reader().read_all() == b"b"
    bucket.delete()
    with pytest.raises(UsageError, match="ais://bucket"):
        ais_local_cluster.put_dir(tmp_path, "put-dir")


def test_stats_count_and_reset_empties() -> None:
    with LocalCluster(targets=2) as cluster:
        bucket = cluster.client().bucket("b").create()
        bucket.object("a").get_writer().put_content(b"12345")
        cluster.reset_stats()
        bucket.object("a").get_reader().read_all()
        stats = cluster.stats()
        assert stats.requests == {("proxy", "GET", 301): 1, ("target", "GET", 200): 1}
        assert stats.count("GET") == 2
        assert stats.count(status=200, role="target") == 1
        assert stats.bytes_sent > 5
        records = cluster.requests()
        assert [(row.role, row.method, row.status) for row in records] == [
            ("proxy", "GET", 301),
            ("target", "GET", 200),
        ]
        assert records[1].url.startswith("/v1/objects/b/a?")
        assert "user-agent" in records[1].headers
        assert "user-agent" not in repr(records)
        cluster.reset()
        assert cluster.client().cluster().list_buckets() == []


def test_the_coverage_table_names_what_the_sdk_uses() -> None:
    table = coverage_table()
    for name in (
        "Bucket.create",
        "Object.get_reader",
        "Batch.get",
        "Dsort.start",
        "MultipartUpload.complete",
    ):
        assert name in table


def test_the_readme_shows_the_coverage_table_as_it_is() -> None:
    readme = (Path(torchdata_ais.local.__file__).parent / "README.md").read_text()
    _, _, rest = readme.partition("<!-- coverage -->\n")
    assert rest.partition("<!-- /coverage -->")[0] == coverage_table()


@pytest.mark.ci
def test_the_test_files_of_the_readme_pass(tmp_path: Path) -> None:
    readme = (Path(torchdata_ais.local.__file__).parent / "README.md").read_text()
    files = dict(re.findall(r"```python\n# ((?:conftest|test_\w+)\.py)\n(.*?)```\n", readme, re.DOTALL))
    assert sorted(files) == ["conftest.py", "test_chain.py"]
    for name, code in files.items():
        (tmp_path / name).write_text(code)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        tmp_path,
        tmp_path,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
