"""Generated archives, whole and damaged. `tarfile` says what is in a whole one."""

import bz2
import contextlib
import gzip
import io
import itertools
import lzma
import tarfile

import pytest
from helpers.examples import examples
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from torchdata_ais.errors import ShardError
from torchdata_ais.tar import Link, TarReader, decompress

zstandard = pytest.importorskip("zstandard")


V7 = "v7"
FORMATS = (V7, tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
COMPRESSORS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


def in_blocks(data, sizes):
    """Cut data into blocks of the given sizes, over and over."""
    pos = 0
    for size in itertools.cycle(sizes):
        if pos >= len(data):
            return
        yield data[pos : pos + size]
        pos += size


def ours(blocks, **options):
    return [
        (name, ("link", str(data), data.symbolic) if isinstance(data, Link) else data)
        for name, data, _, _ in TarReader(blocks, **options)
    ]


def oracle(archive):
    members = []
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:", encoding="utf-8") as tar:
        for info in tar:
            if info.isreg():
                members.append((info.name, tar.extractfile(info).read()))
            elif info.islnk() or info.issym():
                members.append((info.name, ("link", info.linkname, info.issym())))
    return members


def as_v7(header):
    header = bytearray(header[:257] + bytes(255))
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def build(members, kind, *, end=True, padded=True):
    """Return an archive. `members` are (name, type, data, link target, mtime)."""
    out = io.BytesIO()
    for name, type_, data, target, mtime in members:
        info = tarfile.TarInfo(name)
        info.type, info.size, info.linkname, info.mtime = type_, len(data), target, mtime
        try:
            if kind == V7:
                if len(name.encode("utf-8", "surrogateescape")) > 99:
                    continue
                header = as_v7(info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape"))
            else:
                header = info.tobuf(kind, "utf-8", "surrogateescape")
        except ValueError:  # too long for USTAR
            continue
        if type_ == tarfile.AREGTYPE and header[-512:-412].rstrip(b"\0").endswith(b"/"):
            continue  # a long name, cut after a slash: tarfile takes it for a directory
        out.write(header + data + bytes(-len(data) % 512))
    if end:
        out.write(bytes(1024))
        if padded:
            out.write(bytes(-out.tell() % 10240))
    return out.getvalue()


segment = st.text(st.sampled_from("abz019._- ~@é漢\udcff"), min_size=1, max_size=12) | st.sampled_from(
    ["x" * 60, "k" * 99, "y" * 130, "0001.jpg", "0001.seg.png", "README", "__meta__", "._a", "."]
)
names = st.lists(segment, min_size=1, max_size=5).map("/".join)
sizes = st.sampled_from([0, 1, 5, 100, 511, 512, 513, 1024, 1500])


@st.composite
def members(draw, max_size=8):
    out = []
    for _ in range(draw(st.integers(0, max_size))):
        type_ = draw(
            st.sampled_from([tarfile.REGTYPE] * 6 + [tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.CONTTYPE])
            | st.sampled_from([tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE])
        )
        with_data = type_ in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
        size = draw(sizes) if with_data else 0
        fill = draw(st.sampled_from([b"\0", b"a", b"\xff\0\x01", b"ustar\x0000"]))
        data = (fill * (size // len(fill) + 1))[:size]
        target = draw(names) if type_ in (tarfile.LNKTYPE, tarfile.SYMTYPE) else ""
        mtime = draw(st.sampled_from([0, 1_700_000_000]))
        out.append((draw(names), type_, data, target, mtime))
    return out


block_sizes = st.lists(st.sampled_from([1, 2, 7, 100, 511, 512, 513, 4096, 1 << 16]), min_size=1, max_size=4)


def test_the_oracle_sees_what_was_generated():
    built = build(
        [("a/é.txt", tarfile.REGTYPE, b"1", "", 0), ("b", tarfile.SYMTYPE, b"", "a/é.txt", 0)],
        tarfile.PAX_FORMAT,
    )
    assert oracle(built) == [("a/é.txt", b"1"), ("b", ("link", "a/é.txt", True))]


@settings(max_examples=examples(300), deadline=None)
@given(members(), st.sampled_from(FORMATS), block_sizes, st.booleans())
def test_members_are_those_of_tarfile(content, kind, cut_into, padded):
    archive = build(content, kind, padded=padded)
    assert ours(in_blocks(archive, cut_into)) == oracle(archive)


@settings(max_examples=examples(60), deadline=None)
@given(
    members(), st.sampled_from(FORMATS), block_sizes, st.sampled_from(list(COMPRESSORS)), st.integers(1, 9000)
)
def test_compressed_members_are_those_of_tarfile(content, kind, cut_into, compression, split):
    archive = build(content, kind)
    compress = COMPRESSORS[compression]
    body = compress(archive[:split]) + compress(archive[split:])  # several streams are one body
    assert ours(decompress(in_blocks(body, cut_into))) == oracle(archive)


@settings(max_examples=examples(60), deadline=None)
@given(members(), st.sampled_from(FORMATS), block_sizes)
def test_reading_begins_again_at_every_next_offset(content, kind, cut_into):
    archive = build(content, kind)
    found = list(TarReader([archive]))
    for n, (_, _, begin, next_offset) in enumerate(found):
        assert list(TarReader(in_blocks(archive[begin:], cut_into), start=begin)) == found[n:]
        assert list(TarReader([archive[next_offset:]], start=next_offset)) == found[n + 1 :]


def whole_or_error(blocks, whole, *, prefix=True):
    """Whether the blocks gave an error; raises if they gave anything but the whole, or its beginning before."""
    found = []
    failure = None
    try:
        for name, data, _, _ in TarReader(blocks):
            found.append((name, ("link", str(data), data.symbolic) if isinstance(data, Link) else data))
    except ShardError as error:
        failure = error
    if failure is None:
        assert found == whole
        return False
    assert failure.offset is not None
    assert not prefix or found == whole[: len(found)]
    return True


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(members(max_size=5), st.sampled_from(FORMATS), st.booleans(), st.integers(0, 2))
def test_promise_1_a_cut_at_every_offset_is_an_error_or_the_whole(content, kind, padded, phase):
    """Near the borders of blocks at every offset, elsewhere at every third; of the zeros at the end, at few."""
    archive = build(content, kind, padded=padded)
    whole = ours([archive])
    last = max((next_offset for *_, next_offset in TarReader([archive])), default=0)
    for cut in range(len(archive)):
        if (cut + 8) % 512 > 16 and cut % (3 if cut < last + 1024 else 48) != phase:
            continue
        failed = whole_or_error([archive[:cut]], whole)
        assert failed or cut >= last + 512, "whole only with an end marker"


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(members(max_size=4), st.sampled_from(FORMATS), st.integers(0, 2))
def test_promise_1_a_flipped_bit_in_every_header_byte_is_an_error_or_the_whole(content, kind, phase):
    """Every third bit, others in each byte."""
    archive = build(content, kind)
    whole = ours([archive])
    damaged = bytearray(archive)
    for header in headers_of(archive):
        for position in range(header, header + 512):
            for bit in range((position + phase) % 3, 8, 3):
                damaged[position] ^= 1 << bit
                whole_or_error([bytes(damaged)], whole)
                damaged[position] ^= 1 << bit


def headers_of(archive):
    """Return the offsets of all headers, extension headers included, by magic or as tarfile finds them."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        starts = {info.offset for info in tar} | {info.offset_data - 512 for info in tar}
    return sorted(starts)


@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(members(max_size=4), st.sampled_from(FORMATS), st.sampled_from(list(COMPRESSORS)))
def test_promise_1_a_cut_compressed_body_is_an_error_or_the_whole(content, kind, compression):
    archive = build(content, kind)
    whole = ours([archive])
    body = COMPRESSORS[compression](archive)
    for cut in range(len(body)):
        whole_or_error(decompress([body[:cut]]), whole)


FIXED = build(
    [
        ("000000.jpg", tarfile.REGTYPE, bytes(range(256)) * 3, "", 0),
        ("000000.cls", tarfile.REGTYPE, b"7", "", 0),
        ("x" * 150 + "/000001.jpg", tarfile.REGTYPE, b"\0" * 1024, "", 0),
        ("README", tarfile.REGTYPE, b"", "", 0),
        ("000002.jpg", tarfile.LNKTYPE, b"", "000000.jpg", 0),
        ("d", tarfile.DIRTYPE, b"", "", 0),
        ("é.cls", tarfile.REGTYPE, b"8", "", 0),
    ],
    tarfile.PAX_FORMAT,
)


@pytest.mark.parametrize("compression", list(COMPRESSORS))
def test_promise_1_a_compressed_body_cut_at_every_offset_is_an_error(compression):
    body = COMPRESSORS[compression](FIXED)
    whole = ours([FIXED])
    for cut in range(len(body)):
        assert whole_or_error(decompress([body[:cut]]), whole), cut


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "compression",
    [pytest.param(name, marks=pytest.mark.ci if name == "bz2" else ()) for name in COMPRESSORS],
)
def test_promise_1_a_flipped_bit_in_every_byte_of_a_compressed_body_is_an_error_or_the_whole(compression):
    body = bytearray(COMPRESSORS[compression](FIXED))
    whole = ours([FIXED])
    errors = 0
    for position, bit in itertools.product(range(len(body)), range(8)):
        body[position] ^= 1 << bit
        errors += whole_or_error(decompress([bytes(body)]), whole, prefix=False)
        body[position] ^= 1 << bit
    assert errors > 0.9 * 8 * len(body)


@pytest.mark.quick(6)
@pytest.mark.parametrize("block_size", [1, 100, 512, 1 << 16])
@pytest.mark.parametrize("kind", FORMATS)
def test_promise_1_the_cut_is_seen_with_blocks_of_any_size(kind, block_size):
    archive = build(
        [(f"{n}.jpg", tarfile.REGTYPE, b"\xff" * 700, "", 0) for n in range(3)], kind, padded=False
    )
    whole = ours([archive])
    for cut in range(0, len(archive), 97 if block_size == 1 else 13):
        failed = whole_or_error(in_blocks(archive[:cut], [block_size]), whole)
        assert failed or cut >= len(archive) - 512


@settings(max_examples=examples(60), deadline=None)
@given(members(max_size=5), st.sampled_from(FORMATS))
def test_promise_1_a_wiped_header_is_an_error(content, kind):
    content = [(*member[:2], b"x" * len(member[2]), *member[3:]) for member in content]
    archive = build(content, kind)
    for header in headers_of(archive):
        if archive[header + 512 :].strip(b"\0"):  # else it is the end of a shorter archive, to any reader
            with pytest.raises(ShardError):
                ours([archive[:header] + bytes(512) + archive[header + 512 :]])


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=3000), st.lists(st.integers(0, 3000), max_size=3))
def test_any_bytes_are_an_error_of_this_package_or_an_archive(data, zeros):
    for at in zeros:
        data = data[:at] + bytes(600) + data[at:]
    whole_or_error([data], [])
    whole_or_error(decompress([data]), [])


@settings(max_examples=examples(150), deadline=None)
@given(members(), st.sampled_from(FORMATS), st.data())
def test_a_damaged_archive_is_never_another_kind_of_error(content, kind, data):
    archive = bytearray(build(content, kind))
    for _ in range(data.draw(st.integers(1, 4))):
        archive[data.draw(st.integers(0, min(len(archive), 4000) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ShardError):
        ours([bytes(archive)])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(members(max_size=25), st.sampled_from(FORMATS))
def test_promise_1_archives_up_to_64_kib_cut_and_flipped_everywhere(content, kind):
    archive = build(content, kind)
    assume(len(archive) <= 64 << 10)
    whole = ours([archive])
    for cut in range(len(archive)):
        whole_or_error([archive[:cut]], whole)
    damaged = bytearray(archive)
    for position in itertools.chain.from_iterable(range(at, at + 512) for at in headers_of(archive)):
        for bit in range(8):
            damaged[position] ^= 1 << bit
            whole_or_error([bytes(damaged)], whole)
            damaged[position] ^= 1 << bit
