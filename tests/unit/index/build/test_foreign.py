"""Indexes of other tools: opened, compared with the shards, written. What the tools themselves do: tests/process."""

from __future__ import annotations

import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest
from helpers.shards import odd_shards

from torchdata_ais import AISSampleReader, SampleIndex
from torchdata_ais.errors import NotFoundError, SampleIndexError, UsageError
from torchdata_ais.index.build.foreign_formats import index_headers
from torchdata_ais.local import LocalCluster
from torchdata_ais.store import StoreOptions
from torchdata_ais.testing import write_shard


def samples(index: SampleIndex) -> list[dict[str, Any]]:
    return [dict(sample) for sample in AISSampleReader(index)]


def begins_of(shard: str) -> list[int]:
    """Return where the samples of a shard begin, and where the last ends, as `tarfile` finds them."""
    begins: list[int] = []
    key = None
    with tarfile.open(shard) as archive:
        for member in archive:
            base = member.name.rpartition("/")[2]
            if not member.isreg() or "." not in base:
                continue
            if (now := member.name.partition(".")[0]) != key:
                begins.append(member.offset)
                key = now
        return [*begins, archive.offset]


def write_energon(folder: Path, shards: list[str]) -> None:
    for shard in shards:
        begins = begins_of(shard)
        Path(f"{shard}.idx").write_bytes(struct.pack(f"<{len(begins)}Q", *begins))
    (folder / ".nv-meta").mkdir()
    counts = {Path(shard).name: len(begins_of(shard)) - 1 for shard in shards}
    (folder / ".nv-meta/.info.json").write_text(json.dumps({"energon_version": "7", "shard_counts": counts}))


def test_headers_alone_say_what_reading_says(tmp_path: Path) -> None:
    for shard in odd_shards(tmp_path):
        (entry, found), read = index_headers(shard, StoreOptions()), SampleIndex.build(shard)
        assert found.xxh64 is None
        assert entry.size == Path(shard).stat().st_size
        assert found.keys == list(read.keys)
        assert found.starts == [reference.start for reference in read]
        assert found.sizes == [reference.sizes for reference in read]


def test_a_cut_shard_is_found_by_its_headers(tmp_path: Path) -> None:
    shard = Path(odd_shards(tmp_path)[0])
    shard.write_bytes(shard.read_bytes()[:2000])
    with pytest.raises(Exception, match="ends") as caught:
        index_headers(str(shard), StoreOptions())
    assert type(caught.value).__name__ == "TruncatedShardError"


@pytest.mark.parametrize("where", ["", ".nv-meta/.info.json", "s-*.tar.idx", "s-{0..2}.tar.idx"])
def test_energon_s_index_is_opened(tmp_path: Path, where: str) -> None:
    shards = odd_shards(tmp_path)
    write_energon(tmp_path, shards)
    index = SampleIndex.open(tmp_path / where if where else tmp_path)
    built = SampleIndex.build(shards)
    assert index.digest == built.digest
    assert index.proof == "headers"
    assert samples(index) == samples(built)


def test_energon_s_index_in_a_bucket(tmp_path: Path) -> None:
    shards = odd_shards(tmp_path)
    write_energon(tmp_path, shards)
    with LocalCluster() as cluster:
        cluster.put_dir(tmp_path, "ais://en/d/")
        index = SampleIndex.open("ais://en/d", cluster=cluster.endpoint)
        again = SampleIndex.open("ais://en/d/s-{0..2}.tar.idx", cluster=cluster.endpoint)
        assert index.digest == again.digest
        assert list(index.keys) == list(SampleIndex.build(shards).keys)


