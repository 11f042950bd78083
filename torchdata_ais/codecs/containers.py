"""Containers of sound and video: whether a file is as long as it says.

The libraries that decode them take a cut file for a short one. Formats by their specifications: RIFF, RF64 (EBU Tech
3306), Wave64, IFF, AU, CAF, Ogg (RFC 3533), NIST Sphere, ISO base media (ISO 14496-12), Matroska (RFC 9559).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from torchdata_ais.errors import DecodeError


class Measure(NamedTuple):
    """Bytes of a sound, and the least and most frames that decoding must give.

    If the file lacked its length, `data` has it. `most` is None if the container does not have the number.
    """

    data: bytes
    least: int = 0
    most: int | None = None


def exactly(data: bytes, frames: int | None) -> Measure:
    """Return the measure of a sound of so many frames; None: not known."""
    return Measure(data) if frames is None else Measure(data, frames, frames)


def cut(what: str, at: int, there: int, stated: int) -> DecodeError:
    """Return the error of a file that ends inside a part of it."""
    return DecodeError.at(f"the file is cut: its {what} at byte {at} has {max(there, 0)} of {stated} bytes")


def wrong(what: str) -> DecodeError:
    """Return the error of a file whose lengths contradict each other."""
    return DecodeError.at(f"the file is cut, or a length in it is wrong: {what}")


class _Chunk(NamedTuple):
    name: bytes
    at: int  # of its header
    begin: int  # of its content
    size: int

    @property
    def end(self) -> int:
        return self.begin + self.size


class _Layout(NamedTuple):
    """Chunks of a format: a name, a length, the content, padding."""

    name_bytes: int
    size_bytes: int
    order: Literal["little", "big"]
    align: int
    counts_head: bool = False  # whether the length counts name and length, too

    def chunks(self, data: bytes, at: int) -> Iterator[_Chunk]:
        """Yield the chunks from byte `at` on, until one exceeds the data."""
        head = self.name_bytes + self.size_bytes
        while at + head <= len(data):
            size = int.from_bytes(data[at + self.name_bytes : at + head], self.order)
            size -= head if self.counts_head else 0
            chunk = _Chunk(data[at : at + self.name_bytes], at, at + head, size)
            yield chunk
            if size < 0 or chunk.end > len(data):
                return
            at = self.after(data, chunk)

    def after(self, data: bytes, chunk: _Chunk) -> int:
        """Return where the next chunk begins: some writers leave out the padding."""
        padded = chunk.end + -chunk.size % self.align
        return chunk.end if padded != chunk.end and _is_name(data[chunk.end : chunk.end + 4]) else padded

    def ends_well(self, data: bytes, at: int) -> bool:
        """Return whether the rest of the data from byte `at` on is chunks."""
        for chunk in self.chunks(data, at):
            if chunk.size < 0 or chunk.end > len(data) or not _is_name(chunk.name[:4]):
                return False
            at = self.after(data, chunk)
        return len(data) - at <= self.align

    def content(self, data: bytes, at: int, wanted: bytes) -> tuple[_Chunk, dict[bytes, _Chunk]]:
        """Return the chunk with the samples, and those before it, all whole."""
        before: dict[bytes, _Chunk] = {}
        for chunk in self.chunks(data, at):
            name = chunk.name[:4]
            if name == wanted:
                return chunk, before
            if chunk.size < 0 or chunk.end > len(data):
                raise cut(f"{_shown(name)} chunk", chunk.at, len(data) - chunk.begin, chunk.size)
            before[name] = chunk
        raise wrong(f"there is no {_shown(wanted)} chunk before its end at byte {len(data)}")

    def check_rest(self, data: bytes, chunk: _Chunk) -> None:
        """Raise `DecodeError` unless chunks, or some zeros, follow the samples."""
        begin = self.after(data, chunk)
        is_filling = len(data) - begin <= _FILLING and not data[begin:].strip(b"\0")
        if not is_filling and not self.ends_well(data, begin):
            raise wrong(
                f"no chunk follows the {_shown(chunk.name[:4])} chunk of {chunk.size} bytes, at byte {chunk.end}"
            )


_FILLING = 4096  # zeros that some writers put after the samples

_RIFF = _Layout(4, 4, "little", 2)
_IFF = _Layout(4, 4, "big", 2)
_CAF = _Layout(4, 8, "big", 1)
_WAVE64 = _Layout(16, 8, "little", 8, counts_head=True)


def _is_name(name: bytes) -> bool:
    return len(name) == 4 and all(32 <= byte < 127 for byte in name)


def _shown(name: bytes) -> str:
    return name.decode("ascii", "replace").strip()


_UNKNOWN = 0xFFFFFFFF  # a length that was not known when the header was written; sox writes others
_UNKNOWN_TO_SOX = range(0x7FFFF000, 0x80000000)


def measure_wave(data: bytes) -> Measure:
    """Return the measure of a WAV or RF64 file, also of one from a pipe."""
    chunk, before = _RIFF.content(data, 12, b"data")
    there = len(data) - chunk.begin
    long_sizes = before.get(b"ds64")
    if long_sizes is not None and chunk.size == _UNKNOWN:
        long = int.from_bytes(data[long_sizes.begin + 8 : long_sizes.begin + 16], "little")
        chunk = chunk._replace(size=long or _UNKNOWN)
    block = _wave_block(data, before.get(b"fmt "))
    is_unknown = chunk.size > there and (chunk.size == _UNKNOWN or chunk.size in _UNKNOWN_TO_SOX)
    if is_unknown or (chunk.size == 0 and not _RIFF.ends_well(data, chunk.begin)):
        return _with_length(data, chunk, block)
    if chunk.size > there:
        raise cut("data chunk", chunk.at, there, chunk.size)
    if int.from_bytes(data[4:8], "little") + 8 >= len(data):
        _RIFF.check_rest(data, chunk)
    _check_last_frame(chunk.end, chunk.size % (block or 1), block, has_padding=True)
    if chunk.size % 2 and chunk.end == len(data):
        data += b"\0"  # libsndfile reads the last block of GSM wrongly without it
    return exactly(data, chunk.size // block if block else None)


def _wave_block(data: bytes, chunk: _Chunk | None) -> int:
    """Return the bytes of a frame of plain samples; 0 of any others."""
    if chunk is None or chunk.size < 16:
        return 0
    kind, block = (int.from_bytes(data[at : at + 2], "little") for at in (chunk.begin, chunk.begin + 12))
    if kind == 0xFFFE:  # the kind is the beginning of a GUID
        kind = int.from_bytes(data[chunk.begin + 24 : chunk.begin + 26], "little")
    return block if kind in (1, 3, 6, 7) else 0


def _with_length(data: bytes, chunk: _Chunk, block: int) -> Measure:
    """Return the measure of a WAV file that ends where its samples do."""
    size = len(data) - chunk.begin
    _check_last_frame(len(data), size % (block or 1), block, has_padding=True)
    size -= size % (block or 1)
    head = b"RIFF" + (chunk.begin + size - 8).to_bytes(4, "little") + data[8 : chunk.at + 4]
    filled = head + size.to_bytes(4, "little") + data[chunk.begin : chunk.begin + size]
    return exactly(filled, size // block if block else None)


def _check_last_frame(end: int, rest: int, block: int, *, has_padding: bool = False) -> None:
    """Raise `DecodeError` if a sound ends inside a frame of `block` bytes.

    `rest` is what follows its last whole frame. With `has_padding` the format is filled up to an even number of bytes.
    """
    if rest > (1 if has_padding and end % 2 == 0 else 0):
        raise cut("last frame", end - rest, rest, block)


def measure_wave64(data: bytes) -> Measure:
    """Return the measure of a Wave64 file."""
    chunk, before = _WAVE64.content(data, 40, b"data")
    if not 0 <= chunk.size <= len(data) - chunk.begin:
        raise cut("data chunk", chunk.at, len(data) - chunk.begin, chunk.size)
    _WAVE64.check_rest(data, chunk)
    block = _wave_block(data, before.get(b"fmt "))
    return exactly(data, chunk.size // block if block else None)


_SAMPLES_OF_IFF = {b"AIFF": b"SSND", b"AIFC": b"SSND", b"8SVX": b"BODY", b"16SV": b"BODY"}
_PLAIN_AIFC = frozenset(
    b"NONE sowt twos fl32 FL32 fl64 FL64 in24 in32 ulaw alaw ULAW ALAW 23ni 42ni".split()
) | {b"raw "}


def measure_iff(data: bytes) -> Measure:
    """Return the measure of an AIFF, AIFF-C or SVX file."""
    wanted = _SAMPLES_OF_IFF.get(data[8:12])
    if wanted is None:
        return Measure(data)
    chunk, before = _IFF.content(data, 12, wanted)
    if chunk.size > len(data) - chunk.begin:
        raise cut(f"{_shown(wanted)} chunk", chunk.at, len(data) - chunk.begin, chunk.size)
    _IFF.check_rest(data, chunk)
    common = before.get(b"COMM") or next((one for one in _IFF.chunks(data, 12) if one.name == b"COMM"), None)
    if common is None:
        return Measure(data)
    at = common.begin
    kind = data[at + 18 : at + 22] if data[8:12] == b"AIFC" else b"NONE"
    if kind not in _PLAIN_AIFC and kind != b"ima4":
        return Measure(data)
    return exactly(data, int.from_bytes(data[at + 2 : at + 6], "big") * (64 if kind == b"ima4" else 1))


_AU_BYTES = {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 8, 27: 1}  # of a sample, by its encoding


def measure_au(data: bytes) -> Measure:
    """Return the measure of an AU file, in either order of bytes."""
    order: Literal["little", "big"] = "big" if data.startswith(b".") else "little"
    begin, size, encoding, _, channels = (int.from_bytes(data[at : at + 4], order) for at in range(4, 24, 4))
    if len(data) < max(begin, 24):
        raise cut("header", 0, len(data), max(begin, 24))
    there = len(data) - begin
    block = _AU_BYTES.get(encoding, 0) * channels
    if size == _UNKNOWN:
        size = there
    if size > there:
        raise cut("sound", begin, there, size)
    if there > size + 1:
        raise wrong(f"{there - size} bytes follow the sound of {size} bytes, at byte {begin + size}")
    _check_last_frame(begin + size, size % (block or 1), block)
    return exactly(data, size // block if block else None)


def measure_caf(data: bytes) -> Measure:
    """Return the measure of a CAF file."""
    chunk, before = _CAF.content(data, 8, b"data")
    there = len(data) - chunk.begin
    is_last = chunk.size == (1 << 64) - 1  # to the end of the file
    chunk = chunk._replace(size=there) if is_last else chunk
    if chunk.size > there:
        raise cut("data chunk", chunk.at, there, chunk.size)
    _CAF.check_rest(data, chunk)
    described = before.get(b"desc")
    if described is None:
        raise wrong("there is no desc chunk")
    at, size = described.begin, chunk.size - 4  # a count of edits comes first
    packet = int.from_bytes(data[at + 16 : at + 20], "big")
    if packet:
        _check_last_frame(len(data), size % packet if is_last else 0, packet)
        is_plain = int.from_bytes(data[at + 20 : at + 24], "big") == 1
        return exactly(data, size // packet if is_plain else None)
    table = before.get(b"pakt") or next(
        (one for one in _CAF.chunks(data, chunk.end) if one.name == b"pakt"), None
    )
    if table is None:
        raise wrong(f"there is no pakt chunk before its end at byte {len(data)}")
    return exactly(data, int.from_bytes(data[table.begin + 8 : table.begin + 16], "big"))


def measure_nist(data: bytes) -> Measure:
    """Return the measure of a NIST Sphere file."""
    digits = data[8:16].strip()
    begin = int(digits) if digits.isdigit() else 0
    if begin < 1024:
        raise wrong(f"its header has {digits.decode('ascii', 'replace')!r} bytes")
    if begin > len(data):
        raise cut("header", 0, len(data), begin)
    lines = [line.split(None, 2) for line in data[16:begin].splitlines()]
    fields = {line[0]: line[2].strip() for line in lines if len(line) == 3}
    values = [fields.get(name, b"") for name in (b"sample_count", b"channel_count", b"sample_n_bytes")]
    if not all(value.isdigit() for value in values) or b"," in fields.get(b"sample_coding", b""):
        return Measure(data)  # compressed: refused by libsndfile
    frames, channels, width = map(int, values)
    if begin + frames * channels * width > len(data):
        raise cut("sound", begin, len(data) - begin, frames * channels * width)
    return exactly(data, frames)


def check_ogg(data: bytes) -> None:
    """Raise `DecodeError` unless every page and every stream is complete.

    A stream ends with a page that has the end flag.
    """
    at = 0
    following: dict[bytes, int] = {}  # the number of the next page of each stream
    while at < len(data):
        begin = at + 27 + (data[at + 26] if at + 26 < len(data) else 0)
        end = begin + sum(data[at + 27 : begin])
        if end > len(data) or begin > len(data):
            raise cut("last page", at, len(data) - at, end - at)
        if not data.startswith(b"OggS", at):
            raise wrong(f"there is no page at byte {at}")
        flags, serial = data[at + 5], data[at + 14 : at + 18]
        number = int.from_bytes(data[at + 18 : at + 22], "little")
        if number != following.get(serial, number if flags & 2 else -1):
            raise wrong(f"a page before the one at byte {at} is missing")
        following[serial] = number + 1
        if flags & 4:
            del following[serial]
        at = end
    if following:
        raise DecodeError.at(
            f"the file is cut: no page before its end at byte {at} has the end flag of the stream"
        )


def check_boxes(data: bytes) -> None:
    """Raise `DecodeError` unless the boxes of an MP4 or QuickTime file fit.

    It must have one with the samples and one that describes them.
    """
    at = 0
    kinds: set[bytes] = set()
    while at + 8 <= len(data):
        size, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        size = int.from_bytes(data[at + 8 : at + 16], "big") if size == 1 else size or len(data) - at
        if size < 8 or at + size > len(data):
            raise cut(f"{_shown(kind)} box", at, len(data) - at, size)
        kinds.add(kind)
        at += size
    if at < len(data):
        raise cut("last box", at, len(data) - at, 8)
    for kind in (b"moov", b"mdat"):
        if kind not in kinds:
            raise wrong(f"there is no {_shown(kind)} box before its end at byte {at}")


_SEGMENT, _CLUSTER = 0x18538067, 0x1F43B675


def check_matroska(data: bytes) -> None:
    """Raise `DecodeError` unless the elements of a Matroska or WebM file fit.

    Segments and clusters may have an unknown length: elements in them do not.
    """
    at, has_segment = 0, False
    while at < len(data):
        name, begin = _vint(data, at, keep_marker=True)
        size, begin = _vint(data, begin, keep_marker=False)
        if begin > len(data):
            raise cut("last element", at, len(data) - at, begin - at)
        if size is None:
            if name not in (_SEGMENT, _CLUSTER):
                raise wrong(f"the element at byte {at} has no length")
            has_segment = True
            at = begin  # what is in it follows
            continue
        if begin + size > len(data):
            raise cut("segment" if name == _SEGMENT else "last element", at, len(data) - begin, size)
        has_segment = has_segment or name == _SEGMENT
        at = begin + size
    if not has_segment:
        raise wrong(f"there is no segment before its end at byte {len(data)}")


def _vint(data: bytes, at: int, *, keep_marker: bool) -> tuple[int | None, int]:
    """Return a number of variable length, None for all bits set, and its end."""
    first = data[at] if at < len(data) else 0x80
    count = 9 - first.bit_length() if first else 9
    value = int.from_bytes(data[at : at + count], "big")
    if keep_marker:
        return value, at + count
    value &= (1 << 7 * count) - 1
    return (None if value == (1 << 7 * count) - 1 else value), at + count


def check_avi(data: bytes) -> None:
    """Raise `DecodeError` unless the lists of an AVI file fit."""
    at = 0
    while data[at : at + 4] == b"RIFF":
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if size in (0, _UNKNOWN):
            return  # written into a pipe
        if at + 8 + size > len(data):
            raise cut("RIFF list", at, len(data) - at - 8, size)
        at += 8 + size + size % 2
