"""What stands in the cache's folder is proven before it is used: damaged files are fetched again, once, and counted."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.disk_calls import disk_calls

from torchdata_ais import AISSourceLister, Retry, Safety
from torchdata_ais.errors import AISError, ChecksumError, NotATarError, UsageError
from torchdata_ais.loaders import stats
from torchdata_ais.local import LocalCluster
from torchdata_ais.store import ObjectCache, StoreOptions, list_objects
from torchdata_ais.testing import shard_bytes

pytestmark = pytest.mark.kills

QUICK = Retry(attempts=2, backoff=0.01)


@pytest.fixture(scope="module")
def far() -> Iterator[LocalCluster]:
    with LocalCluster(targets=1) as cluster:
        bucket = cluster.client().bucket("far").create()
        for number in range(3):
            members = {f"{key}.txt": b"%d" % number * 2000 for key in "abcd"}
            bucket.object(f"s-{number}.tar").get_writer().put_content(shard_bytes(members))
        yield cluster


@pytest.fixture
def cluster(far: LocalCluster) -> Iterator[LocalCluster]:
    yield far
    far.faults.clear()


def pipe(cluster: LocalCluster, folder: Path, safety: Safety | None = None, on_error: Any = "raise") -> Any:
    loaded = AISSourceLister("ais://far", cluster=cluster.endpoint).load_tar(
        cache=ObjectCache(folder), retry=QUICK, safety=safety, on_error=on_error
    )
    return loaded.group_samples().to_tuple("txt")


def files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("??/*") if len(file.name) == 32)


def bodies(cluster: LocalCluster) -> int:
    return cluster.stats().count("GET", 200, "target")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a disk does it: no time tells


def place(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path is short
        try:
            sock.bind(path.name)
        finally:
            os.chdir(here)


def folder_with_files(path: Path) -> None:
    path.mkdir()
    (path / "x").write_text("x")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "replaced": lambda path: path.write_bytes(b"E" * path.stat().st_size),
    "truncated": lambda path: os.truncate(path, 700),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + bytes(512)),
    "a pipe": place(os.mkfifo),
    "a folder": place(Path.mkdir),
    "a folder with files": place(folder_with_files),
    "a socket": place(listen),
    "a link": place(lambda path: path.symlink_to("/etc/hostname")),
    "a link to itself": place(lambda path: path.symlink_to(path)),
    "unreadable": lambda path: path.chmod(0),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_promise_1_a_damaged_file_is_fetched_again_and_counted(
    cluster: LocalCluster, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    whole = list(pipe(cluster, tmp_path))
    victim = files(tmp_path)[1]
    damage(victim)
    sound = os.access(victim, os.R_OK) and damage is DAMAGE["unreadable"]  # to root, everything is readable
    before = bodies(cluster)
    again = pipe(cluster, tmp_path)
    assert list(again) == whole
    assert bodies(cluster) == before + (not sound)
    refetched = 0 if sound or damage is DAMAGE["gone"] else 1
    assert stats(again)["load_tar"].refetched == refetched
    assert f'refetched_total{{stage="load_tar",number="2"}} {refetched}' in stats(again).to_prometheus()
    assert list(pipe(cluster, tmp_path)) == whole  # and it is mended
    assert bodies(cluster) == before + (not sound)
    assert victim.is_file()
    assert not victim.is_symlink()


def test_a_file_that_is_damaged_while_it_is_read_names_the_object_and_is_fetched_next_time(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchdata_ais.store.objects import cache as cached_file

    whole = list(pipe(cluster, tmp_path))
    for file in files(tmp_path):
        flip(file)
    monkeypatch.setattr(cached_file, "_damage", lambda *_: "")  # as if they had been sound a moment ago
    with pytest.raises(
        ChecksumError, match=r"^ais://far/s-0\.tar \(in the cache\): the file has the checksum"
    ) as caught:
        list(pipe(cluster, tmp_path))
    assert caught.value.url == "ais://far/s-0.tar"
    monkeypatch.undo()
    assert len(files(tmp_path)) == 2  # that file is gone
    assert list(pipe(cluster, tmp_path)) == whole


def test_without_verify_the_size_alone_is_compared_as_documented(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    whole = list(pipe(cluster, tmp_path, Safety(verify=False)))
    victim = files(tmp_path)[1]
    os.truncate(victim, 700)
    assert list(pipe(cluster, tmp_path, Safety(verify=False))) == whole
    victim.write_bytes(b"E" * victim.stat().st_size)
    with pytest.raises(NotATarError, match="plain text"):
        list(pipe(cluster, tmp_path, Safety(verify=False)))
    assert (
        list(pipe(cluster, tmp_path, Safety(verify=False))) == whole
    )  # what could not be proven is not kept
    assert "size alone is compared" in (ObjectCache.__doc__ or "").replace("\n    ", " ")


def test_an_object_that_stays_damaged_is_an_error_that_names_it(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    from torchdata_ais.local import FlipBit

    list(pipe(cluster, tmp_path))
    for file in files(tmp_path):
        os.truncate(file, 0)
    cluster.faults.add(FlipBit(3000), object="s-0.tar")
    with pytest.raises(AISError, match=r"ais://far/s-0\.tar") as caught:
        list(pipe(cluster, tmp_path))
    assert "s-0.tar" in (caught.value.url or "")


def obstacles(tmp_path: Path, how: str) -> Path:
    folder = tmp_path / "cache"
    if how == "a file":
        folder.write_text("")
    elif how == "below a file":
        (tmp_path / "file").write_text("")
        return tmp_path / "file" / "cache"
    elif how == "a broken link":
        folder.symlink_to(tmp_path / "none" / "none")
    else:
        folder.mkdir()
    return folder


@pytest.mark.parametrize("how", ["a file", "below a file", "a broken link"])
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_folder_that_is_none_is_an_error_of_the_call(
    cluster: LocalCluster, tmp_path: Path, how: str, policy: Any
) -> None:
    folder = obstacles(tmp_path, how)
    with pytest.raises(
        UsageError, match=r"ais://far/s-0\.tar cannot be kept in .*: .*another folder"
    ) as caught:
        list(pipe(cluster, folder, on_error=policy))
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    "make", [Path.mkdir, lambda path: path.symlink_to("/etc/hostname")], ids=["folder", "link"]
)
def test_a_lock_that_is_none_is_told(
    cluster: LocalCluster, tmp_path: Path, make: Callable[[Path], object]
) -> None:
    list(pipe(cluster, tmp_path))
    victim = files(tmp_path)[0]
    victim.unlink()
    lock = victim.with_suffix(".lock")
    lock.unlink(missing_ok=True)
    make(lock)
    with pytest.raises(UsageError, match=f"cannot be kept in .*{lock.name}"):
        list(pipe(cluster, tmp_path))


def test_a_full_disk_is_told_and_leaves_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    """The limit on the size of files stands for a full disk: the same error from the same call."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(UsageError, match=r"ais://far/s-0\.tar cannot be kept in .*Make room") as caught:
            list(pipe(cluster, tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert str(tmp_path) in str(caught.value)
    assert not [file for file in tmp_path.glob("??/*") if file.suffix != ".lock"]
    assert len(list(pipe(cluster, tmp_path))) == 12


def test_folders_and_files_are_for_this_user_alone(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "cache"
    list(pipe(cluster, folder))
    assert folder.stat().st_mode & 0o777 == 0o700
    for file in folder.glob("??"):
        assert file.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in files(folder)} == {0o600}


def test_a_file_is_on_the_disk_before_it_has_its_name(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = disk_calls(monkeypatch)
    (url, *_) = list_objects("ais://far", options=StoreOptions(cluster.endpoint))
    kept = ObjectCache(str(tmp_path), 1 << 30).open(url, StoreOptions(cluster.endpoint))
    assert kept is not None
    kept.file.close()
    (name,) = (path.name for path in tmp_path.glob("??/*") if path.suffix != ".lock")
    assert done == [f"{url.size} bytes", f"replace {name}", "folder"]


def test_what_was_used_longest_ago_goes_first(cluster: LocalCluster, tmp_path: Path) -> None:
    """Names, not numbers: the newest stay, an older one that was just used stays, foreign files are left alone."""
    options = StoreOptions(cluster.endpoint)
    urls = list_objects("ais://far", options=options)
    size = urls[0].size or 0
    cache = ObjectCache(str(tmp_path), 2 * size)
    now = time.time()
    paths = []
    for number, url in enumerate(urls[:2]):
        found = cache.fetch(url, options)
        assert found is not None
        paths.append(found[0])
        os.utime(found[0], (now - 60 + number, now - 600))
    foreign = paths[0].with_name("somebody.txt")
    foreign.write_bytes(bytes(3 * size))
    os.utime(foreign, (1, 1))
    unread = StoreOptions(
        cluster.endpoint, verify=False
    )  # reading alone would move the time, on most systems
    assert cache.fetch(urls[0], unread) is not None  # used again: the other one is now the oldest
    last = cache.fetch(urls[2], options)
    assert last is not None
    assert [path.exists() for path in (*paths, last[0], foreign)] == [True, False, True, True]


def test_an_object_larger_than_the_cache_is_kept_while_it_is_the_last(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    options = StoreOptions(cluster.endpoint)
    urls = list_objects("ais://far", options=options)
    cache = ObjectCache(str(tmp_path), 1)
    paths = []
    for url in urls[:2]:
        found = cache.fetch(url, options)
        assert found is not None
        assert found[0].stat().st_size == url.size
        paths.append(found[0])
    assert not paths[0].exists()


def test_what_a_crashed_download_left_is_deleted_after_an_hour_and_no_sooner(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    options = StoreOptions(cluster.endpoint)
    (url, *_) = list_objects("ais://far", options=options)
    left, under_way = tmp_path / "ab" / "old.part", tmp_path / "ab" / "new.part"
    left.parent.mkdir()
    for file, age_s in ((left, 3700), (under_way, 3500)):
        file.write_bytes(b"half")
        os.utime(file, (time.time(), time.time() - age_s))
    assert ObjectCache(str(tmp_path), 1 << 30).fetch(url, options) is not None
    assert (left.exists(), under_way.exists()) == (False, True)


def test_versions_of_one_object_are_different_entries(cluster: LocalCluster, tmp_path: Path) -> None:
    """The same bytes stored twice have the same checksum, and are two versions all the same."""
    from torchdata_ais.urls import ObjectURL

    options = StoreOptions(cluster.endpoint, pin=False)
    (url, *_) = list_objects("ais://far", options=options)
    cache = ObjectCache(str(tmp_path), 1 << 30)
    places = set()
    for version in ("1", "2"):
        found = cache.fetch(ObjectURL(url, url.size, url.checksum, version), options)
        assert found is not None
        places.add(found[0])
    assert len(places) == 2


def test_an_object_stays_readable_while_another_process_deletes_it(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    options = StoreOptions(cluster.endpoint)
    (url, *_) = list_objects("ais://far", options=options)
    kept = ObjectCache(str(tmp_path), 1 << 30).open(url, options)
    assert kept is not None
    kept.path.unlink()
    with kept.file as file:
        assert len(file.readall()) == url.size


PROGRAM = """
import sys
from torchdata_ais import AISSourceLister, ObjectCache
for _ in range(int(sys.argv[3])):
    lister = AISSourceLister("ais://far", cluster=sys.argv[1])
    pipe = lister.load_tar(cache=ObjectCache(sys.argv[2], int(sys.argv[4]))).group_samples()
    assert len(list(pipe)) == 12
print("whole")
"""


@pytest.mark.ci
def test_processes_share_a_folder_that_is_too_small_and_one_is_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Each evicts what the others use, and one is killed: every sample comes, always."""
    size = files_size(cluster)
    command = [sys.executable, "-c", PROGRAM, cluster.endpoint, str(tmp_path), "4", str(size * 3 // 2)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        for _ in range(3)
    ]
    try:
        deadline = time.monotonic() + 60
        while not files(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        processes[0].send_signal(signal.SIGKILL)
        for process in processes[1:]:
            out, err = process.communicate(timeout=60)
            assert out == b"whole\n", err.decode()
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert len(list(pipe(cluster, tmp_path))) == 12


def files_size(cluster: LocalCluster) -> int:
    return max(url.size or 0 for url in list_objects("ais://far", options=StoreOptions(cluster.endpoint)))
