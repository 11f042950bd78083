"""Shards that other programs write, through webdataset 1.0.2 and through the facade: the same samples come out."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from differential_samples import image

import torchdata_ais.webdataset as ours

theirs = pytest.importorskip("webdataset")
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::UserWarning"),
    pytest.mark.usefixtures("files_left_open"),
]

# They run in the folder with the files. SHARD is the file to write, LIST one that names files in order.
PROGRAMS: dict[str, str] = {
    **{f"GNU tar, {form}": f"tar --format={form} --sort=name -cf SHARD ." for form in ("gnu", "pax")},
    "GNU tar, ustar": "tar --format=ustar -cf SHARD -T LIST",
    **{f"GNU tar, {form}": f"tar --format={form} --sort=name -cf SHARD short" for form in ("v7", "oldgnu")},
    "GNU tar, folders named": "tar --sort=name -cf SHARD short long",
    "GNU tar, no folders": "tar --sort=name --no-recursion -cf SHARD short/000000000.jpg short/000000000.txt",
    "GNU tar, owner and time": "tar --sort=name --owner=0 --group=0 --mtime=@0 -cf SHARD .",
    "GNU tar, time in no header": "tar --format=pax --sort=name --pax-option=delete=mtime -cf SHARD .",
    "GNU tar, block by block": "tar --sort=name -b 1 -cf SHARD .",
    "GNU tar, renamed": "tar --sort=name --transform=s,short/,part/, -cf SHARD short",
    "GNU tar, gz": "tar --sort=name -czf SHARD .",
    "GNU tar, bz2": "tar --sort=name -cjf SHARD .",
    "GNU tar, xz": "tar --sort=name -cJf SHARD .",
    "GNU tar, with a label": "tar --sort=name --label=train -cf SHARD .",
    "GNU tar, with attributes": "tar --sort=name --format=pax --xattrs -cf SHARD .",
    **{
        f"bsdtar, {form}": f"bsdtar --format={form} -ncf SHARD -T LIST"
        for form in ("ustar", "pax", "gnutar", "v7tar")
    },
    "bsdtar, gz": "bsdtar -nczf SHARD -T LIST",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layout of img2dataset (five digits for the shard, four for the sample), and names that are hard to store."""
    root = tmp_path_factory.mktemp("files")
    for folder, key in [("short", f"0000000{i:02d}") for i in range(3)] + [
        ("long", "n" * 120),
        ("long/" + "d" * 90, "m" * 70),
        ("long/ü x", "é"),
    ]:
        path = root / folder
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{key}.jpg").write_bytes(image("JPEG"))
        (path / f"{key}.txt").write_text(f"a caption of {key}")
        (path / f"{key}.json").write_text(
            json.dumps({"key": key, "status": "success", "width": 5, "exif": "{}"})
        )
    (root / "short" / "README").write_text("not of a sample")
    (root / "short" / "empty").mkdir()
    return root


def read(library: Any, shard: Path) -> list[dict[str, Any]]:
    samples = library.WebDataset(str(shard), shardshuffle=False).decode("rgb8")
    return [{**sample, "jpg": sample["jpg"].tolist()} for sample in samples]


@pytest.mark.parametrize("program", PROGRAMS)
def test_shards_of_other_programs_are_read_alike(program: str, files: Path, tmp_path: Path) -> None:
    shard = tmp_path / "00000.tar"
    paths = sorted(path for path in files.rglob("*") if path.is_file() and len(path.name) < 80)
    (tmp_path / "list").write_text("\n".join(str(path.relative_to(files)) for path in paths))
    places = {"SHARD": str(shard), "LIST": str(tmp_path / "list")}
    words = [places.get(word, word) for word in PROGRAMS[program].split()]
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    subprocess.run(words, cwd=files, check=True, timeout=60)
    expected = read(theirs, shard)
    assert read(ours, shard) == expected
    assert len(expected) >= 1
    assert all({"__key__", "__url__", "jpg", "txt"} <= sample.keys() for sample in expected)


def test_shards_that_were_appended_to_are_read_alike(files: Path, tmp_path: Path) -> None:
    for words in (["-cf", "a.tar"], ["-rf", "a.tar"], ["-cf", "b.tar"], ["-Af", "a.tar"]):
        number = {"-cf": 0 if words[1] == "a.tar" else 2, "-rf": 1}.get(words[0])
        members = [f"short/00000000{number}.{field}" for field in ("jpg", "txt")]
        subprocess.run(
            ["tar", words[0], str(tmp_path / words[1]), "-C", str(files)]
            + ([str(tmp_path / "b.tar")] if words[0] == "-Af" else members),
            check=True,
            timeout=60,
        )
    assert read(ours, tmp_path / "a.tar") == read(theirs, tmp_path / "a.tar")
    assert len(read(ours, tmp_path / "a.tar")) == 3
