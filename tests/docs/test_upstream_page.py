"""What the pages say of other projects' tests is what the harness compares with."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
UPSTREAM = ROOT / "tests" / "upstream"
KNOWN = json.loads((UPSTREAM / "known_differences.json").read_text())


def test_the_table_on_webdatasets_page_is_the_list() -> None:
    page = (ROOT / "torchdata_ais" / "webdataset" / "README.md").read_text()
    section = page.partition("## Its own tests")[2].partition("\n## ")[0]
    listed = {kind: len(entry["tests"]) for kind, entry in KNOWN["webdataset"]["kinds"].items()}
    words = {
        "https": "by https",
        "shell": "in a shell",
        "cut": "cut shard",
        "pickle": "pickle",
        "wording": "words",
        "rewriting": "GOPEN_REWRITE",
        "tensors": "secure mode",
    }
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", section, re.MULTILINE)
    assert [int(count) for count, _ in rows] == [listed[kind] for kind in words]
    assert len(rows) == len(listed)
    assert all(word in text for word, (_, text) in zip(words.values(), rows, strict=True))
    collected = KNOWN["webdataset"]["collected"]
    passing = collected - sum(listed.values())
    assert f"Of the {collected} tests of webdataset 1.0.2 itself, {passing} pass" in section
    upstream = (UPSTREAM / "README.md").read_text()
    assert f"| webdataset 1.0.2, `tests` | {collected} | {passing} |" in upstream


def test_each_kind_has_a_reason_and_no_test_is_in_two() -> None:
    for project in KNOWN.values():
        tests = [test for entry in project["kinds"].values() for test in entry["tests"]]
        assert len(tests) == len(set(tests))
        assert all(len(entry["why"]) > 20 for entry in project["kinds"].values())


def test_what_is_said_of_torchdatas_tests() -> None:
    collected = KNOWN["torchdata"]["collected"]
    assert not KNOWN["torchdata"]["kinds"]
    said = (ROOT / "tests" / "process" / "README.md").read_text()
    assert f"{collected} of {collected} pass" in said
    assert "tests/upstream/run_torchdata.py" in said
    assert f"| {collected} | {collected} |" in (UPSTREAM / "README.md").read_text()
