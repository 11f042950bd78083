"""Decompression of shards: formats by content, several streams, damage, bounds."""

import bz2
import gzip
import lzma
import random
import shutil
import subprocess
import sys
import tracemalloc
import zlib

import pytest
from helpers.archives import archive_of

from torchdata_ais.errors import (
    BadHeaderError,
    ChecksumError,
    NotATarError,
    ShardError,
    TruncatedShardError,
    UsageError,
)
from torchdata_ais.tar import TarReader, decompress, is_compressed
from torchdata_ais.tar.compression import ZSTD

zstandard = pytest.importorskip("zstandard")

URL = "ais://bucket/shard.tar.gz"


def zst(data, **options):
    return zstandard.ZstdCompressor(write_checksum=True, **options).compress(data)


def zst_without_size(data):
    """What a pipe through `zstd` writes: the length is not known in advance, blocks are flushed."""
    engine = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    out = b""
    for at in range(0, len(data), 50_000):
        out += engine.compress(data[at : at + 50_000]) + engine.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return out + engine.flush()


COMPRESSORS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zst,
    "zst-stream": zst_without_size,
}
each_format = pytest.mark.parametrize("compress", COMPRESSORS.values(), ids=COMPRESSORS)

random.seed(0)
TEXT = b" ".join(random.choice([b"shard", b"sample", b"tree", b"\0", b"0001"]) for _ in range(200_000))
NOISE = random.randbytes(300_000)


def expand(*blocks, **options):
    return b"".join(decompress(blocks, url=URL, **options))


@pytest.mark.quick(8)
@each_format
@pytest.mark.parametrize(
    "data", [b"", b"a", TEXT, NOISE, bytes(3_000_000)], ids=["empty", "a", "text", "noise", "zeros"]
)
def test_what_was_compressed_comes_out(compress, data):
    body = compress(data)
    assert is_compressed(body[:10])
    assert expand(body) == data


@each_format
@pytest.mark.parametrize("size", [1, 3, 1000, 70_000])
def test_blocks_may_have_any_size(compress, size):
    body = compress(TEXT[:200_000])
    assert expand(*(body[at : at + size] for at in range(0, len(body), size))) == TEXT[:200_000]


def test_other_bodies_pass_through_untouched():
    blocks = [b"BZh9", b" is the name of a member".ljust(600, b"\0"), b"", b"more"]
    passed = list(decompress(blocks))
    assert len(passed) == len(blocks)
    assert all(out is block for out, block in zip(passed, blocks, strict=True))
    assert list(decompress([])) == []
    assert not is_compressed(b"BZh9.jpg\0\0\0")


@each_format
def test_streams_after_each_other_are_one_body_and_zeros_between_and_after_are_padding(compress):
    assert expand(compress(b"one ") + compress(b"") + compress(b"two")) == b"one two"
    assert expand(compress(b"one ") + bytes(700), bytes(300) + compress(b"two") + bytes(512)) == b"one two"


@each_format
@pytest.mark.parametrize("size", [1, 10_000])
def test_promise_1_what_follows_a_stream_is_a_stream_or_an_error(compress, size):
    body = compress(b"one") + b"garbage after it" * 4
    with pytest.raises(ShardError) as caught:
        expand(*(body[at : at + size] for at in range(0, len(body), size)))
    assert isinstance(caught.value, BadHeaderError)
    assert "follows" in str(caught.value)


@each_format
def test_promise_1_a_second_stream_that_is_cut_is_an_error(compress):
    first, second = compress(b"one"), compress(TEXT[:5000])
    for cut in range(1, len(second)):
        with pytest.raises(TruncatedShardError):
            expand(first + second[:cut])


def test_promise_1_a_wrong_gzip_checksum_or_length_is_an_error():
    body = bytearray(gzip.compress(TEXT))
    for position in (-1, -8):
        body[position] ^= 1
        with pytest.raises(ChecksumError) as caught:
            expand(bytes(body))
        body[position] ^= 1
        assert caught.value.url == URL
        assert caught.value.offset == len(body)


@each_format
def test_a_cut_names_the_place_in_the_compressed_object(compress):
    body = compress(NOISE)
    with pytest.raises(TruncatedShardError, match="in the middle") as caught:
        expand(body[:1000], body[1000:5000])
    assert (caught.value.url, caught.value.offset) == (URL, 5000)


