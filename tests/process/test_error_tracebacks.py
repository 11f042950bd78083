"""What an expected error prints when nobody catches it is short, with and without workers; it begins with the cause."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from torchdata_ais.loaders import ais_loader
from torchdata_ais.pipes import AISFileLoader
from torchdata_ais.writing import TarWriter
if __name__ == "__main__":
    path, workers, engine = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with TarWriter(path) as writer:
        writer.write({"__key__": "a", "cls": b"1"})
    for _ in ais_loader(AISFileLoader([path]).group_samples().to_tuple("jpg"), num_workers=workers, engine=engine):
        pass
"""


@pytest.mark.ci
@pytest.mark.timeout(90)
@pytest.mark.parametrize(("workers", "engine"), [(0, "auto"), (1, "dataloader2"), (1, "dataloader")])
def test_the_traceback_of_a_wrong_field_is_short_and_says_where(
    tmp_path: Path, workers: int, engine: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = [sys.executable, str(program), str(tmp_path / "s.tar"), str(workers), engine]
    done = subprocess.run(words, capture_output=True, text=True, timeout=80)
    lines = done.stderr.splitlines()
    assert len(lines) <= 40, done.stderr
    assert any(
        line.startswith("torchdata_ais.errors.MissingFieldError: The sample 'a' has") for line in lines
    )
    assert ("worker process 0" in done.stderr) == bool(workers)
