"""Archives of libarchive, bsdtar's library: indexed alike by the cluster and by reading, and read as by the stream.

It writes through ``bsdtar``, or through the wheel ``cmake``, whose ``cmake -E tar`` is libarchive; without either they
are skipped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from webdataset import tariterators

from torchdata_ais import AISSampleReader, AISSourceLister, SampleIndex
from torchdata_ais.errors import BadHeaderError
from torchdata_ais.local import LocalCluster
from torchdata_ais.store import StoreOptions, put_object

pytestmark = pytest.mark.ci

FORMATS = ["pax", "paxr", "gnutar", "ustar"]


def archiver() -> Callable[[Path, Path, str], None]:
    """Return what writes a folder's files, in their order, to an archive of a format."""
    found = shutil.which("bsdtar")
    if found:
        return lambda folder, archive, form: _run(folder, [found, "--format", form, "-cf", str(archive)])
    cmake = Path(pytest.importorskip("cmake").CMAKE_BIN_DIR, "cmake")
    if not cmake.exists():
        pytest.skip("this cmake has no program")
    return lambda folder, archive, form: _run(
        folder, [str(cmake), "-E", "tar", "cf", str(archive), f"--format={form}", "--"]
    )


def _run(folder: Path, command: list[str]) -> None:
    names = sorted(path.name for path in folder.iterdir())
    subprocess.run([*command, *names], cwd=folder, check=True, timeout=60, capture_output=True)


def fill(folder: Path, form: str) -> None:
    """Make files whose members stand together when they are sorted."""
    folder.mkdir()
    for number in range(6):
        key = f"{number:03d}"
        (folder / f"{key}.cls").write_text(str(number))
        (folder / f"{key}.jpg").write_bytes(bytes([number]) * (700 * number))
        (folder / f"{key}.seg.png").write_bytes(b"png" * number)
    os.link(folder / "001.cls", folder / "001.copy")  # a hard link
    (folder / "002.way.jpg").symlink_to("002.jpg")
    (folder / "004.txt").write_text("after a link")
    (folder / "003.zz").symlink_to("003.cls")
    (folder / "003b").mkdir()
    for field in ("cls", "jpg"):
        (folder / "003b" / f"in-{'n' * 90}.{field}").write_bytes(field.encode())
    long = "x" * (150 if form != "ustar" else 90)  # ustar has 100 bytes behind the last slash
    (folder / f"004{long}.cls").write_bytes(b"long")
    (folder / ("004é.cls" if form != "ustar" else "004ae.cls")).write_bytes(b"no ascii")
    (folder / "README").write_bytes(b"no sample")
    (folder / "._005.jpg").write_bytes(b"of macOS")
    os.utime(folder / "005.cls", (1.25, 1.25))
    with contextlib.suppress(OSError):  # a file system without them
        os.setxattr(folder / "000.jpg", "user.camera", b"of a file\n" * 60)
        os.setxattr(folder / "003.jpg", "system.posix_acl_access", _acl())


def _acl() -> bytes:
    """Return an access control list that lets user 1 read: who, what, which id."""
    anyone = 0xFFFFFFFF
    rows = [(1, 6, anyone), (2, 4, 1), (4, 4, anyone), (16, 4, anyone), (32, 4, anyone)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(targets=2) as made:
        made.client().bucket("b").create()
        yield made


def as_plain(sample: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in sample.items() if name != "__url__"]


@pytest.mark.parametrize("form", FORMATS)
def test_promise_1_both_indexes_and_the_stream_find_the_same(
    cluster: LocalCluster, tmp_path: Path, form: str
) -> None:
    write = archiver()
    fill(tmp_path / "in", form)
    write(tmp_path / "in", tmp_path / "s.tar", form)
    store = StoreOptions(endpoint=cluster.endpoint)
    url = f"ais://b/{form}.tar"
    put_object(url, (tmp_path / "s.tar").read_bytes(), store)
    built = SampleIndex.build(url, method="cluster", cluster=cluster)
    read = SampleIndex.build(url, method="read", cluster=cluster)
    assert built.digest == read.digest
    assert [(one.key, one.fields, one.sizes) for one in built] == [
        (one.key, one.fields, one.sizes) for one in read
    ]
    stream = [as_plain(sample) for sample in AISSourceLister(url, cluster=cluster).load_tar().group_samples()]
    assert "way.jpg" in dict(stream[2])
    assert dict(stream[1])["copy"] == b"1"
    assert len(stream) == 9
    with (tmp_path / "s.tar").open("rb") as file:
        members = tariterators.tar_file_expander([{"url": url, "stream": file}])
        theirs = list(tariterators.group_by_keys(members))
    for index in (built, read):
        ours = [as_plain(sample) for sample in AISSampleReader(index, cluster=cluster)]
        assert ours == stream
        order = [8, 3, 3, 0, 7, 1, 2, 4, 6, 5, 2]
        got = [as_plain(sample) for sample in AISSampleReader(index, positions=order, cluster=cluster)]
        assert got == [stream[number] for number in order]
    plain = {"cls", "jpg", "seg.png", "txt"}  # webdataset passes over links
    assert sorted(sample["__key__"] for sample in theirs) == sorted(dict(one)["__key__"] for one in stream)
    by_key = {sample["__key__"]: sample for sample in theirs}
    for one in map(dict, stream):
        other = by_key[one["__key__"]]
        assert {name: one[name] for name in plain & one.keys()} == {
            name: other[name] for name in plain & other.keys()
        }


def test_promise_1_a_sparse_member_is_refused_in_both_ways(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "0.cls").write_bytes(b"0")
    with (folder / "1.bin").open("wb") as file:
        file.truncate(8 << 20)
        file.seek(4 << 20)
        file.write(b"in the middle")
    (folder / "2.cls").write_bytes(b"2")
    archiver()(folder, tmp_path / "s.tar", "pax")
    data = (tmp_path / "s.tar").read_bytes()
    if b"GNU.sparse" not in data:
        pytest.skip("this file system, or this libarchive, has no sparse files")
    put_object("ais://b/sparse.tar", data, StoreOptions(endpoint=cluster.endpoint))
    with pytest.raises(BadHeaderError, match="no-read-sparse"):
        list(AISSourceLister("ais://b/sparse.tar", cluster=cluster).load_tar().group_samples())
    with pytest.raises(BadHeaderError, match="no-read-sparse"):
        SampleIndex.build("ais://b/sparse.tar", method="read", cluster=cluster)
