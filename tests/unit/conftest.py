from pathlib import Path
from typing import Any

import pytest
from helpers import command


@pytest.fixture
def run(ais_cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> command.Run:
    """The command line, in an empty folder, with a cluster of the test's own."""
    monkeypatch.setenv("AIS_ENDPOINT", ais_cluster.endpoint)
    monkeypatch.chdir(tmp_path)
    return command.run
