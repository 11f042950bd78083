"""Shards and source files that several tests read."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path
from typing import Any

from PIL import Image

KEYS = ("a", "b/c", "d.x/e", "caf\u00e9", "long/" * 40 + "f", "x" * 120, "g\udce9")
FIELDS = ("jpg", "seg.PNG", "cls", "json", "y" * 110, "\u00fc.txt")
LOOSE = ("README", ".hidden", "__meta__/a.json", "folder/", "d/._a.jpg", "n" * 200)
FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def random_shard(rng: random.Random) -> bytes:
    """An archive with members of all kinds, whole samples one after the other."""
    out = io.BytesIO()
    kind = rng.choice(FORMATS[1:])
    with tarfile.open(fileobj=out, mode="w", format=kind, errors="surrogateescape") as archive:

        def add(name: str, data: bytes = b"", link: str = "", type_: bytes = tarfile.REGTYPE) -> None:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = type_, link, len(data)
            archive.addfile(info, io.BytesIO(data))

        def add_loose() -> None:
            if rng.random() < 0.3:
                name = rng.choice(LOOSE)
                is_folder = name.endswith("/")
                add(
                    name,
                    b"" if is_folder else rng.randbytes(rng.randrange(1500)),
                    type_=b"5" if is_folder else b"0",
                )

        for number in range(rng.randrange(6)):
            add_loose()
            key = f"{rng.choice(KEYS)}{number}"
            fields = rng.sample(FIELDS, rng.randrange(1, 5))
            for place, field in enumerate(fields):
                if place and rng.random() < 0.3:
                    target = f"{key}.{fields[0]}"
                    if rng.random() < 0.5:
                        add(f"{key}.{field}", link=target, type_=tarfile.LNKTYPE)
                    else:
                        add(f"{key}.{field}", link=target.rpartition("/")[2], type_=tarfile.SYMTYPE)
                else:
                    add(
                        f"{key}.{field}",
                        rng.randbytes(rng.choice([0, 1, 511, 512, 513, rng.randrange(3000)])),
                    )
                add_loose()
        add_loose()
    return out.getvalue()


def odd_shards(folder: Path) -> list[str]:
    """Write three shards of five samples: plain, PAX and GNU headers, links, a long name, a member without a key."""
    rng, paths = random.Random(1), []
    for number, kind in enumerate([tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]):
        path = folder / f"s-{number}.tar"
        with tarfile.open(path, "w", format=kind) as archive:

            def add(name: str, data: bytes, link: str = "", archive: Any = archive) -> None:
                info = tarfile.TarInfo(name)
                info.mtime = 1.5 if archive.format == tarfile.PAX_FORMAT else 1
                if link:
                    info.type, info.linkname = tarfile.SYMTYPE, link
                    archive.addfile(info)
                    return
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))

            for sample in range(5):
                long = "long" * 30 if number == 2 and sample == 2 else ""
                key = f"d{number}/{long}{sample}"
                add(f"{key}.JPG", rng.randbytes(rng.choice([0, 511, 512, 513, 20000])))
                if sample == 1:
                    add("README", b"hello")
                if sample == 3:
                    add(f"{key}.Mask.png", b"", link=f"{sample}.JPG")
                add(f"{key}.cls", b"%d" % sample)
        paths.append(str(path))
    return paths


def picture(number: int = 1, form: str = "JPEG") -> bytes:
    """Return a picture of 9 x 7 pixels whose color is its number."""
    out = io.BytesIO()
    Image.new("RGB", (9, 7), (number % 255, 100, 200)).save(out, form)
    return out.getvalue()


def lay(root: Path, files: dict[str, bytes | str]) -> Path:
    """Write files by their names under a folder, and return the folder."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return root