def test_a_shard_that_energon_s_index_does_not_fit_is_named(tmp_path: Path) -> None:
    shards = odd_shards(tmp_path)
    write_energon(tmp_path, shards)
    Path(shards[1]).write_bytes(Path(shards[2]).read_bytes())
    with pytest.raises(SampleIndexError, match=r"s-1\.tar\.idx: the index does not fit") as caught:
        SampleIndex.open(tmp_path)
    assert caught.value.url == shards[1]
    assert caught.value.key is not None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data[:-3], "no whole number of offsets"),
        (lambda data: data[:-8], "s-0.tar.idx 4 samples"),
        (lambda data: data[:8] + data, "do not ascend"),
        (lambda data: b"", "no whole number"),
        (lambda data: data[:8] + struct.pack("<Q", 512) + data[16:], "sample 1 begins at byte 512"),
        (lambda data: data[:-8] + struct.pack("<Q", 1 << 40), "it ends at byte"),
    ],
)
def test_a_damaged_index_of_offsets_is_told(tmp_path: Path, change: Any, says: str) -> None:
    shards = odd_shards(tmp_path)
    write_energon(tmp_path, shards)
    file = Path(f"{shards[0]}.idx")
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(SampleIndexError, match=says) as caught:
        SampleIndex.open(tmp_path)
    assert str(caught.value.url).endswith("s-0.tar")


def test_shards_and_offsets_that_are_not_there_are_told(tmp_path: Path) -> None:
    shards = odd_shards(tmp_path)
    write_energon(tmp_path, shards)
    Path(f"{shards[2]}.idx").unlink()
    with pytest.raises(SampleIndexError, match=r"s-2\.tar\.idx is not there") as caught:
        SampleIndex.open(tmp_path)
    assert caught.value.url == shards[2]
    Path(shards[1]).unlink()
    with pytest.raises(SampleIndexError, match=r"s-1\.tar: it is not there"):
        SampleIndex.open(str(tmp_path / "s-{0,1}.tar.idx"))
    with pytest.raises(NotFoundError):
        SampleIndex.open(tmp_path / "nothing-*.idx")


def dali_text(shard: str, *, split_keyless: bool = False) -> str:
    """Return what wds2idx writes for a shard; one without a dot in its name is a sample of its own for it."""
    lines: list[list[str]] = []
    key = None
    with tarfile.open(shard) as archive:
        for member in archive:
            base = member.name.rpartition("/")[2]
            if not member.isreg() or ("." not in base and not split_keyless):
                continue
            before, _, field = member.name.partition(".")
            if before != key:
                lines.append([])
                key = before
            lines[-1].append(f"{field or member.name} {member.offset_data} {member.size} {member.name}")
    return "\n".join([f"v1.2 {len(lines)}", *map(" ".join, lines), ""])


@pytest.mark.parametrize("split_keyless", [False, True])
def test_dali_s_index_is_opened_and_no_shard_is_read(tmp_path: Path, split_keyless: bool) -> None:
    shards = odd_shards(tmp_path)
    for shard in shards:
        text = dali_text(shard, split_keyless=split_keyless)
        Path(shard).with_suffix(".idx").write_text(text)
    built = SampleIndex.build(shards)
    wanted = samples(built)
    index = SampleIndex.open(tmp_path / "s-*.idx")
    assert list(index.keys) == list(built.keys)
    assert index.fields == built.fields
    assert samples(index) == wanted
    there = [Path(shard).stat() for shard in shards]
    for shard, status in zip(
        shards, there, strict=True
    ):  # other bytes of the same size: nobody reads them here
        Path(shard).write_bytes(bytes(status.st_size))
    assert len(SampleIndex.open(str(tmp_path / "s-{0..2}.idx"))) == 15
    elsewhere = tmp_path / "idx"
    elsewhere.mkdir()
    (tmp_path / "s-0.idx").rename(elsewhere / "a.idx")
    assert len(SampleIndex.open(elsewhere / "a.idx", shards=shards[0])) == 5


