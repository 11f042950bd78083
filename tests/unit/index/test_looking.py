"""Looking at an index: by key, its first samples, some samples, HTML, pandas."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pyarrow as pa
import pytest

from torchdata_ais import Mixture, SampleDataset, SampleIndex
from torchdata_ais.errors import MissingLibraryError, UsageError
from torchdata_ais.testing import example_shards, write_shard


@pytest.fixture
def index() -> SampleIndex:
    return SampleIndex.build(example_shards(counts=(30, 0, 20)))


def test_a_sample_is_found_by_its_key(index: SampleIndex) -> None:
    for number, key in enumerate(index.keys):
        assert index[key] == index[number]
    part = index.select([3, 40])
    assert [part["00003"].key, part["00040"].key] == ["00003", "00040"]
    for missing in ("00004", "", "3", "\udce9"):
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


@pytest.mark.ci
def test_opening_and_looking_do_not_import_pandas(tmp_path: Path) -> None:
    """Also where it is installed: Arrow tries to import it for some conversions."""
    place = str(tmp_path)
    for number, count in enumerate((30, 2)):
        write_shard(tmp_path / f"s-{number}.tar", {f"{number}-{n:02}.txt": b"x" for n in range(count)})
    SampleIndex.build(place).save()
    program = f"""
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise SystemExit("pandas was imported")

sys.meta_path.insert(0, Finder())
from torchdata_ais import SampleDataset, SampleIndex
index = SampleIndex.open({place!r})
chosen = index.select([1, 5, 31])
assert [len(index), len(index.head(2)), len(index.sample(3)), len(chosen)] == [32, 2, 3, 3]
assert (index[0].key, chosen[2].key, list(index.keys)[:1]) == ("0-00", "1-01", ["0-00"])
assert (index["1-01"].start, chosen["1-01"].key) == (index[31].start, "1-01")
assert SampleDataset(index)[31]["txt"] == b"x"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
