"""The tar reader: formats, refusals, places in errors, laziness."""

import gzip
import io
import os
import pickle
import shutil
import subprocess
import tarfile
import tracemalloc

import pytest
from helpers.archives import archive_of

from torchdata_ais import AISSourceLister
from torchdata_ais.errors import (
    BadHeaderError,
    NotATarError,
    ShardError,
    TrailingDataError,
    TruncatedShardError,
)
from torchdata_ais.tar import Link, TarReader, usual_members
from torchdata_ais.testing import shard_bytes

URL = "ais://bucket/shard.tar"


def header(
    name=b"a.jpg", size=b"00000000000\0", kind=b"0", magic=b"ustar\x0000", link=b"", *, signed=False, **fields
):
    """Return a header made by hand, with the right checksum."""
    raw = bytearray(512)
    raw[0 : len(name)] = name
    raw[124 : 124 + len(size)] = size
    raw[156:157] = kind
    raw[157 : 157 + len(link)] = link
    raw[257 : 257 + len(magic)] = magic
    for position, value in fields.get("extra", {}).items():
        raw[position : position + len(value)] = value
    total = sum(raw) + 256
    if signed:
        total -= 256 * sum(byte > 127 for byte in raw)
    raw[148:156] = fields.get("checksum", b"%06o\0 " % total)
    return bytes(raw)


def octal(number):
    return b"%011o\0" % number


def pax(*records, kind=b"x"):
    payload = b"".join(records)
    return header(b"././@PaxHeader", octal(len(payload)), kind) + payload + bytes(-len(payload) % 512)


def record(keyword, value):
    length = len(keyword) + len(value) + 3
    total = length + len(str(length + 1))
    total = length + len(str(total))
    return b"%d %s=%s\n" % (total, keyword, value)


END = bytes(1024)


def read(*parts, **options):
    return list(TarReader([b"".join(parts)], url=URL, **options))


def names(*parts, **options):
    return [name for name, *_ in read(*parts, **options)]


def archive(*members):
    return archive_of(members)


TWO = archive(("a.jpg", b"x" * 700), ("a.cls", b"7"))


# Formats


def test_members_come_with_the_offsets_of_their_headers():
    assert read(TWO) == [("a.jpg", b"x" * 700, 0, 1536), ("a.cls", b"7", 1536, 2560)]


def test_views_of_bytes_give_bytes_and_other_buffers_are_copied():
    data = archive(("a.cls", b"3"), ("b.txt", b"tree" * 300))
    members = list(TarReader([data]))
    view = memoryview(data)
    mutable = bytearray(data)
    given = [[view], [view[:700], view[700:]], [mutable], [memoryview(mutable)], [view.cast("I")]]
    for blocks in given:
        reader = iter(TarReader(blocks))
        first = next(reader)
        mutable[:] = bytes(len(mutable))
        assert [first, *reader] == members
        mutable[:] = data
        assert all(type(one[1]) is bytes for one in TarReader(blocks))


def test_extension_headers_belong_to_the_member_after_them():
    data = archive_of([("a.cls", b"1"), ("é.cls", b"2")])
    assert [(name, begin, after) for name, _, begin, after in read(data)] == [
        ("a.cls", 0, 1024),
        ("é.cls", 1024, 1024 + 2048),
    ]


def test_a_v7_header_has_no_magic():
    assert names(header(magic=b""), END) == ["a.jpg"]


def test_a_v7_name_that_ends_with_a_slash_is_a_directory():
    assert names(header(b"d/", kind=b"\0", magic=b""), header(b"d/a", kind=b"\0", magic=b""), END) == ["d/a"]


def test_the_slash_that_makes_a_directory_is_that_of_the_long_name():
    cut = header(b"n" * 99 + b"/", octal(1), b"\0", magic=b"ustar  \0")
    for end, found in ((b"file", ["n" * 99 + "/file"]), (b"directory/", [])):
        long = header(b"././@LongLink", octal(200), b"L") + (b"n" * 99 + b"/" + end).ljust(512, b"\0")
        assert names(long, cut, b"1".ljust(512, b"\0") if found else b"", END) == found


def test_a_header_summed_over_signed_bytes_is_right():
    assert names(header("é".encode(), signed=True), END) == ["é"]
    assert names(header("é".encode()), END) == ["é"]


