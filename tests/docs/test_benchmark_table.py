"""The numbers in the tables are those of benchmarks/table.json, and rows that lose samples are not measured."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return what imports a script of the benchmarks."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if name in ("run", "table", "figure", "shards", "measure", "peers"):
            del sys.modules[name]


def test_the_tables_are_those_of_the_json(benchmark: Any) -> None:
    table = benchmark("table")
    results = json.loads(table.JSON.read_text())
    made = table.render(results)
    for place, rows in ((table.ALL, made), (table.README, table.excerpt(results))):
        text = place.read_text()
        assert table.put(text, rows) == text, "run: python benchmarks/table.py"
    assert not re.search(r"\d\.\d\d? times", table.README.read_text())  # figures in prose would grow old
    assert re.search(r"measured on \d{4}-\d\d-\d\d at commit [0-9a-f]{7}", made)


def test_the_figure_is_that_of_the_json(benchmark: Any) -> None:
    table, figure = benchmark("table"), benchmark("figure")
    results = json.loads(table.JSON.read_text())
    assert figure.SVG.read_text() == figure.draw(results), "run: python benchmarks/table.py"
    rows = {name: {"metric": {"median": 100 + n}} for n, (_, name) in enumerate(figure.CASES[1][2])}
    with_crops = figure.draw(results | {"cases": results["cases"] | {"crop": {"rows": rows}}})
    assert "Random crop" in with_crops
    assert ">102<" in with_crops


def test_one_command_measures_and_writes_the_table(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table, run = benchmark("table"), benchmark("run")
    before = json.loads(table.JSON.read_text())
    before["cases"]["memory"] = {"rows": {}}
    results = json.loads(table.JSON.read_text())
    results["surroundings"]["commit"] = "0123456789abcdef"
    for case in results["cases"].values():
        case.pop("measured", None)
    asked: list[str] = []

    def measure(words: list[str]) -> None:
        asked.extend(words)
        Path(words[-1]).write_text(json.dumps(results))

    for name in ("README", "ALL"):
        copy = tmp_path / f"{name}.md"
        copy.write_text(getattr(table, name).read_text())
        monkeypatch.setattr(table, name, copy)
    monkeypatch.setattr(table, "JSON", tmp_path / "table.json")
    table.JSON.write_text(json.dumps(before))
    monkeypatch.setattr(table.figure, "SVG", tmp_path / "speed.svg")
    monkeypatch.setattr(run, "main", measure)
    table.main(["--measure", "--rounds", "3"])
    assert "at commit 0123456" in table.ALL.read_text()
    assert table.excerpt(results) in table.README.read_text()
    written = json.loads(table.JSON.read_text())
    assert written["cases"]["decode"]["measured"]["commit"] == "0123456789abcdef"
    assert written["cases"]["memory"]["measured"]["date"] == before["surroundings"]["date"]
    assert table.figure.SVG.read_text() == table.figure.draw(results)
    assert {case for _, case, *_ in table.ROWS} <= set(asked)
    assert asked[-4:-2] == ["--rounds", "3"]


def test_the_table_asks_for_rows_that_are_measured(benchmark: Any) -> None:
    """And shows the slow link with one connection beside that with four."""
    table, run = benchmark("table"), benchmark("run")
    for _, case, *names in table.ROWS:
        assert set(names) <= {row.name for row in run.CASES[case].rows}
    slow = [name for _, case, name, _ in table.ROWS if case == "slow-link"]
    assert slow == ["ours, 1 open, W=0", "ours, 4 open, W=0"]
    assert any("60 MB/s, one connection" in label for label, *_ in table.ROWS)


def test_cases_that_nobody_measured_are_not_shown(benchmark: Any) -> None:
    table = benchmark("table")
    label, case, name, peer = next(row for row in table.ROWS if row[1] == "crop")
    rows = {name: {"metric": {"median": 7}, "ratios": {peer: 1.5}, "cpu_ms_per_sample": {"median": 2}}}
    assert "crop" not in table.render(EMPTY)
    assert f"| {label} | 7 | not measured | " in table.render(EMPTY | {"cases": {case: {"rows": rows}}})
    rows[peer] = {"metric": {"median": 5}, "ratios": {}, "cpu_ms_per_sample": {"median": 4}}
    assert f"| {label} | 7 | 5 | 1.50 | 0.50 |" in table.render(EMPTY | {"cases": {case: {"rows": rows}}})


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_the_costs_of_planning_are_measured(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = [sys.executable, str(BENCHMARKS / "plan.py"), "--shards", "10", "--json", str(found)]
    environment = os.environ | {"TORCHDATA_AIS_BENCH_DATA": str(tmp_path / "data")}
    subprocess.run(command, check=True, env=environment, capture_output=True, timeout=250)
    assert len(json.loads(found.read_text())) == 9


EMPTY: dict[str, Any] = {
    "surroundings": dict.fromkeys(["versions", "processor", "cpus", "server", "commit", "date"], "")
    | {"versions": {"webdataset": ""}},
    "rounds": 1,
    "cases": {},
}


def measured(run: Any, monkeypatch: pytest.MonkeyPatch, samples: dict[str, int]) -> Any:
    def result(job: dict[str, Any], _: float) -> dict[str, float]:
        return {"samples": samples[job["pipeline"]], "wall_s": 1.0, "cpu_s": 1.0, "first_s": 0.1}

    monkeypatch.setattr(run.measure, "run", result)
    case = run.smaller(run.CASES["undecoded"], 80)
    rows = [run.Row("webdataset"), run.Row("ours")]
    return case, rows, run.measured(case, rows, 2, "http://127.0.0.1:1")


def test_a_row_that_loses_or_doubles_samples_ends_the_run(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = benchmark("run")
    case, rows, results = measured(run, monkeypatch, {"webdataset": 320, "ours": 320})
    assert run.report(case, rows, results)["ours, W=0"]["ratios"] == {"webdataset, W=0": 1.0}
    for wrong in (319, 321, 0):
        with pytest.raises(SystemExit, match=f"ours, W=0: {wrong} samples instead of 320"):
            measured(run, monkeypatch, {"webdataset": 320, "ours": wrong})


def test_every_row_but_the_limit_has_a_count_to_meet(benchmark: Any) -> None:
    run = benchmark("run")
    for case in run.CASES.values():
        for row in case.rows:
            assert (run.samples_of(case, row) is None) == (row.pipeline == "limit")
    assert run.samples_of(run.CASES["decode"], run.Row("ours")) == 8000
    assert run.samples_of(run.CASES["first-batch"], run.Row("ours")) == run.BATCH == benchmark("peers").BATCH


def test_a_row_whose_library_is_missing_is_left_out_in_words(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = benchmark("run")
    monkeypatch.setenv("TORCHDATA_AIS_BENCH_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "alive_progress", None)
    monkeypatch.setattr(run, "is_there", lambda module: module != "alive_progress")
    asked: list[str] = []
    monkeypatch.setattr(run, "measured", lambda case, rows, *_: [asked.append(row.pipeline) for row in rows])
    monkeypatch.setattr(run, "report", lambda *_: {})
    monkeypatch.setattr(run.shards, "put", lambda *_: None)
    run.main(["--case", "small", "--samples", "4", "--rounds", "1"])
    assert "AISShardReader" not in asked
    assert "webdataset" in asked
    assert "AISShardReader is left out: alive_progress is not there" in capsys.readouterr().err


def test_the_extra_for_benchmarks_brings_what_they_need() -> None:
    bench = re.search(r"^bench = .*$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert bench is not None
    assert '"aistore[pytorch]' in bench[0]  # AISShardReader
