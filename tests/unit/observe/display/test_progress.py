"""`progress`: what goes through it is not changed; it shows itself where somebody looks, and nowhere else."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchdata_ais import AISSourceLister, ais_loader
from torchdata_ais.observe.display import progress
from torchdata_ais.testing import example_shards

ROOT = Path(__file__).parents[4]
PROGRAM = """
import time
from torchdata_ais.observe.display.progress import progress
for batch in progress([["a", "b"]] * 8, title="drawn", every_s=0.0):
    time.sleep(0.05)
print("done")
"""


def test_batches_go_through_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    pipe = AISSourceLister(example_shards()).load_tar().group_samples().decode().to_tuple("cls").batched(4)
    with ais_loader(pipe) as loader:
        assert [batch.tolist() for (batch,) in progress(loader)] == [[0, 1, 2, 3], [4, 5]]
    assert capsys.readouterr() == ("", "")  # no terminal: nothing is shown


def test_an_error_of_the_loader_comes_through_and_a_break_ends_it() -> None:
    def failing() -> object:
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(progress(failing()))
    for batch in progress(iter(range(10))):
        if batch == 3:
            break
    assert batch == 3


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"}


@pytest.mark.ci
def test_a_terminal_shows_batches_samples_and_rate() -> None:
    end, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=terminal, env=_environment()
    )
    os.close(terminal)
    shown, deadline = b"", time.monotonic() + 50
    try:
        while time.monotonic() < deadline:
            if not select.select([end], [], [], 1)[0]:
                continue
            try:
                part = os.read(end, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        assert process.wait(60) == 0
        assert process.stdout is not None
        assert process.stdout.read() == b"done\n"
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        os.close(end)
    assert b"drawn" in shown
    assert b"of 8 batches" in shown
    assert b"samples" in shown


@pytest.mark.ci
def test_a_notebook_keeps_the_last_numbers(tmp_path: Path) -> None:
    """In a real kernel: one output that was updated, as HTML and as text."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(PROGRAM)])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)
    try:
        nbclient.NotebookClient(
            notebook, timeout=100, resources={"metadata": {"path": str(tmp_path)}}
        ).execute()
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
    shown = [output for output in notebook.cells[0].outputs if output.output_type == "display_data"]
    assert len(shown) == 1
    html, text = shown[0].data["text/html"], shown[0].data["text/plain"]
    assert '<progress max="8" value="8">' in html
    assert text.startswith("drawn 8 batches, 16 samples, ")
