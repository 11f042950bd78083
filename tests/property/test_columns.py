"""Columns that a program adds to an index: with each sample, whatever was selected, saved, joined or built anew."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from helpers.examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchdata_ais import AISSampleReader, Mixture, SampleDataset, SampleIndex, ais_loader
from torchdata_ais.errors import SampleIndexError, StateError, UsageError
from torchdata_ais.index import lengths_of
from torchdata_ais.testing import example_shards, write_shard

COUNTS = (7, 0, 5, 9)
TOKENS = [1 + 37 * number % 20 for number in range(sum(COUNTS))]


@pytest.fixture(scope="module")
def shards() -> list[str]:
    return example_shards(counts=COUNTS)


@pytest.fixture
def index(shards: list[str]) -> SampleIndex:
    return SampleIndex.build(shards).with_column("tokens", TOKENS)


def by_key(index: SampleIndex) -> dict[str, int]:
    return dict(zip(index.keys, index.column("tokens").tolist(), strict=True))


ALL = {f"{number:05d}": TOKENS[number] for number in range(len(TOKENS))}

STEPS = st.lists(
    st.sampled_from(["select", "save", "slice", "split", "concat", "pickle", "keep", "column"]), max_size=6
)


@given(STEPS, st.randoms(use_true_random=False))
@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_sample_keeps_its_number_whatever_is_done_to_the_index(
    shards: list[str], tmp_path_factory: pytest.TempPathFactory, steps: list[str], random: Any
) -> None:
    index, expected = SampleIndex.build(shards).with_column("tokens", TOKENS), dict(ALL)
    folder = tmp_path_factory.mktemp("columns")
    for number, step in enumerate(steps):
        if step == "select":
            chosen = sorted(random.sample(range(len(index)), k=(len(index) + 1) // 2))
            index = index.select(chosen)
        elif step == "save":
            index = index.save(folder / f"{number}")
        elif step == "slice":
            index = index[1:]
        elif step == "split":
            _, index = index.split(0.3, seed=number)
        elif step == "concat":
            index = SampleIndex.concat([index[:2], index[2:]])
        elif step == "pickle":
            index = pickle.loads(pickle.dumps(index))
        elif step == "keep":
            index = index.kept_in(folder / "node")
        else:
            expected = {key: value + 1 for key, value in expected.items()}
            index = index.with_column("tokens", {key: expected[key] for key in index.keys})
        assert index.columns == ["tokens"]
        assert by_key(index) == {key: expected[key] for key in index.keys}
        rows = index.to_arrow()
        assert dict(zip(rows["key"].to_pylist(), rows["tokens"].to_pylist(), strict=True)) == by_key(index)


def test_lengths_of_a_column_make_the_packs(index: SampleIndex, tmp_path: Path) -> None:
    saved = index.save(tmp_path)
    by_array = (
        AISSampleReader(saved, shuffle="samples").decode().to_tuple("__key__").pack(length=TOKENS, budget=25)
    )
    by_name = (
        AISSampleReader(saved, shuffle="samples")
        .decode()
        .to_tuple("__key__")
        .pack(length="tokens", budget=25)
    )
    with ais_loader(by_array, seed=2) as one, ais_loader(by_name, seed=2) as other:
        packs = list(one)
        assert packs == list(other)
    for (pack,) in packs:
        assert sum(ALL[key] for (key,) in pack) <= 25
    assert sorted(key for (pack,) in packs for (key,) in pack) == sorted(ALL)
    whole = (
        AISSampleReader(saved).decode().to_tuple("cls").buckets(length="tokens", edges=[10, 20], budget=40)
    )
    assert sorted(int(n) for (batch,) in whole for n in batch) == list(range(len(ALL)))


def test_promise_5_a_state_of_other_tokens_is_refused(index: SampleIndex) -> None:
    def pipe(one: SampleIndex) -> Any:
        return AISSampleReader(one, shuffle="samples").to_tuple("__key__").pack(length="tokens", budget=25)

    with ais_loader(pipe(index), seed=2) as loader:
        batches = iter(loader)
        first = [next(batches) for _ in range(3)]
        state = loader.state_dict()
        rest = list(batches)
    with ais_loader(pipe(index), seed=2) as again:
        again.load_state_dict(state)
        assert list(again) == rest
        assert first
    other = index.with_column("tokens", TOKENS[::-1])
    assert other.digest == index.digest  # what is read is the same
    with ais_loader(pipe(other), seed=2) as changed, pytest.raises(StateError, match="other"):
        changed.load_state_dict(state)


def test_shards_that_came_later_have_no_number_and_are_named(tmp_path: Path) -> None:
    for number in range(2):
        write_shard(tmp_path / f"s-{number}.tar", [(f"{number}{n}.txt", b"x" * n) for n in range(3)])
    place = tmp_path / "index"
    first = SampleIndex.build(str(tmp_path), where=place).with_column("tokens", range(6)).save(place)
    assert SampleIndex.open(place, shards_from=tmp_path).column("tokens").tolist() == list(range(6))
    write_shard(tmp_path / "s-2.tar", [("20.txt", b"x")])
    partly = SampleIndex.build(str(tmp_path / "s-0.tar")).with_column("tokens", [0, 1, 2])
    for more in (
        SampleIndex.build(str(tmp_path), where=place),
        SampleIndex.build(str(tmp_path), previous=first),
        SampleIndex.build(str(tmp_path), previous=partly),
    ):
        known = [0, 1, 2, -1, -1, -1] if more.column("tokens")[3] < 0 else list(range(6))
        assert more.column("tokens").tolist() == [*known, -1]
        assert more.to_arrow()["tokens"].null_count == known.count(-1) + 1
        with pytest.raises(UsageError, match=r"'tokens' knows nothing of the sample '(20|10)' of .*tar"):
            AISSampleReader(more).pack(length="tokens", budget=9).__len__()
        assert len(more.select(pc.is_valid(pc.field("tokens")))) == len(known) - known.count(-1)


def test_a_column_of_a_joined_index_is_a_length(index: SampleIndex, tmp_path: Path) -> None:
    captions = write_shard(tmp_path / "c.tar", [(f"{n:05d}.caption", b"c") for n in range(21)])
    other = SampleIndex.build(captions).with_column("words", range(21))
    both = index.join(other, prefix="more.")
    assert lengths_of(both, "more.words").tolist() == list(range(21))
    assert lengths_of(both, "tokens").tolist() == TOKENS
    assert lengths_of(both.select([20, 3]), "more.words").tolist() == [3, 20]
    partly = index.join(
        SampleIndex.build(captions).select(range(5)).with_column("words", range(5)), missing="keep"
    )
    with pytest.raises(UsageError, match="knows nothing of the sample '00005'"):
        lengths_of(partly, "words")


def test_stored_columns_open_in_other_tools(shards: list[str], tmp_path: Path) -> None:
    SampleIndex.build(shards, where=tmp_path)
    saved = SampleIndex.open(tmp_path, shards_from=shards).with_column("tokens", TOKENS).save()
    with pa.ipc.open_file(saved.files[0]) as file:  # as polars and duckdb open it
        assert sum(file.get_batch(number).column("tokens").to_pylist()[0] for number in range(1)) == TOKENS[0]
    assert list(SampleDataset(saved, transform=lambda sample: sample["__key__"])) == list(ALL)


def test_promise_1_a_flipped_bit_in_a_column_is_an_error(index: SampleIndex, tmp_path: Path) -> None:
    saved = index.save(tmp_path)
    path = Path(saved.files[0])
    data = bytearray(path.read_bytes())
    at = data.find(np.array(TOKENS[:7], dtype="<i8").tobytes())
    assert at > 0
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(SampleIndexError, match="changed"):
        SampleIndex.open(tmp_path, shards_from="/").column("tokens")


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("tokens", [1, 2], r"shape \(2,\) .* for 21 samples"),
        ("tokens", [0.5] * 21, "type float64"),
        ("tokens", ["1"] * 21, "whole numbers"),
        ("tokens", [-1] * 21, "Pass numbers from 0 on"),
        ("tokens", np.full(21, 2**63, dtype=np.uint64), "Pass numbers from 0 on"),
        ("tokens", {"00000": 1}, "no value for the sample '00001'"),
        ("key", [1] * 21, "every index has a column 'key'"),
        ("txt", [1] * 21, "(?i)samples have a field 'txt'"),
        ("", [1] * 21, "as text"),
        (7, [1] * 21, "as text"),
    ],
)
def test_wrong_columns_are_refused(shards: list[str], name: Any, values: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"(?i){message}"):
        SampleIndex.build(shards).with_column(name, values)


def test_a_column_that_is_not_there_is_told_with_those_that_are(index: SampleIndex) -> None:
    with pytest.raises(UsageError, match="no column 'token'; it has tokens"):
        index.column("token")
    with pytest.raises(UsageError, match=r"no field 'token'.*index\.with_column\(name, values\)"):
        len(AISSampleReader(index).pack(length="token", budget=9))
    mixed = Mixture({index: 1, SampleIndex.build(example_shards()).with_column("tokens", [3] * 6): 1})
    assert list(AISSampleReader(mixed).pack(length="tokens", budget=25))
