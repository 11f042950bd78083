"""Reads hostile shards and fields one after the other, and prints by how much the memory of the process peaked in each.

Run as ``python hostile_program.py``; prints ``{case: [peak in MiB, outcome]}`` as JSON.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from memory_program import forget_peak, resident
from PIL import Image

import torchdata_ais
from torchdata_ais.codecs import Decoder
from torchdata_ais.errors import AISError
from torchdata_ais.tar import TarBuilder

LIMIT = 1 << 20
END = bytes(1024)


def header(name: str, kind: bytes = b"0", size: int = 0, target: str = "") -> bytes:
    """A tar header; of one name, made once and changed where headers of a series differ."""
    raw = bytearray(TarBuilder().member("x", b"")[0])
    raw[:100] = name.encode()[:100].ljust(100, b"\0")
    raw[124:136] = b"%011o\0" % size
    raw[156:157] = kind
    raw[157:257] = target.encode().ljust(100, b"\0")
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw)


def extension(kind: bytes, payload: bytes) -> bytes:
    return header("././@ext", kind, len(payload)) + payload + bytes(-len(payload) % 512)


def pax(word: str, value: str) -> bytes:
    rest = f" {word}={value}\n".encode()
    length = len(rest) + len(str(len(rest) + 7))
    return str(length).encode() + rest if len(str(length)) + len(rest) == length else b""


def many(names: Callable[[int], str], count: int) -> Iterator[bytes]:
    for first in range(0, count, 4000):
        yield b"".join(header(names(number)) for number in range(first, min(count, first + 4000)))


def shards(count: int) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Names of cases, and the shards without their ends."""
    yield "empty members of one key", many(lambda number: f"a.{number}", count)
    yield "members without a key", many(lambda number: f"README{number}", count)
    yield (
        "members without a key behind a sample",
        iter([header("a.cls"), *many(lambda number: f"README{number}", count)]),
    )
    long = "a." + "x" * 60_000
    yield (
        "long names",
        (extension(b"L", f"{long}{number}".encode() + b"\0") + header("a") for number in range(2000)),
    )
    wide = "a." + "\U0001f600" + "x" * 60_000
    yield (
        "long names of wide characters",
        (extension(b"L", f"{wide}{number}".encode() + b"\0") + header("a") for number in range(1000)),
    )
    yield "a name of 400 kB", iter([extension(b"L", b"a." + b"x" * 400_000), header("a")])
    value = "a." + "x" * 50_000
    record = f" path={value}\n".encode()
    payload = str(len(record) + 5).encode() + record
    yield "one global name", iter([extension(b"g", payload), *[header(f"n{i}") for i in range(20_000)]])
    yield (
        "extension headers alone",
        iter([extension(b"x", b"12 path=a.b\n") * 4000] * (count // 8000) + [header("a")]),
    )
    yield (
        "global headers alone",
        iter([extension(b"g", b"12 path=a.b\n") * 4000] * (count // 8000) + [header("a.cls")]),
    )
    links = (header(f"a.{number}", b"1", 0, "a.cls") for number in range(count // 8))
    yield "links", iter([header("a.cls"), *links])
    keys = "k" * 50_000
    yield (
        "samples with long keys",
        (extension(b"L", f"{keys}{number}.c".encode() + b"\0") + header("a") for number in range(4000)),
    )


def png(width: int, height: int, kind: int = 0, depth: int = 8) -> bytes:
    channels = {0: 1, 2: 3, 6: 4}[kind]
    packer = zlib.compressobj(1)
    row = bytes(1 + width * channels * depth // 8)
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def icon(inner: bytes) -> bytes:
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(inner), 22) + inner


def icns(inner: bytes) -> bytes:
    return b"icns" + struct.pack(">I", 16 + len(inner)) + b"ic07" + struct.pack(">I", 8 + len(inner)) + inner


def saved(kind: str, size: tuple[int, int], mode: str = "L", **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.new(mode, size).save(stream, kind, **options)
    return stream.getvalue()


def fields() -> Iterator[tuple[str, str, bytes, dict[str, Any]]]:
    """Case, field, bytes and options of decode."""
    line = png(20_000, 1)
    big = png(9000, 9000)
    yield "a line of 20000 pixels, shorter=224", "png", line, {"shorter": 224}
    yield "a line of 20000 pixels, mask", "png", line, {"shorter": 224, "spec": "mask"}
    yield "a line of 20000 pixels, rgba", "png", line, {"shorter": 224, "spec": "rgba8"}
    yield "a column of a million pixels, size=224", "png", png(1, 1_000_000), {"size": 224}
    small = {"max_pixels": 1 << 20}
    yield "a large png", "png", big, small
    yield "a large png as pil", "png", big, {**small, "spec": "pil"}
    yield "a large mask", "png", big, {**small, "spec": "mask"}
    yield "16 bits and four channels", "png", png(4000, 4000, 6, 16), small
    yield "a large png in an icon", "ico", icon(big), small
    yield "a large png in an icns", "icns", icns(big), small
    yield (
        "a large gif of several frames",
        "gif",
        saved("GIF", (4000, 4000), save_all=True, append_images=[Image.new("L", (4000, 4000))] * 2),
        small,
    )
    yield (
        "a large tiff of several frames",
        "tiff",
        saved(
            "TIFF",
            (4000, 4000),
            compression="tiff_lzw",
            save_all=True,
            append_images=[Image.new("L", (10, 10))],
        ),
        small,
    )
    yield "a large webp", "webp", saved("WEBP", (4000, 4000), "RGB"), small
    yield "a large jpeg", "jpg", saved("JPEG", (4000, 4000), "RGB"), small
    yield "a large grey jpeg", "jpg", saved("JPEG", (4000, 4000)), small
    yield "gzip of 300 MB", "bin.gz", gzip.compress(bytes(300 << 20)), {"max_gz_bytes": 8 << 20}
    yield "gzip of 64 MB, allowed", "bin.gz", gzip.compress(bytes(64 << 20)), {"max_gz_bytes": 64 << 20}


def measured(run: Callable[[], str]) -> tuple[float, str]:
    forget_peak()
    before = resident("VmRSS")
    try:
        outcome = run()
    except AISError as error:
        outcome = f"{type(error).__name__}: {error}"[:600]
    return round((resident("VmHWM") - before) / (1 << 20), 1), outcome


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        measure_in(Path(folder))


def measure_in(folder: Path) -> None:
    found: dict[str, tuple[float, str]] = {}
    # All is imported.
    Decoder("torchrgb8", size=8)({"png": png(9, 9), "ico": icon(png(16, 16)), "txt": b""})
    (folder / "first.tar").write_bytes(header("a.cls") + END)
    first = torchdata_ais.AISFileLoader([str(folder / "first.tar")]).group_samples()
    assert [sample["__key__"] for sample in first] == ["a"]
    torchdata_ais.stats(first)
    for name, blocks in shards(int(sys.argv[1])):
        path = folder / "s.tar.gz"
        with gzip.open(path, "wb", compresslevel=1) as file:
            for block in blocks:
                file.write(block)
            file.write(header("z.cls") + END)

        def read(path: Path = path) -> str:
            safety = torchdata_ais.Safety(max_sample_bytes=LIMIT)
            pipe = torchdata_ais.AISFileLoader([str(path)], safety=safety, on_error="skip")
            keys = [
                sample["__key__"]
                for sample in pipe.group_samples(on_error="skip")
                if len(sample["__key__"]) < 9
            ]
            return json.dumps([keys, torchdata_ais.stats(pipe).stages[-1].skipped])

        found[name] = measured(read)
    for name, field, data, options in fields():

        def decode(field: str = field, data: bytes = data, options: dict[str, Any] = options) -> str:
            spec = options.pop("spec", "torchrgb8")
            decoded = Decoder(spec, **options)({"__key__": "k", field: data})[field]
            return f"{type(decoded).__name__}"

        found[name] = measured(decode)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