def test_names_as_gnu_tar_prints_them(tmp_path: Path) -> None:
    """wds2idx asks ``tar --list``, which escapes; a key may hold spaces."""
    shard = write_shard(tmp_path / "a.tar", [("ü 1.txt", b"x"), ("ü 1.cls", b"1"), ("b\\.txt", b"yy")])
    text = "v1.2 2\ntxt 512 1 \\303\\274 1.txt cls 1536 1 \\303\\274 1.cls\ntxt 2560 2 b\\\\.txt\n"
    (tmp_path / "a.idx").write_text(text)
    index = SampleIndex.open(tmp_path / "a.idx")
    assert samples(index) == samples(SampleIndex.build(shard))
    assert list(index.keys) == ["ü 1", "b\\"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("v1.1 1\njpg 512 1\n", "version v1.2 only"),
        ("v1.2 2\njpg 512 1 a.jpg\n", "says 2 samples, and 1 stand"),
        ("v1.2 1\njpg 512 x a.jpg\n", "line 2 cannot be understood"),
        ("v1.2 1\njpg 512 700 a.jpg cls 1024 1 a.cls\n", "within another one"),
        ("v1.2 1\njpg 512 1 a.jpg cls 999936 1 a.cls\n", "are no member|follow the last"),
        ("v1.2 2\njpg 512 1 a.jpg\njpg 1536 1 b.jpg cls 2560 1 a.cls\n", "'a' comes back"),
    ],
)
def test_a_damaged_index_of_dali_is_told(tmp_path: Path, text: str, says: str) -> None:
    shard = write_shard(tmp_path / "a.tar", [("a.jpg", b"x"), ("a.cls", b"1")])
    (tmp_path / "a.idx").write_text(text)
    with pytest.raises(SampleIndexError, match=says) as caught:
        SampleIndex.open(tmp_path / "a.idx")
    assert caught.value.url == shard


def test_a_shard_that_dali_s_index_does_not_fit_is_named_when_it_is_read(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "a.tar", [("a.jpg", b"x"), ("a.cls", b"1")])
    (tmp_path / "a.idx").write_text(dali_text(shard))
    index = SampleIndex.open(tmp_path / "a.idx")
    write_shard(tmp_path / "a.tar", [("b.jpg", b"x"), ("b.cls", b"1")])
    again = SampleIndex.open(tmp_path / "a.idx")
    with pytest.raises(SampleIndexError, match="the sample 'b' is there") as caught:
        samples(again)
    assert caught.value.url == shard
    with pytest.raises(Exception, match=r"a\.tar"):
        samples(index)


def wids_text(shards: list[str], **more: Any) -> str:
    rows = [
        {"url": Path(shard).name, "nsamples": 5, "filesize": Path(shard).stat().st_size} for shard in shards
    ]
    return json.dumps({"wids_version": 1, "shardlist": rows, **more})