def test_an_empty_checksum_is_wrong_even_where_the_sum_of_signed_bytes_is_zero():
    with pytest.raises(NotATarError):
        read(b" =^\x87\x8c\x9a\xc7\xd1".ljust(512, b"\0"), END)


def test_a_name_that_fills_its_field_has_no_nul():
    assert names(header(b"n" * 100), END) == ["n" * 100]


def test_the_prefix_is_part_of_the_name():
    assert names(header(extra={345: b"dir/sub"}), END) == ["dir/sub/a.jpg"]


def test_times_in_a_gnu_header_are_not_a_prefix():
    assert names(header(magic=b"ustar  \0", extra={345: b"14371573212\0"}), END) == ["a.jpg"]


def test_a_name_that_is_not_utf8_has_surrogates():
    assert names(header(b"\xff.jpg"), END) == ["\udcff.jpg"]


@pytest.mark.parametrize(
    "size", [b"3", b"3 ", b"   3", b"00000000003\0", b"000000000003", b"\x80" + bytes(10) + b"\3"]
)
def test_a_size_is_octal_or_base_256(size):
    assert read(header(size=size), b"abc".ljust(512, b"\0"), END)[0][1] == b"abc"


@pytest.mark.parametrize(
    "size", [b"0o3", b"+3", b"-3", b"0_3", b"9", b"abc", b"\xff" * 12, b"\x81" + bytes(11), b"3 3"]
)
def test_a_size_that_is_no_number_is_an_error(size):
    with pytest.raises(BadHeaderError, match="number field") as caught:
        read(header(size=size), b"abc".ljust(512, b"\0"), END)
    assert caught.value.offset == 0


def test_a_missing_size_is_zero():
    assert read(header(size=b""), END)[0][1] == b""


def test_gnu_long_names_and_targets():
    long = b"L" * 272
    data = header(b"././@LongLink", octal(273), b"L") + long.ljust(512, b"\0")
    target = header(b"././@LongLink", octal(301), b"K") + (b"t" * 300).ljust(512, b"\0")
    ((name, link, begin, after),) = read(target, data, header(kind=b"1", link=b"short"), END)
    assert (name, link, begin, after) == ("L" * 272, "t" * 300, 0, 2560)


def test_pax_path_size_and_linkpath():
    data = pax(record(b"path", "ü/é".encode()), record(b"size", b"3"), record(b"mtime", b"1.5"))
    assert read(data, header(), b"abc".ljust(512, b"\0"), END) == [("ü/é", b"abc", 0, 2048)]
    ((_, link, *_),) = read(pax(record(b"linkpath", b"t")), header(kind=b"2", link=b"other"), END)
    assert link == "t"
    assert link.symbolic


def test_an_empty_pax_value_leaves_the_header_as_it_is():
    assert names(pax(record(b"path", b"")), header(), END) == ["a.jpg"]


@pytest.mark.parametrize("step", [512, 700, 1024, 1536, 4096])
def test_a_pax_header_of_a_time_belongs_to_its_member(step):
    time, other = pax(record(b"mtime", b"1795784251.17")), pax(record(b"atime", b"1"))
    parts = [
        time,
        header(b"a.jpg", octal(3)) + b"abc".ljust(512, b"\0"),
        time + other,
        header(b"b.jpg"),
        header(b"c.jpg"),
    ]
    data = b"".join([*parts, END])
    blocks = [data[at : at + step] for at in range(0, len(data), step)]
    assert list(TarReader(blocks, url=URL)) == [
        ("a.jpg", b"abc", 0, 2048),
        ("b.jpg", b"", 2048, 4608),
        ("c.jpg", b"", 4608, 5120),
    ]
    with pytest.raises(TruncatedShardError, match="between an extension header and its member"):
        read(header(b"a.jpg"), time, END)


