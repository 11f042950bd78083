"""`SampleIndex`: built by reading, stored, opened, chosen from; damage is found."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path

import polars as pl
import pyarrow.compute as pc
import pytest
import xxhash

import torchdata_ais
from torchdata_ais.errors import (
    NonAdjacentKeyError,
    NotFoundError,
    SampleIndexError,
    TruncatedShardError,
    UsageError,
)
from torchdata_ais.index.build import SampleIndex, build_index
from torchdata_ais.local import LocalCluster
from torchdata_ais.pipes import AISSourceLister


def pa_file() -> bytes:
    sink = io.BytesIO()
    pl.DataFrame({"a": [1]}).write_ipc(sink)
    return sink.getvalue()


def write_tar(path: Path, members: list[tuple[str, bytes]], *, kind: int = tarfile.USTAR_FORMAT) -> Path:
    with tarfile.open(path, "w", format=kind) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if data.startswith(b"-> "):
                info.type, info.linkname = tarfile.LNKTYPE, data[3:].decode()
                archive.addfile(info)
                continue
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    rng = random.Random(5)
    long = "deep/" * 60
    odd = [
        ("README", b"not a sample"),
        ("a.b.jpg", rng.randbytes(700)),
        ("a.cls", b"1"),
        ("._b.jpg", b"a Mac was here"),
        (f"{long}b.jpg", rng.randbytes(513)),
        (f"{long}b.cls", b"2"),
        ("notes", b"between"),
        ("c.JPG", rng.randbytes(512)),
        ("c.Mask.png", b"-> c.JPG"),
        ("d.txt", b""),
        ("LICENSE", b"at the end"),
    ]
    paths = [
        write_tar(tmp_path / f"{name}.tar", odd, kind=kind)
        for name, kind in (("pax", tarfile.PAX_FORMAT), ("gnu", tarfile.GNU_FORMAT))
    ]
    many = [
        (f"{n:04d}.{ext}", rng.randbytes(rng.randrange(2000))) for n in range(300) for ext in ("jpg", "cls")
    ]
    paths.append(write_tar(tmp_path / "many.tar", many))
    paths.append(write_tar(tmp_path / "none.tar", [("README", b"no sample at all")]))
    return [str(path) for path in paths]


def test_promise_3_the_index_has_the_samples_of_the_stream_and_their_bytes(shards: list[str]) -> None:
    index = build_index(shards)
    streamed = list(AISSourceLister(shards).load_tar().group_samples())
    assert len(index) == len(streamed)
    for reference, sample in zip(index, streamed, strict=True):
        # What a link brings is not known before it is read: the cluster's own index names none.
        fields = [name for name in sample if not name.startswith("__") and name != "mask.png"]
        assert (reference.shard.name, reference.key) == (sample["__url__"], sample["__key__"])
        assert list(reference.fields) == fields
        assert list(reference.sizes) == [len(sample[name]) for name in fields]
        stored = Path(reference.shard.name).read_bytes()[reference.start : reference.start + reference.size]
        assert len(stored) == reference.size
        assert xxhash.xxh64_intdigest(stored) == reference.xxh64
        assert all(sample[name] in stored for name in fields)
        # The bytes are a piece of tar of their own: what tarfile finds in them is the sample.
        with tarfile.open(fileobj=io.BytesIO(stored + bytes(1024))) as piece:
            found = {
                member.name: member.size for member in piece if member.isreg() and "._" not in member.name
            }
        key = sample["__key__"]
        assert {name: size for name, size in found.items() if name.startswith(f"{key}.")}
    assert index.proof == "bytes"
    assert [row.samples for row in index.shards] == [4, 4, 300, 0]


def test_a_stored_index_is_what_was_built(shards: list[str], tmp_path: Path) -> None:
    built = build_index(shards)
    for stored in (built.save(tmp_path / "one"), build_index(shards, where=tmp_path / "two", processes=2)):
        assert list(stored) == list(built)
        assert stored.digest == built.digest
        assert stored.to_arrow().equals(built.to_arrow())
    assert list(SampleIndex.open(tmp_path / "one", shards_from=tmp_path)) == list(built)
    assert not [path for path in (tmp_path / "one").iterdir() if path.name.startswith(".")]


def test_references_come_in_the_order_asked_for(shards: list[str]) -> None:
    index = build_index(shards)
    everything = list(index)
    order = list(range(len(index)))
    random.Random(1).shuffle(order)
    assert index.take(order + order[:9]) == [everything[number] for number in order + order[:9]]
    assert index[-1] == everything[-1]
    assert list(index[3:7]) == everything[3:7]
    for wrong in (len(index), -len(index) - 1):
        with pytest.raises(IndexError):
            index[wrong]


def test_what_is_selected_is_an_index_in_the_stored_order(shards: list[str], tmp_path: Path) -> None:
    index = build_index(shards)
    everything = list(index)
    chosen = index.select([200, 3, 17])
    assert list(chosen) == [everything[number] for number in (3, 17, 200)]
    assert list(chosen.select([True, False, True])) == [everything[3], everything[200]]
    small = index.select(lambda batch: pc.less(batch.column("size"), 3000))
    assert list(small) == [reference for reference in everything if reference.size < 3000]
    assert 0 < len(small) < len(index)
    stored = small.save(tmp_path / "small")
    assert [reference._replace(shard=None) for reference in stored] == [
        reference._replace(shard=None) for reference in small
    ]
    assert len({index.digest, chosen.digest, small.digest, index.select([3, 17]).digest}) == 4
    assert index.select([3, 17, 200]).digest == chosen.digest
    assert index[:].digest == index.select([True] * len(index)).digest == index.digest
    assert len(index.select([])) == 0
    assert list(index.select([]).keys) == []


def test_what_is_stored_has_the_digest_that_it_had_in_memory(shards: list[str], tmp_path: Path) -> None:
    one, two = build_index(shards[2:]), build_index(shards[:2])
    both = SampleIndex.concat([one, two])
    made = {
        "select": one.select([3, 17, 200]),
        "where": one.select(pc.field("size") > 3000),
        "split": both.split(0.3)[1],
        "slice": both[5:-5],
        "twice": one[10:].select([0, 7]),
        "all": one.select([True] * len(one)),
        "concat": both,
        "part": SampleIndex.concat([one.select([0, 7]), two]),
    }
    for name, index in made.items():
        stored = index.save(tmp_path / name)
        assert (
            stored.digest == SampleIndex.open(tmp_path / name, shards_from=tmp_path).digest == index.digest
        ), name
        assert stored.save(tmp_path / "again" / name).digest == index.digest, name
        assert [ref.key for ref in stored] == [ref.key for ref in index]
    assert len({index.digest for index in made.values()} | {two.digest}) == len(made) + 1


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ([1, 2, 1], "sample 1 twice"),
        ([-1], "samples -1 to -1"),
        ([308], "samples 308 to 308 of 308"),
        ([True, False], "A mask of 2 values for 308"),
        ([0.5], "type float64"),
        (lambda batch: [True], "A mask of 1 values"),
    ],
)
def test_a_wrong_selection_is_refused(shards: list[str], which, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        build_index(shards).select(which)


def test_a_split_keeps_a_sample_on_its_side_when_shards_are_added(shards: list[str]) -> None:
    index = build_index(shards)
    first, second = index.split(0.3, seed=4)
    assert sorted([*first.keys, *second.keys]) == sorted(index.keys)
    assert not set(first.keys) & set(second.keys)
    assert 50 < len(first) < 140
    fewer, _ = build_index(shards[:3]).split(0.3, seed=4)
    assert set(fewer.keys) == set(first.keys)
    assert set(index.split(0.3, seed=5)[0].keys) != set(first.keys)
    assert len(index.split(0)[0]) == 0
    assert len(index.split(1)[1]) == 0


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda one, two: one.split("half"), "fraction='half'"),
        (lambda one, two: one.split(0.5, seed=None), "seed=None"),
        (lambda one, two: one.concat(two), "concat.. was given SampleIndex, not a list"),
        (lambda one, two: SampleIndex.concat([one, 3]), "concat.. was given a list with int"),
        (lambda one, two: one.select(lambda rows: rows["width"]), "'.*width.*Use the columns shard, "),
    ],
)
def test_wrong_calls_of_an_index_are_refused_in_words(shards: list[str], wrong, says: str) -> None:
    one, two = (SampleIndex.build(shard) for shard in shards[:2])
    with pytest.raises(UsageError, match=says):
        wrong(one, two)


def test_indexes_are_joined_with_their_selections(shards: list[str]) -> None:
    one, two = build_index(shards[:2]), build_index(shards[2:])
    both = SampleIndex.concat([one, two])
    assert [one_of._replace(number=0) for one_of in both] == [ref._replace(number=0) for ref in (*one, *two)]
    assert [reference.number for reference in both[:3]] == [reference.number for reference in one[:3]]
    assert both[-1].number == two[-1].number + 2  # shards are counted over all
    assert both.digest not in (one.digest, two.digest)
    mixed = SampleIndex.concat([one.select([0, 7]), two])
    assert [reference.key for reference in mixed] == [reference.key for reference in (one[0], one[7], *two)]
    with pytest.raises(UsageError, match="No index to join"):
        SampleIndex.concat([])


def test_every_way_to_an_index_gives_the_class_that_users_name(shards: list[str], tmp_path: Path) -> None:
    built = build_index(shards)
    ways = {
        "build": built,
        "save": built.save(tmp_path),
        "open": SampleIndex.open(tmp_path),
        "concat": SampleIndex.concat([built[:5], built[5:]]),
        "select": built.select([0]),
        "slice": built[2:5],
        "split": built.split(0.5)[1],
    }
    assert {name: type(index) for name, index in ways.items()} == dict.fromkeys(
        ways, torchdata_ais.SampleIndex
    )
    assert repr(built).startswith("SampleIndex(308 samples of 4 shards, proof='bytes', digest='")
    ways["open"].verify()


def test_polars_opens_the_files(shards: list[str], tmp_path: Path) -> None:
    index = build_index(shards, where=tmp_path)
    samples = pl.concat([pl.read_ipc(path) for path in tmp_path.glob("samples-*.arrow")])
    assert samples["key"].to_list() == list(index.keys)
    table = pl.read_ipc(tmp_path / "shards.arrow")
    assert table["name"].to_list() == shards


@pytest.mark.parametrize("kind", ["shards", "samples", "counts", "fields"])
def test_promise_1_a_flipped_bit_anywhere_is_an_error(shards: list[str], tmp_path: Path, kind: str) -> None:
    build_index(shards, where=tmp_path)
    path = next(path for path in tmp_path.iterdir() if path.name.startswith(kind))
    whole = path.read_bytes()
    expected = [tuple(reference) for reference in SampleIndex.open(tmp_path)]
    for number in range(60):
        at = random.Random(number).randrange(len(whole))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << number % 8]) + whole[at + 1 :])
        try:
            found = [tuple(reference) for reference in SampleIndex.open(tmp_path)]
        except SampleIndexError as error:
            assert str(tmp_path) in str(error)  # noqa: PT017
        else:
            # The frame of an Arrow file around the batches is not read, and white space of the head means nothing.
            assert found == expected
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SampleIndexError, match="damaged"):
        list(SampleIndex.open(tmp_path))
    path.unlink()
    with pytest.raises((SampleIndexError, NotFoundError), match=r"missing|there is no sample index"):
        list(SampleIndex.open(tmp_path))


def test_an_index_of_another_version_or_kind_says_so(shards: list[str], tmp_path: Path) -> None:
    build_index(shards, where=tmp_path)
    table = tmp_path / "shards.arrow"
    data = table.read_bytes()
    table.write_bytes(data.replace(b'"version":1', b'"version":7'))
    with pytest.raises(SampleIndexError, match="version 7, this package reads version 1"):
        SampleIndex.open(tmp_path)
    for other in (b"", b"hello", pa_file()):
        table.write_bytes(other)
        with pytest.raises(SampleIndexError, match=r"does not begin as an Arrow file|has no head"):
            SampleIndex.open(tmp_path)
    with pytest.raises(NotFoundError, match="there is no sample index"):
        SampleIndex.open(tmp_path / "nowhere")


def test_only_shards_that_changed_are_read_again(shards: list[str], tmp_path: Path) -> None:
    with LocalCluster() as cluster:
        bucket = cluster.client().bucket("pets").create()
        for number, path in enumerate(shards):
            bucket.object(f"s-{number}.tar").get_writer().put_content(Path(path).read_bytes())
        first = build_index("ais://pets/s-", method="read", cluster=cluster.endpoint)
        bucket.object("s-1.tar").get_writer().put_content(
            write_tar(tmp_path / "new.tar", [("n.cls", b"5")]).read_bytes()
        )
        bucket.object("s-9.tar").get_writer().put_content(Path(shards[0]).read_bytes())
        before = cluster.stats().count("GET", 200)
        second = build_index("ais://pets/s-", method="read", cluster=cluster.endpoint, previous=first)
        assert [row.samples for row in second.shards] == [4, 1, 300, 0, 4]
        between = cluster.stats().count("GET", 200)
        fresh = build_index("ais://pets/s-", method="read", cluster=cluster.endpoint)
        assert (cluster.stats().count("GET", 200) - between) - (between - before) == 3  # of 5 shards
        assert list(second) == list(fresh)
        assert second.digest == fresh.digest != first.digest
        read = [row.name for row in second.shards]
        assert read == [f"ais://pets/s-{n}.tar" for n in (0, 1, 2, 3, 9)]


def test_what_cannot_be_addressed_is_refused(shards: list[str], tmp_path: Path) -> None:
    whole = Path(shards[2]).read_bytes()
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TruncatedShardError):
        build_index(str(cut))
    packed = tmp_path / "packed.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(shards[2], "a.txt")
    with pytest.raises(UsageError, match="cannot be addressed: it is compressed"):
        build_index(str(packed))
    again = write_tar(tmp_path / "again.tar", [("a.cls", b"1"), ("b.cls", b"1"), ("a.txt", b"1")])
    with pytest.raises(NonAdjacentKeyError, match="'a' was met before"):
        build_index(str(again))
    with pytest.raises(UsageError, match="listed twice"):
        build_index([shards[0], shards[0]])
    with tarfile.open(
        tmp_path / "global.tar", "w", format=tarfile.PAX_FORMAT, pax_headers={"path": "x.txt"}
    ) as archive:
        archive.add(shards[3], "a.txt")
    with pytest.raises(UsageError, match="a global PAX header"):
        build_index(str(tmp_path / "global.tar"))


def test_what_select_cannot_use_is_told_with_what_it_takes(shards: list[str]) -> None:
    index = SampleIndex.build(shards)
    with pytest.raises(UsageError, match="Use the columns shard, key") as caught:
        index.select(pc.field("keys") == "x")
    assert "__row__" not in str(caught.value)
    with pytest.raises(UsageError, match=r"RecordBatch, many rows at once"):
        index.select(lambda rows: rows["key"].startswith("a"))
    with pytest.raises(UsageError, match=r"pc\.field"):
        index.select(slice(0, 3))  # type: ignore[arg-type]