def test_a_wids_index_is_opened(tmp_path: Path) -> None:
    shards = odd_shards(tmp_path)
    (tmp_path / "shards.json").write_text(wids_text(shards))
    assert samples(SampleIndex.open(tmp_path / "shards.json")) == samples(SampleIndex.build(shards))
    (tmp_path / "idx").mkdir()
    (tmp_path / "idx/shards.json").write_text(wids_text(shards, base=str(tmp_path)))
    with pytest.raises(SampleIndexError, match=r"names '.*s-0.tar' as a shard: it is not of .*idx"):
        SampleIndex.open(tmp_path / "idx/shards.json")
    assert len(SampleIndex.open(tmp_path / "idx/shards.json", shards_from=tmp_path)) == 15
    part = {
        "wids_version": 1,
        "datasets": [json.loads(wids_text(shards[:2])), json.loads(wids_text(shards[2:]))],
    }
    (tmp_path / "parts.json").write_text(json.dumps(part))
    assert len(SampleIndex.open(tmp_path / "parts.json")) == 15


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [("nsamples", 6, "it says 6 samples, and the shard has 5"), ("filesize", 7, "it says 7 bytes")],
)
def test_a_shard_that_a_wids_index_does_not_fit_is_named(
    tmp_path: Path, name: str, value: int, says: str
) -> None:
    shards = odd_shards(tmp_path)
    whole = json.loads(wids_text(shards))
    whole["shardlist"][1][name] = value
    (tmp_path / "shards.json").write_text(json.dumps(whole))
    with pytest.raises(SampleIndexError, match=says) as caught:
        SampleIndex.open(tmp_path / "shards.json")
    assert caught.value.url == shards[1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "it is no JSON"),
        ("[]", "no JSON object"),
        ('{"wids_version": 2}', "wids_version is 2"),
        ('{"wids_version": 1, "shardlist": [{"url": "a.tar"}]}', "a.tar has no nsamples"),
        ('{"wids_version": 1, "shardlist": [7]}', "a shard has no url"),
        ('{"wids_version": 1, "datasets": [{"source_url": "x.json"}]}', "refers to other indexes"),
        ('{"shard_counts": [1]}', "no shard_counts"),
    ],
)
def test_json_that_is_no_index_is_told(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(SampleIndexError, match=says):
        SampleIndex.open(tmp_path / "x.json")


def test_what_is_exported_opens_again(tmp_path: Path) -> None:
    shards = odd_shards(tmp_path)
    index = SampleIndex.build(shards)
    wanted = samples(index)
    files = index.export("energon")
    assert [Path(file).name for file in files] == [
        "s-0.tar.idx",
        "s-1.tar.idx",
        "s-2.tar.idx",
        ".info.json",
        "split.yaml",
    ]
    for shard in shards:
        begins = begins_of(shard)
        assert Path(f"{shard}.idx").read_bytes() == struct.pack(f"<{len(begins)}Q", *begins)
    assert samples(SampleIndex.open(tmp_path)) == wanted
    index.export("dali")
    for shard in shards:
        assert Path(shard).with_suffix(".idx").read_text() == dali_text(shard)
    assert samples(SampleIndex.open(tmp_path / "s-?.idx")) == wanted
    with pytest.raises(UsageError, match=r"s-0\.idx and .*s-0\.tar\.idx are both indexes of one shard"):
        SampleIndex.open(tmp_path / "s-*.idx")
    assert samples(SampleIndex.open(index.export("wids")[0])) == wanted
    mine = tmp_path / "mine"
    assert [Path(file).parent for file in index.export("wids", mine)] == [mine]
    assert samples(SampleIndex.open(mine / "shardindex.json", shards_from=tmp_path)) == wanted


def test_a_selection_is_exported_for_dali_alone(tmp_path: Path) -> None:
    chosen = SampleIndex.build(odd_shards(tmp_path)).select([1, 3, 11])
    chosen.export("dali")
    lines = [path.read_text().splitlines() for path in sorted(tmp_path.glob("*.idx"))]
    assert [line.split()[-1].partition(".")[0] for text in lines for line in text[1:]] == list(chosen.keys)
    for form in ("energon", "wids"):
        with pytest.raises(UsageError, match="A selection cannot be written"):
            chosen.export(form)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="export"):
        chosen.export("parquet")  # type: ignore[arg-type]


def test_an_export_of_a_shard_that_was_replaced_names_it(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "a.tar", [("a.jpg", b"x"), ("a.cls", b"1")])
    index = SampleIndex.build(shard)
    write_shard(tmp_path / "a.tar", [("a.jpg", b"xx"), ("a.cls", b"1")])
    with pytest.raises(SampleIndexError, match="another one than was indexed") as caught:
        index.export("dali")
    assert caught.value.url == shard
    write_shard(tmp_path / "b.tar", [("a b.jpg", b"x")])
    with pytest.raises(UsageError, match="no names with spaces"):
        SampleIndex.build(tmp_path / "b.tar").export("dali")


def test_an_export_into_a_bucket(tmp_path: Path) -> None:
    odd_shards(tmp_path)
    with LocalCluster() as cluster:
        cluster.put_dir(tmp_path, "ais://en/d/")
        index = SampleIndex.build("ais://en/d/s-{0..2}.tar", cluster=cluster.endpoint)
        files = index.export("energon")
        assert "ais://en/d/.nv-meta/.info.json" in files
        assert SampleIndex.open("ais://en/d", cluster=cluster.endpoint).digest == index.digest


def test_shards_in_several_folders_keep_them(tmp_path: Path) -> None:
    paths = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        paths.append(write_shard(tmp_path / name / "a.tar", [(f"{name}.cls", b"1")]))
    files = SampleIndex.build(paths).export("energon")
    assert files[:2] == [f"{path}.idx" for path in paths]
    assert list(SampleIndex.open(tmp_path).keys) == ["one", "two"]