@pytest.mark.parametrize("kind", ["pax", "gnu"])
def test_promise_2_the_last_of_two_extension_headers_is_right_as_in_gnu_tar(kind, tmp_path):
    """Go and libarchive do the same, Python's tarfile takes the first: the members of a server are named by Go."""
    if kind == "pax":
        data = pax(record(b"path", b"one")) + pax(record(b"path", b"two")) + header() + END
    else:
        name = [
            header(b"././@LongLink", size=b"4", kind=b"L") + text.ljust(512, b"\0")
            for text in (b"one", b"two")
        ]
        data = name[0] + name[1] + header() + END
    assert names(data) == ["two"]
    path = tmp_path / "two.tar"
    path.write_bytes(data)
    done = subprocess.run(["tar", "-tf", path], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "two\n"


@pytest.mark.parametrize(
    "payload",
    [
        b"8 path=a\n",
        b"10 mtime=1\n",
        b"12 mtime=1\n",
        b"12 mtime=12",
        b"11 path=a\n",
        b"12 path=ab\n",
        b"path=a\n",
        b"9 path:ab",
        b"0 path=a\n",
        b"99 path=a\n",
        b"4 a=\n",
        b"6 =ab\n",
    ],
)
def test_a_damaged_pax_record_is_an_error(payload):
    with pytest.raises(BadHeaderError, match="PAX"):
        read(pax(payload), header(), END)


@pytest.mark.parametrize("size", [b"1x", b"-1", b"1_0", "\u0663".encode(), b"9" * 5000])
def test_a_pax_size_that_is_no_number_is_an_error(size):
    with pytest.raises(BadHeaderError, match="has a size of"):
        read(pax(record(b"size", size)), header(), END)


# Kinds


def test_links_name_their_target():
    (_, hard, *_), (_, soft, *_) = read(
        header(kind=b"1", link=b"a.jpg", size=octal(99)), header(kind=b"2", link=b"../b"), END
    )
    assert (hard, hard.symbolic) == ("a.jpg", False)
    assert (soft, soft.symbolic) == ("../b", True)


def test_a_link_survives_a_pickle():
    link = pickle.loads(pickle.dumps(Link("a", symbolic=True)))
    assert isinstance(link, Link)
    assert (link, link.symbolic) == ("a", True)


@pytest.mark.parametrize("kind", [b"3", b"4", b"5", b"6"])
def test_devices_directories_and_pipes_are_passed_over_and_have_no_data(kind):
    assert names(header(b"special", octal(4096), kind), header(), END) == ["a.jpg"]


@pytest.mark.parametrize("kind", [b"V", b"D", b"A", b"I"])
def test_notes_of_other_tools_are_passed_over_with_their_data(kind):
    assert names(header(b"note.v1", octal(5), kind), b"notes".ljust(512, b"\0"), header(), END) == ["a.jpg"]


@pytest.mark.parametrize("kind", [b"7", b"\0", b"Z"])
def test_other_kinds_are_files(kind):
    assert read(header(size=octal(1), kind=kind), b"1".ljust(512, b"\0"), END)[0][1] == b"1"


@pytest.mark.parametrize("kind", [b"S", b"M", b"N"])
def test_members_that_no_stream_can_give_are_refused(kind):
    with pytest.raises(BadHeaderError, match="cannot be read from a stream") as caught:
        read(header(), header(b"big.bin", octal(0), kind), END)
    assert (caught.value.url, caught.value.member, caught.value.offset) == (URL, "big.bin", 512)


def test_a_pax_sparse_member_is_refused():
    with pytest.raises(BadHeaderError, match="sparse"):
        read(pax(record(b"GNU.sparse.major", b"1")), header(), END)


def test_an_extension_header_has_a_limit():
    with pytest.raises(BadHeaderError, match="extension header of"):
        read(header(size=octal((1 << 20) + 1), kind=b"x"), bytes(1 << 21), END)


# Global headers


def test_a_global_header_without_effect_leaves_the_reader_seekable():
    reader = TarReader([pax(record(b"comment", b"c0ffee"), kind=b"g"), header(), END])
    assert [(name, begin) for name, _, begin, _ in reader] == [("a.jpg", 1024)]
    assert reader.seekable


def test_a_global_header_with_effect_applies_to_all_and_cannot_be_resumed_after():
    data = (
        pax(record(b"path", b"g"), kind=b"g")
        + header()
        + pax(record(b"path", b"own"))
        + header()
        + header()
        + END
    )
    reader = TarReader([data])
    assert reader.seekable
    found = [name for name, *_ in reader]
    assert not reader.seekable
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert found == tar.getnames() == ["g", "own", "g"]


# The end


def test_1024_zeros_are_an_empty_archive():
    assert read(END) == []


@pytest.mark.parametrize("zeros", [512, 513, 1000, 1024, 1025, 10240, 1 << 22])
def test_zeros_of_any_length_after_one_block_are_an_end(zeros):
    assert names(header(), bytes(zeros)) == ["a.jpg"]


@pytest.mark.parametrize("zeros", [0, 1, 511])
def test_promise_1_an_archive_without_an_end_marker_is_cut(zeros):
    with pytest.raises(TruncatedShardError, match="require_end=False") as caught:
        read(header(), bytes(zeros))
    assert (caught.value.url, caught.value.offset) == (URL, 512 + zeros)


def test_require_end_false_takes_the_end_of_the_stream_for_the_end_but_no_other_cut():
    assert names(header(), require_end=False) == ["a.jpg"]
    assert names(header(), bytes(100), require_end=False) == ["a.jpg"]
    for cut in (700, 1100, 1535, 1537, 2047):
        with pytest.raises(TruncatedShardError):
            read(TWO[:cut], require_end=False)
    with pytest.raises(TruncatedShardError):
        read(b"", require_end=False)


def test_promise_1_a_lone_block_of_zeros_between_members_is_an_error():
    with pytest.raises(BadHeaderError, match="stands alone") as caught:
        read(header(), bytes(512), header(), END)
    assert caught.value.offset == 512


def test_archives_after_each_other_are_one():
    twice = TWO + TWO
    assert [name for name, *_ in read(twice)] == ["a.jpg", "a.cls"] * 2
    for *_, begin, after in read(twice):
        assert read(twice[begin:], start=begin)[0][3] == after


@pytest.mark.parametrize("tail", [b"garbage", b"\n", b"{}" * 400, b"x" * 511, b"x" * 512, header()[:300]])
def test_promise_1_what_follows_the_end_is_an_archive_or_an_error(tail):
    reader = iter(TarReader([TWO + tail], url=URL))
    assert [next(reader)[0], next(reader)[0]] == ["a.jpg", "a.cls"]
    with pytest.raises(TrailingDataError, match="follows the end") as caught:
        next(reader)
    assert caught.value.offset == len(TWO)


@pytest.mark.parametrize("tail", [b"x", b"x" * 600])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_the_last_sample_before_trailing_data_is_passed_on(tail, pack, tmp_path):
    path = tmp_path / "s.tar"
    path.write_bytes(pack(shard_bytes({"a.txt": b"1", "b.txt": b"2"})) + tail)
    samples = iter(AISSourceLister([str(path)]).load_tar().group_samples())
    assert [next(samples)["txt"], next(samples)["txt"]] == [b"1", b"2"]
    with pytest.raises(TrailingDataError, match="all its samples are read"):
        next(samples)
    skipping = AISSourceLister([str(path)] * 2).load_tar(on_error="skip").group_samples(adjacent="split")
    assert [sample["txt"] for sample in skipping] == [b"1", b"2"] * 2


NO_TARS = {
    "an LZ4 file": b"\x04\x22\x4d\x18\x64\x40\xa7" + bytes(200),
    "a JPEG picture": b"\xff\xd8\xff\xe0\0\x10JFIF\0" + bytes(300),
    "a Parquet file": b"PAR1" + bytes(300),
    "a zip archive": b"PK\x03\x04" + bytes(200),
    "an npy file": b"\x93NUMPY\x01\0\x76\0{'descr': '<f8'}".ljust(127) + b"\n" + bytes(64),
    "an MP4 video": b"\0\0\0\x18ftypisom" + bytes(200),
    "an lzip file": b"LZIP\x01" + bytes(300),
    "an LZMA file": b"\x5d\0\0\x80\0" + b"\xff" * 8 + bytes(300),
    "a file of unknown kind": b"\x01\x02\0" + bytes(300),
}


def test_a_pax_size_may_have_leading_zeros():
    data = pax(record(b"size", b"5".zfill(24))) + header() + b"hello".ljust(512, b"\0") + END
    assert read(data)[0][1] == b"hello"
    with pytest.raises(BadHeaderError, match="The PAX header has a size of"):
        read(pax(record(b"size", b"5" * 24)) + header() + END)


@pytest.mark.parametrize(("kind", "data"), NO_TARS.items())
def test_an_object_of_another_kind_is_named_however_short(kind, data):
    for size in (len(data), 512, 5000):
        with pytest.raises(NotATarError, match=f"Not a tar archive: {kind}"):
            read(data.ljust(size, b"\1"))


@pytest.mark.parametrize("name", ["BMW.jpg", "PK", "ID3.txt", "n" * 99, "\u00e4.txt"])
def test_an_archive_cut_in_its_first_header_is_cut_whatever_its_name(name):
    whole = archive_of([(name, b"1")])
    for size in range(101, 512):
        with pytest.raises(TruncatedShardError, match="inside a header"):
            read(whole[:size])


def test_a_global_header_ends_with_its_archive():
    data = pax(record(b"path", b"g"), kind=b"g") + header() + END
    assert names(data, header(), END) == ["g", "a.jpg"]


def test_the_stream_is_read_to_its_end_so_that_its_checksum_is_checked():
    def blocks():
        yield TWO[:3000]
        yield TWO[3000:]
        raise OSError("checksum of the whole")

    with pytest.raises(OSError, match="checksum of the whole"):
        list(TarReader(blocks()))


def test_an_extension_header_without_a_member_is_cut():
    with pytest.raises(TruncatedShardError, match="extension header"):
        read(pax(record(b"path", b"a")), END)
    with pytest.raises(TruncatedShardError, match="extension header"):
        read(pax(record(b"path", b"a")), require_end=False)


# Not an archive


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<!DOCTYPE html><html><body>s3cret</body></html>", "an HTML page"),
        (b'{"status":404,"message":"s3cret"}' * 40, "JSON"),
        (b"root:x:0:0:s3cret:/root:/bin/bash\n", "plain text"),
        (b"\xef\xbb\xbf<?xml version='1.0'?><a>s3cret</a>", "an XML document"),
        (b"PK\3\4" + b"s3cret" * 200, "a zip archive"),
        (b"PAR1" + b"s3cret" * 200, "a Parquet file"),
        (b"\xff\xd8\xff\xe0" + b"s3cret" * 200, "a JPEG picture"),
        (b"RIFF\x24\0\0\0WAVE" + b"s3cret" * 200, "a WAV file"),
        (b"\0\1\2\3s3cret" * 60, "a file of unknown kind (it begins with the bytes 00 01 02 03)"),
    ],
)
def test_of_what_is_no_archive_the_kind_is_named_and_nothing_is_quoted(body, kind):
    with pytest.raises(NotATarError, match="regex=") as caught:
        read(body)
    assert caught.value.url == URL
    assert f"Not a tar archive: {kind}." in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_damaged_number_is_shown_by_four_bytes_at_most():
    damaged = bytearray(TWO)
    at = 512
    while damaged[at + 257 : at + 262] != b"ustar":  # the second header stands behind the first member
        at += 512
    damaged[at + 148 : at + 156] = b"s3cretzz"
    with pytest.raises(BadHeaderError, match="number field") as caught:
        read(bytes(damaged))
    assert "s3cret" not in str(caught.value)


