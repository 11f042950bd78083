"""Frames of FLAC and MPEG audio: their number, and their last one.

Formats by RFC 9639 (FLAC), ISO 11172-3 and ISO 13818-3 (MPEG audio), and the headers of encoders: Xing, Info, VBRI.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from torchdata_ais.codecs.containers import Measure, cut, exactly, wrong


def after_id3(data: bytes, at: int = 0) -> int:
    """Return where the ID3v2 tags that begin at byte `at` end."""
    while data[at : at + 3] == b"ID3" and len(data) >= at + 10:
        size = functools.reduce(lambda value, byte: value << 7 | byte & 0x7F, data[at + 6 : at + 10], 0)
        end = at + 10 + size + (10 if data[at + 5] & 0x10 else 0)
        if end > len(data):
            raise cut("ID3 tag", at, len(data) - at, end - at)
        at = end
    return at


def measure_flac(data: bytes, begin: int) -> Measure:
    """Return the measure of a FLAC file.

    One that was written into a pipe gets its length, that of its last frame.
    """
    at, is_last = begin + 4, False
    while not is_last:
        size = int.from_bytes(data[at + 1 : at + 4], "big")
        if at + 4 + size > len(data):
            raise cut("metadata block", at, len(data) - at, 4 + size)
        is_last = data[at] >= 0x80
        at += 4 + size
    info = begin + 8
    fixed = int.from_bytes(data[info : info + 2], "big")
    total = int.from_bytes(data[info + 13 : info + 18], "big") & 0xFFFFFFFFF
    end = len(data) - 128 if data[-128:-125] == b"TAG" else len(data)
    if at >= end:
        if total:
            raise wrong(f"there is no frame of its {total} samples before its end at byte {end}")
        return exactly(data, 0)
    place, sync = end, data[at : at + 2]
    while (place := data.rfind(sync, at, place)) >= 0:
        stop = _flac_frame_end(data[place : place + 16], fixed)
        if stop is not None and (stop == total if total else not _crc(data[place:end], 16, 0x8005)):
            break
    else:
        raise wrong(
            f"its last frame, before byte {end}, is not " + (f"that of {total} samples" if total else "whole")
        )
    if total:
        return exactly(data, total)
    filled = bytearray(data)
    filled[info + 13 : info + 18] = (int.from_bytes(data[info + 13 : info + 18], "big") | stop).to_bytes(
        5, "big"
    )
    return exactly(bytes(filled), stop)


def _flac_frame_end(head: bytes, fixed: int) -> int | None:
    """Return the number of the first sample after a frame; None if it is none.

    `head` is its first 16 bytes, `fixed` the samples of a frame, if all frames but the last have the same.
    """
    more = 0 if len(head) < 5 or head[4] < 0x80 else 7 - (head[4] ^ 0xFF).bit_length()
    if len(head) < 6 or head[3] & 1 or not head[2] >> 4 or (head[4] >= 0x80 and not more):
        return None
    number = head[4] & (0x7F >> more)
    for byte in head[5 : 5 + more]:
        number = number << 6 | byte & 0x3F
    at, code = 5 + more, head[2] >> 4
    if code in (6, 7):
        samples = int.from_bytes(head[at : at + code - 5], "big") + 1
        at += code - 5
    else:
        samples = 192 if code == 1 else 576 << code - 2 if code < 6 else 256 << code - 8
    at += {12: 1, 13: 2, 14: 2}.get(head[2] & 15, 0)
    if at >= len(head) or _crc(head[:at], 8, 0x07) != head[at]:
        return None
    return samples + (number if head[1] & 1 else number * fixed)


def _crc(data: bytes, width: int, polynomial: int) -> int:
    table, value, mask = _crc_table(width, polynomial), 0, (1 << width) - 1
    for byte in data:
        value = (value << 8 ^ table[value >> width - 8 ^ byte]) & mask
    return value


@functools.cache
def _crc_table(width: int, polynomial: int) -> list[int]:
    table = []
    for byte in range(256):
        value = byte << width - 8
        for _ in range(8):
            value = (value << 1 ^ (polynomial if value >> width - 1 else 0)) & (1 << width) - 1
        table.append(value)
    return table


_KBITS = {
    (3, 3): range(32, 449, 32),
    (3, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (3, 1): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 3): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 1): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Kilobits a second by version (3: MPEG-1, 2: later) and layer (3: layer I, 1: layer III)."""

_HERTZ = (44100, 48000, 32000)
_HALVINGS = {3: 0, 2: 1, 0: 2}


class _Frame(NamedTuple):
    """Frame of MPEG audio.

    Attributes:
        kind: Version, layer and rate, which all frames of a sound have in common.
        size: In bytes; 0 if it is not stated (free format).
        samples: A channel.
        tag: Where an encoder puts its own header, from the beginning of the frame.
    """

    kind: tuple[int, int, int]
    size: int
    samples: int
    tag: int


def _mpeg_frame(data: bytes, at: int) -> _Frame | None:
    """Return the frame at byte `at`; None without a header of one."""
    head = int.from_bytes(data[at : at + 4], "big")
    version, layer, bits, rate = head >> 19 & 3, head >> 17 & 3, head >> 12 & 15, head >> 10 & 3
    if head >> 21 != 0x7FF or len(data) < at + 4 or version == 1 or not layer or bits == 15 or rate == 3:
        return None
    is_first, is_mono = version == 3, head >> 6 & 3 == 3
    samples = 384 if layer == 3 else 576 if layer == 1 and not is_first else 1152
    size = 0
    if bits:
        thousands = _KBITS[3 if is_first else 2, layer][bits - 1] * 1000
        hertz = _HERTZ[rate] >> _HALVINGS[version]
        size = samples // 8 * thousands // hertz // (4 if layer == 3 else 1) * (4 if layer == 3 else 1)
        size += (head >> 9 & 1) * (4 if layer == 3 else 1)
    tag = 4 + ((17 if is_mono else 32) if is_first else (9 if is_mono else 17))
    return _Frame((version, layer, rate), size, samples, tag)


