"""Samples for the differential tests: the shapes of well-known data sets, and a field of every type."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

from torchdata_ais.codecs.tenbin import dumps


def image(kind: str, mode: str = "RGB", size: tuple[int, int] = (7, 5), seed: int = 0) -> bytes:
    rng = np.random.default_rng(seed)
    out = io.BytesIO()
    if mode == "I;16":
        picture = Image.fromarray(rng.integers(0, 65535, size[::-1], dtype=np.uint16))
    else:
        picture = Image.fromarray(rng.integers(0, 255, (*size[::-1], 4), dtype=np.uint8), "RGBA").convert(
            mode
        )
    picture.save(out, kind)
    return out.getvalue()


def saved(save: Callable[[io.BytesIO], Any]) -> bytes:
    out = io.BytesIO()
    save(out)
    return out.getvalue()


def npy(value: Any) -> bytes:
    return saved(lambda out: np.save(out, value))


def series(*keys: str, **fields: Callable[[int], bytes]) -> list[tuple[str, bytes]]:
    """Return a member for each key and field, made by the number of the key; ``__`` stands for a dot."""
    return [
        (f"{key}.{field.replace('__', '.')}", make(number))
        for number, key in enumerate(keys)
        for field, make in fields.items()
    ]


def jpeg(number: int) -> bytes:
    return image("JPEG", seed=number)


SHAPES: dict[str, list[tuple[str, bytes]]] = {
    "imagenet": series(*(f"{i:07d}" for i in range(5)), cls=lambda i: b"%03d\n" % i, jpg=jpeg),
    "pets": series(
        *(f"sample_{i:04d}" for i in range(5)),
        cls=lambda i: b"%d" % (i + 1),
        image__jpg=jpeg,
        trimap__png=lambda i: image("PNG", "L", seed=i),
    ),
    "openimages": series(
        "e39871fd9fd74f50", "e39871fd9fd74f51",
        jpg=lambda i: image("JPEG", size=(9, 4 + i)),
        json=lambda i: json.dumps([{"ImageID": i}, {"x": 0.5}]).encode(),
    ),
    "img2dataset": series(
        "000010000", "000010001", "000010004",  # failed downloads leave gaps
        jpg=jpeg,
        json=lambda i: b'{\n    "caption": null,\n    "similarity": NaN, "key": "%d"}' % i,
        txt=lambda i: "caf\u00e9 \u732b".encode() if i else b"",
    ),
    "open_clip": [
        ("a.jpg", jpeg(0)), ("a.txt", b"one"), ("b.jpg", jpeg(1)), ("c.txt", b"three"),
        ("d.png", image("PNG")), ("d.txt", b"four"), ("e.webp", image("WEBP")), ("e.txt", b"five"),
    ],
    "librispeech": series(
        "1272-128104-0000", "1272-128104-0001", flac=lambda i: b"fLaC" * i, txt=lambda i: b"MISTER"
    ),
    "publaynet": series("PMC49_1", "PMC49_2", json=lambda i: b'{"annotations": []}', png=lambda i: image("PNG")),
    "clip benchmark": series("s0", "s1", webp=lambda i: image("WEBP"), cls=lambda i: b"%d" % i),
    "dotted npy": series(
        "k", jpg=jpeg, samlens__npy=lambda i: npy([1, 2]), samcat__npy=lambda i: npy(np.eye(2, dtype="f4"))
    ),
}  # fmt: skip
TYPES: dict[str, bytes] = {
    **dict.fromkeys(["txt", "text", "transcript"], "é\n".encode()),
    **dict.fromkeys(["cls", "cls2", "index", "inx", "id"], b" 042\n"),
    **dict.fromkeys(["json", "jsn", "meta.json"], b'{"a": [1, null, "x", 1e3]}'),
    "npy": npy(np.arange(6, dtype="i2").reshape(2, 3)),
    "txt.gz": gzip.compress(b"zipped"),
    "json.gz": gzip.compress(b"[1]"),
    **dict.fromkeys(["bin", "jpg", "wav", "mp4", "unknown", "TXT2"], b"\0raw"),
    "ten": dumps([np.arange(3.0), np.ones((2, 2), "f4")]),
    "npz": saved(lambda out: np.savez(out, a=np.arange(3), b=np.float32(2))),
    "pth": saved(lambda out: torch.save({"x": torch.arange(3)}, out)),
}