def test_an_empty_object_says_so():
    with pytest.raises(TruncatedShardError, match="an empty object"):
        read(b"")


def test_a_damaged_first_header_is_a_damaged_archive():
    damaged = bytearray(TWO)
    damaged[3] ^= 1
    with pytest.raises(BadHeaderError, match="checksum"):
        read(bytes(damaged))


# Places in errors


@pytest.mark.parametrize(
    ("cut", "member"),
    [(100, None), (512, "a.jpg"), (1211, "a.jpg"), (1212, "a.jpg"), (1535, "a.jpg"), (1600, None)],
)
def test_promise_9_a_cut_names_url_member_and_offset(cut, member):
    with pytest.raises(TruncatedShardError) as caught:
        read(TWO[:cut])
    assert (caught.value.url, caught.value.member, caught.value.offset) == (URL, member, cut)


def test_promise_9_offsets_are_absolute_after_a_resume():
    assert read(TWO[1536:], start=1536) == read(TWO)[1:]
    with pytest.raises(TruncatedShardError) as caught:
        read(TWO[1536:2050], start=1536)
    assert (caught.value.member, caught.value.offset) == ("a.cls", 2050)
    with pytest.raises(BadHeaderError) as caught:
        read(TWO[512:], start=512)
    assert caught.value.offset == 512