_SEARCHED = 64 << 10  # bytes before the first frame that may be anything


def measure_mpeg(data: bytes, begin: int) -> Measure:
    """Return the measure of an MP3 or MP2 file.

    One of frames of several sizes gets their number if it is without: decoders guess it from the first frame.

    Raises:
        DecodeError: Its last frame is cut, bytes between two frames are none, or an encoder's header has another
            number of frames.
    """
    first = _first_frame(data, begin)
    frame = None if first is None else _mpeg_frame(data, first)
    if first is None or frame is None or not frame.size:
        return Measure(data)  # no frame, which the decoder reports; or free format
    if first > begin and _mpeg_frame(data, begin) is not None:
        raise wrong(f"no frame follows the one at byte {begin}")
    at = end = first
    count = 0
    is_constant = True
    while at < len(data):
        found = _mpeg_frame(data, at)
        if found is not None and found.kind == frame.kind and found.size:
            if at + found.size > len(data):
                raise cut("last frame", at, len(data) - at, found.size)
            at = end = at + found.size
            count += 1
            is_constant = is_constant and abs(found.size - frame.size) <= _PADDING
        elif (after := _after_tag(data, at)) > at:
            at = after
        elif data[at] == 0xFF and len(data) - at < 4:
            raise cut("last frame", at, len(data) - at, frame.size)
        elif _first_frame(data, at, frame.kind) is not None:
            raise wrong(f"there is no frame at byte {at}, before further ones")
        else:
            break
    return _counted(data, first, frame, count, end, is_constant)


def _first_frame(data: bytes, at: int, kind: tuple[int, int, int] | None = None) -> int | None:
    """Return where the first of two consecutive frames begins."""
    last = min(len(data), at + _SEARCHED)
    while (at := data.find(b"\xff", at, last)) >= 0:
        frame = _mpeg_frame(data, at)
        if frame is not None and kind in (None, frame.kind):
            following = _mpeg_frame(data, at + frame.size) if frame.size else None
            if at + frame.size == len(data) or (following is not None and following.kind == frame.kind):
                return at
        at += 1
    return None


def _after_tag(data: bytes, at: int) -> int:
    """Return where a tag, or padding, that begins at byte `at` ends."""
    if data.startswith(b"TAG", at):
        return min(at + 128, len(data))
    if data.startswith(b"ID3", at):
        return after_id3(data, at)
    if data.startswith(b"APETAGEX", at):
        return min(at + 32 + int.from_bytes(data[at + 12 : at + 16], "little"), len(data))
    if data.startswith(b"LYRICSBEGIN", at):
        end = max(data.find(mark, at) for mark in (b"LYRICSEND", b"LYRICS200"))
        return end + 9 if end >= 0 else len(data)
    if data[at] == 0:
        return len(data) - len(data[at:].lstrip(b"\0"))
    return at


_PADDING = 4


def _counted(data: bytes, first: int, frame: _Frame, count: int, end: int, is_constant: bool) -> Measure:
    """Return the measure of `count` frames, compared with the encoder's own.

    Its header is in the first frame, which has no sound then.
    """
    tag, vbri = first + frame.tag, first + 36
    stated = stated_bytes = None
    trimmed = 0
    if data[tag : tag + 4] in (b"Xing", b"Info"):
        flags, at = data[tag + 7], tag + 8
        if flags & 1:
            stated = int.from_bytes(data[at : at + 4], "big")
        if flags & 2:
            at += 4 if flags & 1 else 0
            stated_bytes = int.from_bytes(data[at : at + 4], "big")
        delays = int.from_bytes(data[tag + 141 : tag + 144], "big")
        trimmed = (delays >> 12) + (delays & 0xFFF)
    elif data[vbri : vbri + 4] == b"VBRI":
        stated_bytes, stated = (int.from_bytes(data[at : at + 4], "big") for at in (vbri + 10, vbri + 14))
        trimmed = _DELAY
    if stated is None:
        if not is_constant:
            data = data[:first] + _info_frame(data, first, frame, count) + data[first:]
        return Measure(data, max((count - 1) * frame.samples, 0))
    if stated not in (count - 1, count):
        raise wrong(
            f"the header of the encoder says {stated} frames, and there are {count - 1} before byte {end}"
        )
    if stated == count and stated_bytes and stated_bytes > end - first:
        raise cut("sound", first, end - first, stated_bytes)
    return Measure(data, max((count - 2) * frame.samples - trimmed, 0))


_DELAY = 4096  # samples; more than any encoder puts before a sound


def _info_frame(data: bytes, at: int, frame: _Frame, count: int) -> bytes:
    """Return a frame without sound with the number of all others."""
    head = int.from_bytes(data[at : at + 4], "big") & ~0xF200 | 0x19000
    made = head.to_bytes(4, "big") + bytes(frame.tag - 4) + b"Info\0\0\0\x01" + count.to_bytes(4, "big")
    wanted = _mpeg_frame(made, 0)
    return made.ljust(wanted.size, b"\0") if wanted is not None and frame.kind[1] == 1 else b""
