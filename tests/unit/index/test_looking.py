"""Looking at an index: by key, its first samples, some samples, HTML, pandas."""

from __future__ import annotations

import sys
import types

import pyarrow as pa
import pytest

from torchdata_ais import Mixture, SampleDataset, SampleIndex
from torchdata_ais.errors import MissingLibraryError, UsageError
from torchdata_ais.testing import example_shards


@pytest.fixture
def index() -> SampleIndex:
    return SampleIndex.build(example_shards(counts=(30, 0, 20)))


def test_a_sample_is_found_by_its_key(index: SampleIndex) -> None:
    for number, key in enumerate(index.keys):
        assert index[key] == index[number]
    part = index.select([3, 40])
    assert [part["00003"].key, part["00040"].key] == ["00003", "00040"]
    for missing in ("00004", "", "3"):
        with pytest.raises(KeyError):
            part[missing]


def test_the_first_and_some_samples(index: SampleIndex) -> None:
    assert list(index.head().keys) == list(index.keys)[:5]
    assert len(index.head(500)) == 50
    assert len(index.head(0)) == 0
    some = index.sample(10, seed=3)
    assert list(some.keys) == sorted(some.keys) == list(index.sample(10, seed=3).keys)
    assert list(some.keys) != list(index.sample(10, seed=4).keys)
    assert list(index.sample(500).keys) == list(index.keys)
    for count in (-1, 1.5, "3"):
        with pytest.raises(UsageError, match="count="):
            index.head(count)
        with pytest.raises(UsageError, match="count="):
            index.sample(count)


def test_pandas_gets_the_rows_where_it_is_installed(
    index: SampleIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingLibraryError, match="pip install"):
        index.to_pandas()
    monkeypatch.setitem(sys.modules, "pandas", types.ModuleType("pandas"))
    monkeypatch.setattr(SampleIndex, "to_arrow", lambda _: types.SimpleNamespace(to_pandas=lambda: "a frame"))
    assert index.to_pandas() == "a frame"
    assert pa.__version__


def test_mixtures_and_data_sets_have_tables_in_html(index: SampleIndex) -> None:
    other = SampleIndex.build(example_shards(counts=(7,)))
    assert "50 samples of 3 shards" in SampleDataset(index)._repr_html_()
    shown = Mixture({index: 0.75, other: 0.25})._repr_html_()
    assert "50 samples of 3 shards" in shown
    assert "7 samples of 1 shard" in shown
    assert "0.75000" in shown