# Options


def test_unwanted_members_are_passed_over():
    assert names(TWO, want=lambda name: name.endswith(".cls")) == ["a.cls"]
    assert names(header(kind=b"2", link=b"t"), END, want=lambda name: False) == []
    with pytest.raises(TruncatedShardError, match="passed over"):
        read(TWO[:1400], want=lambda name: False)


def test_promise_7_a_member_above_the_limit_is_an_error_before_its_data_is_read():
    with pytest.raises(ShardError, match="max_member_bytes=699") as caught:
        read(TWO[:512], max_member_bytes=699)
    assert (caught.value.member, caught.value.offset) == ("a.jpg", 0)
    assert len(read(TWO, max_member_bytes=700)) == 2
    assert names(TWO, max_member_bytes=1, want=lambda name: name == "a.cls") == ["a.cls"]


def test_promise_7_a_size_that_cannot_be_true_costs_no_memory():
    huge = header(size=b"\x80" + b"\0\0\0\1" + bytes(7))
    tracemalloc.start()
    try:
        with pytest.raises(TruncatedShardError):
            read(huge, b"x" * 5000)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_promise_7_memory_is_the_largest_member_and_two_blocks():
    member = archive(("big.bin", bytes(8 << 20)))

    def blocks():
        for at in range(0, len(member), 1 << 20):
            yield bytes(bytearray(member[at : at + (1 << 20)]))

    tracemalloc.start()
    try:
        for _ in TarReader(blocks()):
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (8 << 20) * 9 / 8 + (3 << 20)


