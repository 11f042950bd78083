"""The bytes of an archive: read back by `tarfile`, by GNU tar and by our reader."""

import io
import shutil
import subprocess
import tarfile

import numpy as np
import pytest
from helpers.archives import archive_of
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdata_ais.errors import UsageError
from torchdata_ais.tar import TarReader
from torchdata_ais.tar.writer import RECORD, TarBuilder, archive_size


def build(*members, **options):
    return archive_of(members, **options)


def by_tarfile(archive):
    with tarfile.open(
        fileobj=io.BytesIO(archive), mode="r:", encoding="utf-8", errors="surrogateescape"
    ) as tar:
        return [(info.name, tar.extractfile(info).read()) for info in tar]


def by_us(archive):
    return [(name, data) for name, data, *_ in TarReader([archive])]


MEMBERS = [
    ("000000.jpg", b"\xff\xd8" * 1000),
    ("000000.cls", b""),
    ("n" * 100, b"a name that fills its field"),
    ("d" * 150 + "/" + "n" * 99, b"a name with a prefix"),
    ("d" * 80 + "/" + "e" * 70 + "/" + "n" * 90 + ".seg.png", b"more than one slash to split at"),
    ("n" * 101, b"a name that USTAR cannot say"),
    ("d" * 156 + "/" + "n" * 50, b"a prefix that is too long"),
    ("x/" + "n" * 101, b"a last part that is too long"),
    ("d" * 155 + "/" + "n" * 100, b"a name that fills both of its fields"),
    ("d" * 155 + "/" + "n" * 101, b"one byte too many for them"),
    ("d" * 156 + "/" + "n" * 99, b"a prefix with one byte too many"),
    ("/" + "n" * 99, b"a name of 100 bytes that begins with a slash"),
    ("/" + "n" * 100, b"a name of 101 bytes that begins with a slash"),
    ("/" + "n" * 101, b"a name of 102 bytes that begins with a slash"),
    ("//" + "n" * 100, b"two slashes, and 100 bytes"),
    ("/d/" + "n" * 100, b"a prefix that begins with a slash"),
    ("e" * 99 + "é", b"100 characters and 101 bytes"),
    ("l" * 3000 + "/deep.jpg", b"more than one block of PAX header"),
    ("é/漢字.jpg", b"unicode"),
    ("\udcff\udc80.bin", b"not UTF-8"),
    ("a=b\nc.txt", b"an equals sign and a newline"),
    ("512.bin", b"x" * 512),
]


def test_tarfile_and_our_reader_read_what_was_written():
    archive = build(*MEMBERS)
    assert by_tarfile(archive) == by_us(archive) == MEMBERS


segments = st.text(st.sampled_from("ab.é\udcff \n="), min_size=1, max_size=8) | st.sampled_from(
    ["x" * 90, "y" * 99, "z" * 155, "w" * 400]
)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.tuples(st.lists(segments, min_size=1, max_size=4).map("/".join), st.binary(max_size=1100)))
)
def test_any_names_and_data_come_back(members):
    archive = build(*members)
    assert len(archive) % RECORD == 0
    assert by_tarfile(archive) == by_us(archive) == members


def test_gnu_tar_extracts_what_was_written(tmp_path):
    tar = shutil.which("tar")
    if (
        tar is None
        or b"GNU" not in subprocess.run([tar, "--version"], capture_output=True, check=True).stdout
    ):
        pytest.skip("GNU tar is not here")
    # It warns of hdrcharset, which a name that is not UTF-8 needs, and reads it right.
    members = [
        (name, data) for name, data in MEMBERS if len(name) < 240 and name.isprintable() and name[0] != "/"
    ]
    (tmp_path / "shard.tar").write_bytes(build(*members, mtime=1_700_000_000))
    out = tmp_path / "out"
    out.mkdir()
    done = subprocess.run([tar, "-xf", tmp_path / "shard.tar", "-C", out], capture_output=True, check=True)
    assert done.stderr == b""
    found = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert found == dict(members)
    assert (out / "000000.jpg").stat().st_mtime == 1_700_000_000


def test_bytes_are_a_function_of_the_arguments_and_of_nothing_else():
    assert build(*MEMBERS) == build(*MEMBERS)
    assert build(("a", b"1")) == build(("a", b"1"), mtime=0.9)
    assert build(("a", b"1")) != build(("a", b"1"), mtime=1)


@pytest.mark.parametrize(
    "name", [name for name, data in MEMBERS if data and name.isascii() and len(name) <= 100]
)
def test_a_plain_member_takes_one_header(name):
    assert sum(map(len, TarBuilder().member(name, b"1"))) == 1024