def test_members_before_the_damage_are_read():
    archive = archive_of([(f"{n}.bin", random.randbytes(2 << 20)) for n in range(3)])
    body = gzip.compress(archive, 1)
    members = iter(TarReader(decompress([body[: len(body) * 9 // 10]])))
    assert [next(members)[0], next(members)[0]] == ["0.bin", "1.bin"]
    with pytest.raises(TruncatedShardError):
        next(members)


def test_a_compressed_page_of_html_is_no_archive():
    with pytest.raises(NotATarError, match="an HTML page"):
        list(TarReader(decompress([gzip.compress(b"<html>" * 200)])))


def test_frames_of_parallel_zstd_begin_with_a_frame_to_skip():
    skippable = b"\x53\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"index"
    assert expand(skippable + zst(b"one ") + skippable + zst(b"two")) == b"one two"
    with pytest.raises(TruncatedShardError):
        expand(skippable + zst(b"one ") + skippable[:-1])


def test_an_lz4_stream_behind_a_frame_to_skip_is_named():
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"index"
    with pytest.raises(NotATarError, match="an LZ4 file"):
        expand(skippable * 2, b"\x04\x22\x4d\x18" + bytes(2000))


@pytest.mark.parametrize("size", [1, 2, 3, 9, 600])
@each_format
def test_however_few_bytes_follow_a_stream_they_are_not_a_cut_one(compress, size):
    with pytest.raises(BadHeaderError, match="follows the"):
        expand(compress(b"one") + b"x" * size)


def test_zstd_without_a_content_checksum_and_with_a_long_window():
    assert expand(zstandard.ZstdCompressor(write_checksum=False).compress(TEXT)) == TEXT
    parameters = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    assert expand(zstandard.ZstdCompressor(compression_params=parameters).compress(TEXT)) == TEXT


@pytest.mark.parametrize("tool", ["gzip", "bzip2", "xz", "zstd"])
def test_output_of_the_command_line_tools(tool):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not here")
    body = subprocess.run([tool, "-c"], input=TEXT, capture_output=True, check=True).stdout
    assert expand(body) == TEXT


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, ZSTD, None)
    with pytest.raises(UsageError, match=r"pip install backports.zstd"):
        expand(zst(b"one"))


# Bounds


@pytest.mark.quick(2)
@each_format
def test_promise_7_a_bomb_is_an_error_and_its_memory_is_bounded(compress):
    body = compress(bytes(32 << 20)) * 4
    sizes = []

    def defuse():
        sizes.extend(map(len, decompress([body], max_ratio=100)))

    tracemalloc.start()
    try:
        with pytest.raises(ShardError, match="max_ratio=100") as caught:
            defuse()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.offset is not None
    assert max(sizes) <= 1 << 20
    assert sum(sizes) < 64 << 20
    assert peak < 24 << 20


def test_the_ratio_does_not_count_for_small_shards():
    zeros = bytes(4 << 20)
    for compress in COMPRESSORS.values():
        assert expand(compress(zeros)) == zeros
    assert expand(gzip.compress(zeros), max_ratio=2) == zeros


def test_text_is_far_below_the_ratio():
    lines = b'{"caption": "a photograph of a tree", "width": 1024, "height": 768}\n' * 300_000
    assert expand(gzip.compress(lines)) == lines


def test_promise_7_an_xz_header_cannot_ask_for_any_memory():
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]
    body = bytearray(lzma.compress(b"one", filters=filters))
    at = (
        body.index(b"\x21\x01") + 2
    )  # the dictionary size in the block header: bits, with a CRC after the header
    body[at] = 40  # 4 GiB
    size = (body[12] + 1) * 4
    body[12 + size - 4 : 12 + size] = zlib.crc32(bytes(body[12 : 12 + size - 4])).to_bytes(4, "little")
    with pytest.raises(ShardError, match="too large a window"):
        expand(bytes(body))


def test_promise_7_a_zstd_header_cannot_ask_for_any_memory():
    frame = b"\x28\xb5\x2f\xfd" + b"\x00" + bytes([31 - 10 << 3]) + b"\x01\x00\x00"
    with pytest.raises(ShardError):
        expand(frame)


def test_a_transport_error_passes_through_unchanged():
    def blocks():
        yield gzip.compress(NOISE)[:1000]
        raise OSError("reset by peer")

    with pytest.raises(OSError, match="reset by peer"):
        list(decompress(blocks()))