def test_blocks_are_pulled_as_they_are_needed():
    pulled = []

    def blocks():
        for at in range(0, len(TWO), 512):
            pulled.append(at)
            yield TWO[at : at + 512]

    members = iter(TarReader(blocks()))
    assert pulled == []
    next(members)
    assert pulled == [0, 512, 1024]


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_blocks_may_be_any_buffer_and_may_be_empty(kind):
    assert list(TarReader([b"", kind(TWO[:700]), kind(b""), kind(TWO[700:])])) == read(TWO)


# Archives of GNU tar


def gnu_tar():
    tar = shutil.which("tar")
    if (
        tar is None
        or b"GNU" not in subprocess.run([tar, "--version"], capture_output=True, check=True).stdout
    ):
        pytest.skip("GNU tar is not here")
    return tar


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "é.txt").write_bytes(b"unicode")
    (tmp_path / "d" / ("l" * 90)).mkdir()
    (tmp_path / "d" / ("l" * 90) / "deep.jpg").write_bytes(b"j" * 1000)
    (tmp_path / "empty.cls").touch()
    (tmp_path / "link.jpg").symlink_to("empty.cls")
    os.link(tmp_path / "empty.cls", tmp_path / "hard.cls")
    return tmp_path


@pytest.mark.parametrize("kind", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_archives_of_gnu_tar_in_every_format(tree, kind):
    data = subprocess.run(
        [gnu_tar(), "-c", f"--format={kind}", "--sort=name", "-C", tree, "."],
        capture_output=True,
        check=False,
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(data), encoding="utf-8") as tar:
        expected = [
            (info.name, tar.extractfile(info).read() if info.isreg() else info.linkname)
            for info in tar
            if not info.isdir()
        ]
    assert [(name, data) for name, data, *_ in read(data)] == expected
    assert len(expected) >= 4


def test_archives_of_gnu_tar_with_labels_and_times(tree, tmp_path_factory):
    snapshot = tmp_path_factory.mktemp("snapshot") / "list"
    data = subprocess.run(
        [
            gnu_tar(),
            "-c",
            "--label=train.v1",
            f"--listed-incremental={snapshot}",
            "--sort=name",
            "-C",
            tree,
            ".",
        ],
        capture_output=True,
        check=True,
    ).stdout
    assert sorted(name.rsplit("/", 1)[1] for name in names(data)) == sorted(
        ["empty.cls", "hard.cls", "link.jpg", "é.txt", "deep.jpg"]
    )


@pytest.mark.parametrize("version", ["0.0", "0.1", "1.0", "old"])
def test_sparse_files_of_gnu_tar_are_refused(tmp_path, version):
    with (tmp_path / "sparse.bin").open("wb") as file:
        file.write(b"a")
        file.truncate(1 << 20)
        file.seek((1 << 20) - 1)
        file.write(b"b")
    kind = ["--format=gnu"] if version == "old" else ["--format=posix", f"--sparse-version={version}"]
    data = subprocess.run(
        [gnu_tar(), "-cS", *kind, "-C", tmp_path, "sparse.bin"], capture_output=True, check=True
    )
    if len(data.stdout) > 1 << 20:
        pytest.skip("this file system has no holes")
    with pytest.raises(BadHeaderError, match="sparse") as caught:
        read(data.stdout)
    assert "sparse.bin" in caught.value.member


def test_promise_7_extension_headers_of_a_member_have_a_bound():
    """Each is small enough; together they would be kept without an end."""
    one = pax(record(b"comment", b"x" * 1_000_000))
    with pytest.raises(BadHeaderError, match=r"bytes of extension headers, more than 2097152"):
        read(*[one] * 4, archive(("a", b"1")))
    assert len(read(*[one] * 2, archive(("a", b"1")))) == 1
    with pytest.raises(BadHeaderError, match=r"An extension header of .* bytes, more than 1048576"):
        read(pax(record(b"comment", b"x" * (1 << 20))), archive(("a", b"1")))


@pytest.mark.parametrize("kind", ["path", "linkpath"])
def test_promise_7_names_have_a_bound(kind):
    read(pax(record(kind.encode(), b"x" * 65_536)), archive(("a", b"1")))
    with pytest.raises(BadHeaderError, match=rf"a {kind} of 65537 characters, more than 65536"):
        read(pax(record(kind.encode(), b"x" * 65_537)), archive(("a", b"1")))


# Members in place


TIMED = pax(record(b"mtime", b"1700000000.5")) + header(b"a.Mask.PNG", octal(600)) + bytes(1024)
USUAL = TWO[:2560] + TIMED
NAMED = ("a", ["jpg", "cls", "mask.png"])
SIZES = [len(data) for _, data, *_ in read(USUAL, require_end=False)]


@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_usual_members_are_those_of_the_reader(kind):
    members = usual_members(kind(USUAL), 5120, *NAMED, SIZES)
    expected = read(USUAL, start=5120, require_end=False)
    assert members == [(*one[:3], field) for one, field in zip(expected, NAMED[1], strict=True)]
    assert [type(data) for _, data, *_ in members] == [bytes] * 3
    assert usual_members(kind(b""), 0, "a", [], []) == []


@pytest.mark.parametrize(
    "unusual",
    [
        header(kind=b"1", link=b"a.cls"),
        header(kind=b"5"),
        header(kind=b"\0"),
        header(kind=b"7"),
        header(size=b"0000000000x\0"),
        header(b"b.jpg"),
        header(b"aa.jpg"),
        header(b"a.jpgs"),
        header(b"a.jpeg"),
        header(b"a.jpg".ljust(100, b"g")),
        header(extra={345: b"folder"}),
        pax(record(b"path", b"b.jpg")) + header(),
        pax(record(b"mtime", b"1700000000.5"), kind=b"g") + header(),
        pax(record(b"mtime", b"1700000000.5")) * 2 + header(),
        header(b"././@LongLink", octal(4), b"L") + b"long".ljust(512, b"\0") + header(),
        bytes(512),
        b"",
    ],
)
def test_other_members_are_left_to_the_reader(unusual):
    key, fields = NAMED
    assert len(usual_members(USUAL + header(), 0, key, [*fields, "jpg"], [*SIZES, 0])) == 4
    assert usual_members(USUAL + unusual, 0, key, [*fields, "jpg"], [*SIZES, 0]) is None
    assert usual_members(unusual + USUAL, 0, key, ["jpg", *fields], [0, *SIZES]) is None
    assert usual_members(USUAL + TIMED[:1024], 0, key, fields, SIZES) is None, "no member follows"


@pytest.mark.parametrize(
    "fields", [[], ["jpg", "cls"], ["cls", "jpg", "mask.png"], ["jpg", "cls", "mask.PNG"]]
)
def test_a_sample_of_other_fields_is_left_to_the_reader(fields):
    assert usual_members(USUAL, 0, "a", fields, SIZES[: len(fields)]) is None


def test_a_cut_member_is_left_to_the_reader():
    for cut in range(0, len(USUAL), 64):
        assert usual_members(USUAL[:cut], 0, *NAMED, SIZES) is None
    assert usual_members(USUAL + bytes(512), 0, *NAMED, SIZES) is None


def test_headers_are_checked_where_they_are_not_as_indexed():
    wrong = header(checksum=b"0000000\0")
    key, fields = NAMED
    assert len(usual_members(USUAL + wrong, 0, key, [*fields, "jpg"], [*SIZES, 0])) == 4
    assert usual_members(USUAL + wrong, 0, key, [*fields, "jpg"], [*SIZES, 1]) is None
    expected = usual_members(USUAL, 0, *NAMED, SIZES)
    assert usual_members(USUAL, 0, *NAMED, [1, 2, 3]) == expected, "the sizes of the headers"