@pytest.mark.parametrize(
    ("name", "headers"),
    [
        ("d" * 155 + "/" + "n" * 100, 1),
        ("d" * 154 + "/" + "n" * 100, 1),
        ("d" * 155 + "/" + "n" * 101, 3),
        ("d" * 156 + "/" + "n" * 99, 3),
        ("/" + "n" * 99, 1),
        ("/" + "n" * 100, 3),
        ("/d/" + "n" * 100, 1),
    ],
)
def test_a_pax_header_is_written_only_where_ustar_is_not_enough(name, headers):
    header = TarBuilder().member(name, b"1")[0]
    assert len(header) == headers * 512
    # Readers that do not know PAX see the end of the name, and nothing outside of the folder they write to.
    fallback = tarfile.TarInfo.frombuf(header[-512:], "utf-8", "strict").name
    assert fallback == (name if headers == 1 else name[-100:].lstrip("/"))


def test_headers_are_those_of_tarfile_where_ustar_is_enough():
    info = tarfile.TarInfo("d" * 150 + "/" + "n" * 99)
    info.size, info.mtime, info.mode, info.uname, info.gname = 5, 1_700_000_000, 0o444, "bigdata", "users"
    theirs = info.tobuf(tarfile.USTAR_FORMAT, "utf-8")
    builder = TarBuilder(mtime=1_700_000_000.7, user="bigdata", group="users")
    ours = builder.member(info.name, b"tree!")[0]
    # Versions of tarfile differ in the device numbers, and so in the checksum.
    assert ours[:148] + ours[156:329] + ours[345:] == theirs[:148] + theirs[156:329] + theirs[345:]


def test_fields_are_what_was_asked_for():
    archive = build(("a", b"1"), mtime=12.5, mode=0o640, user="bigdata", group="users")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        info = tar.next()
    assert (info.mtime, info.mode, info.uname, info.gname) == (12, 0o640, "bigdata", "users")
    assert (info.uid, info.gid, info.type, info.pax_headers) == (0, 0, tarfile.REGTYPE, {})


@pytest.mark.parametrize(("content", "total"), [(0, 1), (RECORD - 1024, 1), (RECORD - 512, 2), (RECORD, 2)])
def test_the_end_is_two_blocks_and_what_fills_the_record(content, total):
    assert archive_size(content) == total * RECORD


def test_an_empty_archive_is_one_record_of_zeros():
    assert build() == bytes(RECORD)
    assert by_tarfile(build()) == by_us(build()) == []


def test_data_is_passed_on_without_a_copy():
    data = bytearray(b"tree")
    assert TarBuilder().member("a", data)[1] is data
    words = memoryview(bytearray(16)).cast("I")
    archive = b"".join(TarBuilder().member("a", words))
    assert archive[512:528] == bytes(16)
    assert len(archive) == 1024


@pytest.mark.parametrize("size", [(8 << 30) - 1, 8 << 30, (8 << 30) + 1])
def test_a_member_of_8_gib_or_more_has_its_size_in_a_pax_header(size):
    data = np.broadcast_to(np.zeros(1, np.uint8), size)  # it takes no memory
    header, content, *padding = TarBuilder().member("big.bin", data)
    assert content is data
    assert list(map(len, padding)) == ([-size % 512] if size % 512 else [])
    assert len(header) == (512 if size < 8 << 30 else 1536)
    with tarfile.open(fileobj=io.BytesIO(header + bytes(512)), mode="r:") as tar:
        info = tar.next()
    assert (info.name, info.size, info.type) == ("big.bin", size, tarfile.REGTYPE)
    assert tarfile.TarInfo.frombuf(header[:512], "utf-8", "strict").type == (
        tarfile.REGTYPE if size < 8 << 30 else tarfile.XHDTYPE
    )
    made = tarfile.TarInfo("big.bin")
    made.size = size
    theirs = made.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
    assert len(theirs) == len(header)
    # The record is theirs byte for byte; without one, the field for the size is.
    assert (header[512:1024] or header[124:136]) == (theirs[512:1024] or theirs[124:136])


def test_names_owners_and_times_at_exactly_their_limits():
    longest = "d/" * ((64 << 10) // 2 - 1) + "ab"
    assert by_tarfile(build((longest, b"1"))) == by_us(build((longest, b"1"))) == [(longest, b"1")]
    with pytest.raises(UsageError, match="at most 64 KiB"):
        TarBuilder().member(longest + "c", b"")
    archive = build(("a", b"1"), mtime=8**11 - 1, user="u" * 31, group="é" * 15)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        info = tar.next()
    assert (info.mtime, info.uname, info.gname) == (8**11 - 1, "u" * 31, "é" * 15)


@pytest.mark.parametrize("name", ["", "d/", "a\0b"])
def test_names_that_no_file_can_have_are_refused(name):
    with pytest.raises(UsageError, match="cannot be the name"):
        TarBuilder().member(name, b"")


@pytest.mark.parametrize("mtime", [-1, 8**11, float("nan"), float("inf")])
def test_times_that_ustar_cannot_say_are_refused(mtime):
    with pytest.raises(UsageError, match="mtime"):
        TarBuilder(mtime=mtime)


@pytest.mark.parametrize("options", [{"user": "u" * 32}, {"group": "a\0b"}])
def test_owners_that_ustar_cannot_say_are_refused(options):
    with pytest.raises(UsageError, match="owner or group"):
        TarBuilder(**options)
