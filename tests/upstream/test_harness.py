"""The harness runs another project's tests with our classes, and tells every difference to the list."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

TORCHDATA = """
import unittest
from torchdata.dataloader2 import MultiProcessingReadingService

class Cases(unittest.TestCase):
    def test_ours(self):
        assert MultiProcessingReadingService.__module__.startswith("torchdata_ais")

    def test_fails(self):
        raise ValueError

    def test_skips(self):
        self.skipTest("")
"""
WEBDATASET = """
import webdataset as wds
from webdataset.tariterators import tar_file_expander

def test_ours():
    assert wds.__name__ == tar_file_expander.__module__.rpartition(".")[0] == "torchdata_ais.webdataset"

def test_web(tmp_path):
    assert len(list(wds.WebDataset("http://example.com/a.tar"))) == 100

def test_local():
    assert len(list(wds.WebDataset("testdata/imagenet-000000.tgz"))) == 47

def test_broken(request):
    request.addfinalizer(lambda: 1 / 0)
"""


def known(path: Path, project: str, collected: int, tests: list[str]) -> Path:
    kinds = {"some": {"why": "", "stock": False, "tests": tests}}
    path.write_text(json.dumps({project: {"collected": collected, "kinds": kinds}}))
    return path


def run(project: str, checkout: Path, listed: Path) -> tuple[int, str]:
    command = [
        sys.executable,
        str(HERE / f"run_{project}.py"),
        str(checkout),
        "--known",
        str(listed),
        "--lax",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(
    importlib.util.find_spec("torchdata") is None
    or importlib.util.find_spec("torchdata.dataloader2") is None,
    reason="no DataLoader2 of torchdata's",
)
@pytest.mark.ci
@pytest.mark.timeout(480)
def test_torchdatas_tests_meet_our_service(tmp_path: Path) -> None:
    file = tmp_path / "test" / "dataloader2" / "test_x.py"
    file.parent.mkdir(parents=True)
    file.write_text(TORCHDATA)
    name = "dataloader2/test_x.py::Cases::test_fails"
    status, said = run("torchdata", tmp_path, known(tmp_path / "known", "torchdata", 3, [name]))
    assert (status, "no difference to the list" in said) == (0, True), said


@pytest.mark.ci
@pytest.mark.timeout(480)
def test_webdatasets_tests_meet_our_facade(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(WEBDATASET)
    names = ["tests/test_x.py::test_broken", "tests/test_x.py::test_gone"]
    status, said = run("webdataset", tmp_path, known(tmp_path / "known", "webdataset", 4, names))
    assert status == 1, said
    assert said.splitlines()[-1] == "tests/test_x.py::test_gone: listed, but not there"
    assert "webdataset: 4 tests, 3 passed, 1 failed" in said


def test_every_kind_of_difference_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    import harness

    listed = {"kinds": {"some": {"why": "", "stock": False, "tests": ["a"]}}, "collected": 2}
    assert harness.compare({"a": "failed", "b": "passed"}, listed) == []
    assert harness.compare({"a": "skipped", "b": "passed"}, listed) == []
    assert harness.compare({"a": "passed", "b": "passed"}, listed) == [
        "a: passed, but listed as a difference (some)"
    ]
    for outcome in ("failed", "did not end"):
        assert harness.compare({"a": "failed", "b": outcome}, listed) == [f"b: {outcome}"]
    assert harness.compare({"b": "passed", "c": "passed"}, listed) == ["a: listed, but not there"]
    assert harness.compare({"a": "failed"}, listed)[0].startswith("1 tests were found, not 2")
    assert harness.compare({"a": "passed", "b": "passed"}, listed, stock=True) == []
    assert harness.compare({"a": "failed", "b": "passed"}, listed, stock=True) == ["a: failed"]
