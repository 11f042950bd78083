"""Joined indexes against a join of dicts: the same samples, under every loader, order, topology and state."""

from __future__ import annotations

import gc
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from helpers.examples import examples
from helpers.global_batches import steps_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchdata_ais import AISSampleReader, Mixture, SampleDataset, SampleIndex, ais_loader, explain
from torchdata_ais.errors import DuplicateFieldError, NotFoundError, SampleIndexError, StateError, UsageError
from torchdata_ais.index import field_sizes
from torchdata_ais.index.joining import DuplicateKeysError, paired
from torchdata_ais.local import LocalCluster
from torchdata_ais.testing import write_shard

Table = dict[str, dict[str, bytes]]


def write(folder: Path, name: str, table: Table, per_shard: int = 3) -> SampleIndex:
    """Write samples to shards and index them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(table.items())
    paths = []
    for number, begin in enumerate(range(0, max(1, len(rows)), per_shard)):
        members = [
            (f"{key}.{field}", data)
            for key, fields in rows[begin : begin + per_shard]
            for field, data in fields.items()
        ]
        paths.append(write_shard(folder / f"{name}-{number:03d}.tar", members))
    return SampleIndex.build(paths)


def fields_of(sample: Any) -> tuple[str, dict[str, bytes]]:
    return sample["__key__"], {name: value for name, value in sample.items() if name[:2] != "__"}


def pets(count: int = 20) -> Table:
    return {f"{n:03d}": {"cls": b"%d" % n, "jpg": b"j" * n} for n in range(count)}


def captions(numbers: range | list[int]) -> Table:
    return {f"{n:03d}": {"txt": b"caption %d" % n} for n in numbers}


@pytest.fixture
def both(tmp_path: Path) -> SampleIndex:
    other = write(tmp_path, "captions", captions(list(range(30, -1, -1))), per_shard=4)
    return write(tmp_path, "pets", pets()).join(other)


KEYS = st.text("ab/é ", min_size=1, max_size=4).filter(lambda key: not key.endswith("/"))


@given(
    st.dictionaries(KEYS, st.binary(max_size=4), max_size=12),
    st.dictionaries(KEYS, st.binary(max_size=4), max_size=12),
    st.sampled_from(["error", "drop", "keep"]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
@settings(max_examples=examples(120), suppress_health_check=list(HealthCheck), deadline=None)
def test_promise_1_a_join_is_a_join_of_dicts(
    tmp_path_factory: pytest.TempPathFactory,
    first: dict[str, bytes],
    other: dict[str, bytes],
    missing: Any,
    stored: bool,
    random: Any,
) -> None:
    folder = tmp_path_factory.mktemp("join")
    left = write(folder, "a", {key: {"x": data} for key, data in first.items()})
    right = write(folder, "b", {key: {"y": data} for key, data in other.items()})
    where = folder / "tables" if stored else None
    wanted = {
        key: {"x": data} | ({"y": other[key]} if key in other else {})
        for key, data in first.items()
        if missing == "keep" or key in other
    }
    if missing == "error" and len(wanted) < len(first):
        with pytest.raises(SampleIndexError, match="have no partner") as caught:
            left.join(right, missing=missing, where=where)
        assert caught.value.key in set(first) - set(other)
        assert str(caught.value.url).startswith(str(folder))
        return
    joined = left.join(right, missing=missing, where=where)
    assert len(joined) == len(wanted)
    assert [fields_of(sample) for sample in SampleDataset(joined)] == list(wanted.items())
    if wanted:
        assert [fields_of(sample) for sample in AISSampleReader(joined)] == list(wanted.items())
        numbers = random.sample(range(len(wanted)), random.randint(1, len(wanted)))
        chosen = pickle.loads(pickle.dumps(joined)).select(numbers)
        assert dict(fields_of(sample) for sample in SampleDataset(chosen)) == {
            key: wanted[key] for key in (list(wanted)[number] for number in numbers)
        }


def test_promise_4_joined_samples_on_any_topology(both: SampleIndex) -> None:
    def make() -> Any:
        return AISSampleReader(both, shuffle="samples", batch_size=4)

    alone = [fields_of(sample) for sample in steps_of(make, 1, 1, 4)[0]]
    table = captions(range(20))
    assert {key: fields["txt"] for key, fields in alone} == {key: one["txt"] for key, one in table.items()}
    for ranks, workers in ((2, 1), (4, 2)):
        split = steps_of(make, ranks, workers, 4)
        assert sorted(fields_of(sample) for rank in split for sample in rank) == sorted(alone)


def test_promise_5_a_state_of_joined_samples_covers_both(tmp_path: Path) -> None:
    first = write(tmp_path, "pets", pets())
    other = write(tmp_path, "captions", captions(range(20)))
    third = write(tmp_path, "more", captions(range(21)))

    def loader(index: Any) -> Any:
        reader = AISSampleReader(index, shuffle="samples")
        return ais_loader(reader.to_tuple("__key__", "cls", "txt").batched(4), seed=3, rank=0, world_size=1)

    with loader(first.join(other)) as running:
        items = iter(running)
        before = [next(items) for _ in range(2)]
        state = running.state_dict()
        rest = list(items)
    assert len(before) + len(rest) == 5
    with loader(first.join(other)) as again:
        again.load_state_dict(state)
        assert list(again) == rest
    with loader(first.join(third)) as changed, pytest.raises(StateError):
        changed.load_state_dict(state)
    with loader(first.join(other, missing="keep")) as changed, pytest.raises(StateError):
        changed.load_state_dict(state)


def test_joined_samples_in_a_mixture(tmp_path: Path) -> None:
    one = write(tmp_path / "1", "a", pets(8)).join(write(tmp_path / "1", "b", captions(range(8))))
    two = write(tmp_path / "2", "a", {f"z{n}": {"cls": b"9"} for n in range(8)})
    three = write(tmp_path / "3", "a", {f"y{n}": {"cls": b"8"} for n in range(8)})
    masks = write(tmp_path / "3", "b", {f"y{n}": {"png": b"p%d" % n} for n in range(8)})
    mixture = Mixture({one: 2, two: 1, three.join(masks): 1}, stop="first")
    seen: dict[int, int] = {}
    for sample in AISSampleReader(mixture, shuffle="samples"):
        key, fields = fields_of(sample)
        seen[sample.source] = seen.get(sample.source, 0) + 1
        assert ("txt" in fields, "png" in fields) == [(True, False), (False, False), (False, True)][
            sample.source
        ]
        if sample.source == 0:
            assert fields["txt"] == b"caption %d" % int(key)
    assert seen[0] >= 7
    planned = explain(AISSampleReader(mixture, shuffle="samples").to_tuple("cls").batched(4)).plan
    assert planned is not None


def test_several_joins_and_prefixes(tmp_path: Path) -> None:
    index = write(tmp_path, "pets", pets(5))
    again = write(tmp_path, "again", {key: {"jpg": b"other"} for key in pets(5)})
    with pytest.raises(UsageError, match="Both indexes have the fields jpg"):
        index.join(again)
    joined = index.join(again, prefix="small.").join(write(tmp_path, "captions", captions(range(5))))
    sample = SampleDataset(joined)[4]
    assert fields_of(sample)[1] == {"cls": b"4", "jpg": b"jjjj", "small.jpg": b"other", "txt": b"caption 4"}
    assert joined.fields == [("cls", "jpg", "small.jpg", "txt")]
    with pytest.raises(UsageError, match=r"have the fields small\.jpg"):
        joined.join(again, prefix="small.")
    with pytest.raises(UsageError, match=r"this is a str\. Pass an IndexedSamples"):
        index.join("ais://captions")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="joined itself"):
        index.join(joined)
    with pytest.raises(UsageError, match="of an index that is joined"):
        joined.save(tmp_path / "x")
    with pytest.raises(UsageError, match="of an index that is joined"):
        SampleIndex.concat([joined, index])
    for wrong in ({"on": "cls"}, {"missing": "skip"}):
        with pytest.raises(UsageError):
            index.join(again, prefix="x.", **wrong)  # type: ignore[arg-type]


def test_lengths_may_be_those_of_a_field_that_was_joined(tmp_path: Path) -> None:
    index = write(tmp_path, "pets", pets(12))
    texts = write(tmp_path, "texts", {f"{n:03d}": {"txt": b"x" * (n + 1)} for n in (11, 2, 7, 4, 9, 3)})
    both = index.join(texts, missing="drop", prefix="long.")
    assert field_sizes(both, "long.txt").tolist() == [3, 4, 5, 8, 10, 12]
    assert field_sizes(both.select([4, 1]), "long.txt").tolist() == [4, 10]
    packs = AISSampleReader(both).to_tuple("long.txt").pack("long.txt", 15)
    lengths = [[len(text) for (text,) in pack] for step in packs for pack in step]
    assert sorted(length for pack in lengths for length in pack) == [3, 4, 5, 8, 10, 12]
    assert max(map(sum, lengths)) <= 15
    with pytest.raises(UsageError, match=r"'000' of .*pets-000.* has no field 'txt'"):
        field_sizes(index.join(texts, missing="keep"), "txt")


def test_a_key_that_stands_twice_is_named_with_its_shards(tmp_path: Path) -> None:
    index = write(tmp_path, "pets", pets(5))
    twice = SampleIndex.concat([index, write(tmp_path, "more", {"003": {"cls": b"x"}})])
    other = write(tmp_path, "captions", captions(range(5)))
    with pytest.raises(SampleIndexError, match=r"'003' stands twice in the first index") as caught:
        twice.join(other)
    assert "pets-001.tar" in caught.value.what
    assert "more-000.tar" in caught.value.what
    assert caught.value.key == "003"
    with pytest.raises(SampleIndexError, match=r"'003' stands twice in the other index"):
        other.join(twice)


def test_a_partner_that_cannot_be_read_names_its_shard(tmp_path: Path) -> None:
    index = write(tmp_path, "pets", pets(6))
    joined = index.join(write(tmp_path, "captions", captions(range(6))))
    shard = tmp_path / "captions-001.tar"
    data = bytearray(shard.read_bytes())
    data[512] ^= 1
    shard.write_bytes(data)
    for read in (lambda: SampleDataset(joined)[3], lambda: list(AISSampleReader(joined))):
        with pytest.raises(SampleIndexError, match="its bytes are not those") as caught:
            read()
        assert (caught.value.url, caught.value.key) == (str(shard), "003")
    kept = [sample["__key__"] for sample in AISSampleReader(joined, on_error="skip")]
    assert kept == ["000", "001", "002", "004", "005"]
    with pytest.raises(SampleIndexError, match=r"captions-001\.tar"):
        joined.verify()
    shard.unlink()
    with pytest.raises(NotFoundError, match=r"captions-001\.tar"):
        SampleDataset(joined)[3]


def test_a_field_that_only_a_link_brings_and_that_clashes(tmp_path: Path) -> None:
    import io
    import tarfile

    path = tmp_path / "links.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("000.jpg2")
        archive.addfile(info, io.BytesIO())
        info = tarfile.TarInfo("000.cls")
        info.type, info.linkname = tarfile.SYMTYPE, "000.jpg2"
        archive.addfile(info)
    joined = write(tmp_path, "pets", pets(1)).join(SampleIndex.build(path))
    with pytest.raises(DuplicateFieldError, match="have both the field 'cls'") as caught:
        SampleDataset(joined)[0]
    assert caught.value.url == str(path)


def test_a_table_is_found_again_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    index, other = write(tmp_path, "pets", pets()), write(tmp_path, "captions", captions(range(20)))
    where = tmp_path / "tables"
    joined = index.join(other, where=where)
    (table,) = where.iterdir()
    assert table.stat().st_size == 8 * 20
    made = table.stat().st_mtime_ns
    assert fields_of(SampleDataset(index.join(other, where=where))[7])[1]["txt"] == b"caption 7"
    assert table.stat().st_mtime_ns == made
    assert len(pickle.dumps(joined)) < 200_000
    values = np.fromfile(table, dtype="<i8")
    for wrong in (values[::-1].copy(), values + 1, values + 1000):
        wrong.tofile(table)
        with pytest.raises(SampleIndexError, match="does not fit") as caught:
            list(SampleDataset(index.join(other, where=where)))
        assert caught.value.key is not None
        assert caught.value.url is not None


def test_joined_shards_on_a_cluster(tmp_path: Path) -> None:
    write(tmp_path / "p", "pets", pets())
    write(tmp_path / "c", "captions", captions(range(20)))
    with LocalCluster() as cluster:
        cluster.put_dir(tmp_path, "ais://data/")
        build = [SampleIndex.build(f"ais://data/{name}", cluster=cluster.endpoint) for name in ("p/", "c/")]
        joined = build[0].join(build[1])
        dataset = SampleDataset(joined, cluster=cluster.endpoint)
        found = dataset.__getitems__([17, 3, 3, 9])
        assert [fields_of(one)[1]["txt"] for one in found] == [b"caption %d" % n for n in (17, 3, 3, 9)]
        read = AISSampleReader(joined, shuffle="samples", cluster=cluster.endpoint)
        assert dict(map(fields_of, read)) == {key: pets()[key] | captions(range(20))[key] for key in pets()}


def test_a_joined_index_that_is_copied_to_the_node_stays_joined(tmp_path: Path) -> None:
    write(tmp_path / "p", "pets", pets())
    write(tmp_path / "c", "captions", captions(range(20)))
    stored = [SampleIndex.build(str(tmp_path / name)).save(tmp_path / f"index-{name}") for name in ("p", "c")]
    joined = stored[0].join(stored[1])
    kept = joined.kept_in(tmp_path / "node")
    assert kept.digest == joined.digest
    read = AISSampleReader(joined, shuffle="samples", index_dir=tmp_path / "node")
    assert dict(map(fields_of, read)) == {key: pets()[key] | captions(range(20))[key] for key in pets()}
    assert len(list((tmp_path / "node").iterdir())) >= 2  # both were copied


@pytest.mark.ci
def test_keys_are_sorted_in_bounded_memory(tmp_path: Path) -> None:
    """A quarter of a million keys of each side, in pieces of a tenth of the memory that all would take."""
    count = 250_000
    rng = np.random.default_rng(0)

    def keyed(order: np.ndarray[Any, Any]) -> Any:
        for begin in range(0, count, 5000):
            some = order[begin : begin + 5000]
            yield (
                pa.array([f"a/long/folder/{number:012d}" for number in some.tolist()]),
                np.arange(begin, begin + len(some)),
            )

    one, two = rng.permutation(count), rng.permutation(count)
    gc.collect()
    tracemalloc.start()
    found = np.full(count, -1)
    for mine, theirs in paired(keyed(one), keyed(two), keys=40 * count, folder=tmp_path):
        found[mine] = theirs
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (two[found] == one).all()
    assert peak < 64 << 20
    assert not list(tmp_path.iterdir())


def test_a_key_twice_is_found_wherever_it_is_sorted_to(tmp_path: Path) -> None:
    names = [f"{n}" for n in range(3000)]
    with pytest.raises(DuplicateKeysError) as caught:
        list(
            paired(
                [(pa.array(names), np.arange(3000))],
                [(pa.array([*names, "77"]), np.arange(3001))],
                keys=10_000_000,
                folder=tmp_path,
            )
        )
    assert (caught.value.side, caught.value.numbers) == (1, (77, 3000))
    assert not list(tmp_path.iterdir())
