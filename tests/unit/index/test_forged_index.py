"""Numbers in an index whose checksums are right: each that cannot be is a `SampleIndexError`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.forged_index import forge_index

from torchdata_ais import SampleDataset, SampleIndex
from torchdata_ais.errors import SampleIndexError
from torchdata_ais.testing import example_shards

MOST = 2**63 - 1


def samples(**changed: Any) -> dict[str, Any]:
    return {"samples": lambda shards: [row.update(changed) for row in shards[0]]}


def rows(**changed: Any) -> dict[str, Any]:
    return {"rows": lambda table: [row.update(changed) for row in table]}


def counts(*changed: int) -> dict[str, Any]:
    return {"counts": lambda numbers: numbers.__setitem__(slice(None), changed)}


FORGED: dict[str, dict[str, Any]] = {
    "start negative": samples(start=-512),
    "start least": samples(start=-(2**63)),
    "start most": samples(start=MOST),
    "all at one byte": samples(start=0),
    "size none": samples(size=0),
    "size negative": samples(size=-5),
    "size most": samples(size=MOST),
    "fields too many": samples(fields=99),
    "fields negative": samples(fields=-1),
    "fields least": samples(fields=-(2**31)),
    "sizes missing": samples(sizes=[]),
    "sizes too many": samples(sizes=[1] * 100_000),
    "sizes negative": samples(sizes=[-1, 1]),
    "sizes most": samples(sizes=[2**62, 2**62]),
    "checksums missing": samples(xxh64=None),
    "part too many": rows(part=5),
    "part negative": rows(part=-1),
    "block before the file": rows(start=-1),
    "block behind the file": rows(start=MOST),
    "block of a terabyte": rows(length=1 << 40),
    "block negative": rows(length=-1),
    "block empty": rows(length=0),
    "shard negative": rows(size=-1),
    "shard too small": rows(size=5),
    "rows that lie": rows(count=7),
    "counts more": counts(4, 2),
    "counts less": counts(2, 2),
    "counts swapped": counts(2, 3),
    "counts negative": counts(-1, 6),
    "counts that overflow": {**counts(MOST, MOST), "head": {"samples": 2**64 - 2}},
    "samples 10^15": {"head": {"samples": 10**15}},
    "shards 10^9": {"head": {"shards": 10**9}},
    "shards negative": {"head": {"shards": -1}},
    "proof unknown": {"head": {"proof": "x"}},
    "proof without checksums": {**rows(proven=False), "head": {"proof": "bytes"}},
    "columns 10^5": {"head": {"columns": [f"c{number}" for number in range(10**5)]}},
    "columns twice": {"head": {"columns": ["a", "a"]}},
    "columns that are not UTF-8": {"head": {"columns": ["\ud800"]}},
    "columns of the index": {"head": {"columns": ["key"]}},
    "parts 10^6": {"head": {"parts": ["samples-0123456789abcdef-0.arrow"] * 10**6}},
    "parts 10^4": {"head": {"parts": ["samples-0123456789abcdef-0.arrow"] * 10**4}},
    "pages negative": {"head": {"parts": []}},
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.ci if case == "parts 10^6" else ()) for case in FORGED]
)
def test_promise_7_forged_numbers_are_sample_index_errors(case: str, tmp_path: Path) -> None:
    SampleIndex.build(example_shards(tmp_path, counts=(3, 2))).save(tmp_path)
    forge_index(tmp_path, **FORGED[case])
    with pytest.raises(SampleIndexError):
        _looked_at(tmp_path)
    with pytest.raises(SampleIndexError):
        SampleDataset(SampleIndex.open(tmp_path))[0]


def _looked_at(place: Path) -> None:
    index = SampleIndex.open(place)
    index._repr_html_()
    list(index)


def test_a_block_that_two_shards_name_is_checked_for_each(tmp_path: Path) -> None:
    """It is right for the first, and kept when the second is looked up."""

    def name_the_first(table: list[dict[str, Any]]) -> None:
        table[1] |= {name: table[0][name] for name in ("part", "start", "length", "xxh64")}

    SampleIndex.build(example_shards(tmp_path, counts=(3, 2))).save(tmp_path)
    forge_index(tmp_path, rows=name_the_first)
    index = SampleIndex.open(tmp_path)
    for _ in range(2):
        assert index[2].key == "00002"
        with pytest.raises(SampleIndexError, match="has 3 rows for 2 samples"):
            index[3]


def test_an_index_that_is_not_forged_passes(tmp_path: Path) -> None:
    SampleIndex.build(example_shards(tmp_path, counts=(3, 2))).save(tmp_path)
    forge_index(tmp_path)
    index = SampleIndex.open(tmp_path)
    assert len(list(index)) == 5
    index.verify()
